// SPDX-License-Identifier: Apache-2.0
#include "observe/nvtx.h"

#include <cstdlib>
#include <initializer_list>

#if defined(HBMALLOC_HAVE_CUDA) && __has_include(<nvtx3/nvToolsExt.h>)
#define HBMALLOC_HAVE_NVTX 1
#include <nvtx3/nvToolsExt.h>
#endif

namespace hbm::observe {

#ifdef HBMALLOC_HAVE_NVTX

bool ProfilerIsAttached() {
  for (const char* const name : {"NVTX_INJECTION64_PATH", "NVTX_INJECTION32_PATH"}) {
    const char* const path = std::getenv(name);
    if (path != nullptr && *path != '\0') return true;
  }
  return false;
}

namespace {

nvtxDomainHandle_t Domain() {
  static const nvtxDomainHandle_t domain = nvtxDomainCreateA("hbmalloc");
  return domain;
}

}  // namespace

void BeginRange(const char* name) {
  nvtxEventAttributes_t attributes{};
  attributes.version = NVTX_VERSION;
  attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
  attributes.message.ascii = name;
  nvtxDomainRangePushEx(Domain(), &attributes);
}

void EndRange() { nvtxDomainRangePop(Domain()); }

#else

bool ProfilerIsAttached() { return false; }
void BeginRange(const char* /*name*/) {}
void EndRange() {}

#endif

}  // namespace hbm::observe
