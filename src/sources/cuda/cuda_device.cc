// SPDX-License-Identifier: Apache-2.0
#include "sources/cuda/cuda_device.h"

#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/mutex.h"
#include "sources/cuda/cuda_source.h"
#include "sources/cuda/driver.h"
#include "sources/cuda/driver_status.h"
#include "sources/gpu_name.h"

namespace hbm::sources {
namespace {

using cuda::Driver;
using cuda::Gpu;

// One Device per physical device. Leaked: devices may be opened and closed by
// static objects.
struct Registry {
  core::Mutex mutex;
  std::map<std::pair<const Driver*, std::string>, std::weak_ptr<Device>> devices
      HBM_GUARDED_BY(mutex);
};

Registry& TheRegistry() {
  static Registry* const registry = new Registry;
  return *registry;
}

absl::StatusOr<std::string> UuidOf(const Driver& driver, CUdevice device) {
  CUuuid uuid = {};
  CUresult result = driver.DeviceGetUuid(&uuid, device);
  char name[256] = {};
  if (result == CUDA_SUCCESS) result = driver.DeviceGetName(name, sizeof(name) - 1, device);
  if (result != CUDA_SUCCESS) {
    return cuda::ToStatus(driver, result, "cuDeviceGetUuid", absl::StrCat("device ", device));
  }
  // A MIG instance says so in its name.
  std::string text = absl::StrContains(name, " MIG ") ? "MIG" : "GPU";
  for (int i = 0; i < 16; ++i) {
    const bool dash = i == 0 || i == 4 || i == 6 || i == 8 || i == 10;
    absl::StrAppendFormat(&text, "%s%02x", dash ? "-" : "",
                          static_cast<unsigned>(static_cast<unsigned char>(uuid.bytes[i])));
  }
  return text;
}

absl::Status NoSuchDevice(std::string_view spec, std::string_view problem) {
  return absl::NotFoundError(
      absl::StrCat("device \"", absl::string_view(spec.data(), spec.size()),
                   "\": ", absl::string_view(problem.data(), problem.size())));
}

// The ordinal of the device that `which` names: a number, a UUID or a PCI bus id.
absl::StatusOr<int> FindOrdinal(const Driver& driver, std::string_view spec,
                                const std::string& which) {
  int count = 0;
  const CUresult result = driver.DeviceGetCount(&count);
  if (result != CUDA_SUCCESS) return cuda::ToStatus(driver, result, "cuDeviceGetCount", spec);
  int ordinal = 0;
  if (absl::SimpleAtoi(which, &ordinal)) {
    if (ordinal >= 0 && ordinal < count) return ordinal;
    return NoSuchDevice(spec, absl::StrCat("this process sees ", count,
                                           " devices, numbered from 0 (CUDA_VISIBLE_DEVICES "
                                           "changes what it sees)"));
  }
  CUdevice by_bus_id = -1;
  if (absl::StrContains(which, ":")) {
    if (driver.DeviceGetByPCIBusId(&by_bus_id, which.c_str()) != CUDA_SUCCESS) {
      return NoSuchDevice(spec, "no visible device has this PCI bus id");
    }
  }
  for (int i = 0; i < count; ++i) {
    CUdevice device = 0;
    if (driver.DeviceGet(&device, i) != CUDA_SUCCESS) continue;
    if (by_bus_id >= 0) {
      if (device == by_bus_id) return i;
      continue;
    }
    const absl::StatusOr<std::string> uuid = UuidOf(driver, device);
    if (uuid.ok() && absl::EqualsIgnoreCase(*uuid, which)) return i;
  }
  return NoSuchDevice(spec, "no visible device has this UUID");
}

}  // namespace

std::string_view CudaDevice::Name() const { return gpu_->name; }
std::string_view CudaDevice::Uuid() const { return gpu_->uuid; }
absl::StatusOr<MemoryInfo> CudaDevice::GetMemoryInfo() { return gpu_->GetMemoryInfo(); }

absl::StatusOr<std::shared_ptr<MemorySource>> CudaDevice::MakeSource(const Policy& policy) {
  return cuda::CudaSource::Make(gpu_, policy);
}

absl::StatusOr<std::shared_ptr<Device>> OpenCudaDevice(std::string_view spec,
                                                       const Driver& driver) {
  const absl::StatusOr<std::string> which = ParseGpuName(spec);
  if (!which.ok()) return which.status();
  const absl::StatusOr<int> ordinal = FindOrdinal(driver, spec, *which);
  if (!ordinal.ok()) return ordinal.status();
  CUdevice handle = 0;
  const CUresult result = driver.DeviceGet(&handle, *ordinal);
  if (result != CUDA_SUCCESS) return cuda::ToStatus(driver, result, "cuDeviceGet", spec);
  const absl::StatusOr<std::string> uuid = UuidOf(driver, handle);
  if (!uuid.ok()) return uuid.status();

  Registry& registry = TheRegistry();
  core::MutexLock lock(registry.mutex);
  std::weak_ptr<Device>& known = registry.devices[{&driver, *uuid}];
  std::shared_ptr<Device> device = known.lock();
  if (device == nullptr) {
    device = std::make_shared<CudaDevice>(
        std::make_shared<Gpu>(driver, handle, absl::StrCat("cuda:", *ordinal), *uuid));
    known = device;
  }
  return device;
}

absl::StatusOr<std::shared_ptr<Device>> OpenCudaDevice(std::string_view spec) {
  const absl::StatusOr<const Driver*> driver = cuda::LoadDriver();
  if (!driver.ok()) return driver.status();
  return OpenCudaDevice(spec, **driver);
}

}  // namespace hbm::sources
