// SPDX-License-Identifier: Apache-2.0
//
// File: host_device.h
//
// This machine's memory as a device, so that everything runs and every byte can
// be checked where there is no GPU.
//
//   absl::StatusOr<std::shared_ptr<Device>> device = OpenHostDevice("host:8GiB");
//
// All allocators made on one device draw from one capacity. The capacity is what
// may be held, not what is set aside: pages come from the operating system when
// they are first touched.
#ifndef HBMALLOC_SOURCES_HOST_DEVICE_H_
#define HBMALLOC_SOURCES_HOST_DEVICE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "hbmalloc/device.h"
#include "sources/capacity.h"

namespace hbm::sources {

class HostDevice final : public Device {
 public:
  // `uuid` empty: a name of this process's own.
  HostDevice(std::string name, std::size_t bytes, std::string uuid = "",
             std::shared_ptr<sharing::SharedCapacity> shared = nullptr);

  std::string_view Name() const override { return name_; }
  std::string_view Uuid() const override { return uuid_; }
  // Free is the capacity less what is held, whatever the machine's load.
  absl::StatusOr<MemoryInfo> GetMemoryInfo() override;
  // Every memory kind gets the same memory: the host has but one.
  absl::StatusOr<std::shared_ptr<MemorySource>> MakeSource(const Policy& policy) override;

 private:
  const std::string name_;
  const std::string uuid_;
  const std::shared_ptr<Capacity> capacity_;
};

// "host" (the machine's memory) or "host:SIZE", with option shared=.
absl::StatusOr<std::shared_ptr<Device>> OpenHostDevice(std::string_view spec);

}  // namespace hbm::sources

#endif  // HBMALLOC_SOURCES_HOST_DEVICE_H_
