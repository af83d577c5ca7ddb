// SPDX-License-Identifier: Apache-2.0
//
// What a profiler is to a program: a library that the environment names and that
// takes NVTX calls. This one writes them into the file that HBMALLOC_NVTX_LOG names.
#include <nvtx3/nvToolsExt.h>

#include <cstdio>
#include <cstdlib>

namespace {

void Log(const char* what, const char* name) {
  std::FILE* const file = std::fopen(std::getenv("HBMALLOC_NVTX_LOG"), "a");
  if (file == nullptr) return;
  std::fprintf(file, "%s %s\n", what, name);
  std::fclose(file);
}

nvtxDomainHandle_t DomainCreate(const char* name) {
  Log("domain", name);
  static int domain;
  return reinterpret_cast<nvtxDomainHandle_t>(&domain);
}
int Push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  Log(domain != nullptr ? "push" : "no domain", attributes->message.ascii);
  return 0;
}
int Pop(nvtxDomainHandle_t /*domain*/) {
  Log("pop", "");
  return 0;
}

template <typename Function>
NvtxFunctionPointer AsPointer(Function function) {
  return reinterpret_cast<NvtxFunctionPointer>(function);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = AsPointer(&DomainCreate);
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = AsPointer(&Push);
  *table[NVTX_CBID_CORE2_DomainRangePop] = AsPointer(&Pop);
  return 1;
}
