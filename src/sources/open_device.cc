// SPDX-License-Identifier: Apache-2.0
//
// The kinds of device the library has. A new one is a file pair beside this and
// one line in kKinds.
#include <string>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "hbmalloc/device.h"
#include "sources/device_spec.h"
#include "sources/gpu_name.h"
#include "sources/host_device.h"
#include "sources/sim_device.h"

#if defined(HBMALLOC_HAVE_CUDA) && __has_include("sources/cuda/cuda_device.h")
#include "sources/cuda/cuda_device.h"
#define HBMALLOC_OPENS_CUDA 1
#endif

namespace hbm {
namespace {

using OpenFunction = absl::StatusOr<std::shared_ptr<Device>> (*)(std::string_view spec);

absl::StatusOr<std::shared_ptr<Device>> OpenCuda(std::string_view spec) {
  // First of all: what is wrong with the name is so without a driver, too.
  const absl::StatusOr<std::string> name = sources::ParseGpuName(spec);
  if (!name.ok()) return name.status();
#if defined(HBMALLOC_OPENS_CUDA)
  return sources::OpenCudaDevice(spec);
#else
  return absl::UnavailableError(
      absl::StrCat("device \"", absl::string_view(spec.data(), spec.size()),
                   "\": this library was built without CUDA; sim and host need none"));
#endif
}

constexpr std::size_t kMaxSpec = 1024;

struct Kind {
  std::string_view name;
  std::string_view forms;
  OpenFunction open;
};

constexpr Kind kKinds[] = {
    {"sim", "sim:SIZE|h200[,used=SIZE][,lag=DURATION][,context=SIZE][,shared=NAME]",
     sources::OpenSimDevice},
    {"host", "host[:SIZE][,shared=NAME]", sources::OpenHostDevice},
    {"cuda", "cuda:N|UUID|PCI bus id|MIG-UUID", OpenCuda},
};

std::string AllForms() {
  std::string forms;
  for (const Kind& kind : kKinds) {
    absl::StrAppend(&forms, forms.empty() ? "" : ", ",
                    absl::string_view(kind.forms.data(), kind.forms.size()));
  }
  return forms;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Device>> OpenDevice(std::string_view spec) {
  const absl::string_view trimmed =
      absl::StripAsciiWhitespace(absl::string_view(spec.data(), spec.size()));
  spec = {trimmed.data(), trimmed.size()};
  // So that no error repeats a screenful.
  if (spec.size() > kMaxSpec) {
    return sources::DeviceSpecError(spec.substr(0, 64),
                                    absl::StrCat("begins a text of ", spec.size(),
                                                 " characters, and no device's name has more than ",
                                                 kMaxSpec, "; allowed are ", AllForms()));
  }
  if (absl::StartsWith(trimmed, "GPU-") || absl::StartsWith(trimmed, "MIG-")) return OpenCuda(spec);
  const std::string_view name = spec.substr(0, spec.find_first_of(":,"));
  for (const Kind& kind : kKinds) {
    if (kind.name == name) return kind.open(spec);
  }
  return sources::DeviceSpecError(spec, absl::StrCat("no kind of device is called \"",
                                                     absl::string_view(name.data(), name.size()),
                                                     "\"; allowed are ", AllForms()));
}

}  // namespace hbm
