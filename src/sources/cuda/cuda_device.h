// SPDX-License-Identifier: Apache-2.0
//
// File: cuda_device.h
//
// GPUs, by ordinal, UUID, PCI bus id or MIG UUID.
//
//   absl::StatusOr<std::shared_ptr<Device>> device = OpenCudaDevice("cuda:0");
#ifndef HBMALLOC_SOURCES_CUDA_CUDA_DEVICE_H_
#define HBMALLOC_SOURCES_CUDA_CUDA_DEVICE_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "hbmalloc/device.h"

namespace hbm::sources {

namespace cuda {
struct Driver;
struct Gpu;
}  // namespace cuda

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(std::shared_ptr<cuda::Gpu> gpu) : gpu_(std::move(gpu)) {}

  std::string_view Name() const override;
  std::string_view Uuid() const override;
  absl::StatusOr<MemoryInfo> GetMemoryInfo() override;
  absl::StatusOr<std::shared_ptr<MemorySource>> MakeSource(const Policy& policy) override;
  bool IsCuda() const override { return true; }

 private:
  const std::shared_ptr<cuda::Gpu> gpu_;
};

// Takes the forms of OpenDevice (device.h) that name a GPU. One object per
// physical device lives at a time.
absl::StatusOr<std::shared_ptr<Device>> OpenCudaDevice(std::string_view spec);
// The same over a given driver, which must outlive the device.
absl::StatusOr<std::shared_ptr<Device>> OpenCudaDevice(std::string_view spec,
                                                       const cuda::Driver& driver);

}  // namespace hbm::sources

#endif  // HBMALLOC_SOURCES_CUDA_CUDA_DEVICE_H_
