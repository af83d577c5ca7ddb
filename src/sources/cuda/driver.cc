// SPDX-License-Identifier: Apache-2.0
#include "sources/cuda/driver.h"

#include <dlfcn.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "sources/cuda/driver_status.h"

namespace hbm::sources::cuda {
namespace {

using GetProcAddress = CUresult (*)(const char* symbol, void** function, int version,
                                    cuuint64_t flags, CUdriverProcAddressQueryResult* found);

absl::Status NoDriver(std::string_view problem) {
  return absl::UnavailableError(
      absl::StrCat("cuda: no usable driver: ", absl::string_view(problem.data(), problem.size())));
}

// Null handles must mean the legacy default stream whatever the caller was
// compiled with, so the legacy entry points are asked for.
template <typename Function>
bool Find(GetProcAddress find, const char* symbol, int version, Function* function) {
  void* address = nullptr;
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  const CUresult result =
      find(symbol, &address, version, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &found);
  *function = reinterpret_cast<Function>(address);
  return result == CUDA_SUCCESS && address != nullptr;
}

absl::Status LookUp(Driver* driver) {
  // Never closed: memory may be freed until the very end of the process.
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return NoDriver("libcuda.so.1 cannot be loaded; install NVIDIA's driver, or use sim or host");
  }
  const auto find = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
  if (find == nullptr) {
    return NoDriver("it is older than CUDA 12.0, the oldest that is supported; update it");
  }
  std::string missing;
#define HBM_CUDA_FIND(name, version, parameters) \
  if (!Find(find, "cu" #name, version, &driver->name)) absl::StrAppend(&missing, " cu" #name);
  HBM_CUDA_DRIVER_CALLS(HBM_CUDA_FIND)
#undef HBM_CUDA_FIND
  if (!missing.empty()) {
    return NoDriver(absl::StrCat("it lacks", missing, "; CUDA 12.0 or newer is needed"));
  }
  const CUresult result = driver->Init(0);
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  return NoDriver(absl::StrCat("cuInit failed with ", ResultName(*driver, result),
                               "; check that a GPU is visible (nvidia-smi)"));
}

}  // namespace

absl::StatusOr<const Driver*> LoadDriver() {
  // Leaked: both must outlive every static object that holds an allocator.
  static Driver* const driver = new Driver;
  static const absl::Status* const status = new absl::Status(LookUp(driver));
  if (!status->ok()) return *status;
  return static_cast<const Driver*>(driver);
}

}  // namespace hbm::sources::cuda
