// SPDX-License-Identifier: Apache-2.0
#include "sources/host_device.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "policy/text.h"
#include "sources/device_spec.h"
#include "sources/host_source.h"

namespace hbm::sources {
namespace {

constexpr std::size_t kMaxBytes = std::size_t{64} << 40;  // half of what a process can address

std::size_t MachineBytes() {
  const std::int64_t pages = sysconf(_SC_PHYS_PAGES);
  const std::int64_t page = sysconf(_SC_PAGE_SIZE);
  if (pages <= 0 || page <= 0) return std::size_t{1} << 30;
  return static_cast<std::size_t>(pages) * static_cast<std::size_t>(page);
}

std::string NewUuid() {
  static std::atomic<int> count{0};
  return absl::StrCat("host-", getpid(), "-", count.fetch_add(1));
}

}  // namespace

HostDevice::HostDevice(std::string name, std::size_t bytes, std::string uuid,
                       std::shared_ptr<sharing::SharedCapacity> shared)
    : name_(std::move(name)),
      uuid_(uuid.empty() ? NewUuid() : std::move(uuid)),
      capacity_(std::make_shared<Capacity>(bytes, std::move(shared))) {}

absl::StatusOr<MemoryInfo> HostDevice::GetMemoryInfo() {
  return MemoryInfo{capacity_->total(), capacity_->available()};
}

absl::StatusOr<std::shared_ptr<MemorySource>> HostDevice::MakeSource(const Policy& /*policy*/) {
  return std::make_shared<HostSource>(capacity_);
}

absl::StatusOr<std::shared_ptr<Device>> OpenHostDevice(std::string_view text) {
  const absl::StatusOr<DeviceSpec> spec = DeviceSpec::Parse(text);
  if (!spec.ok()) return spec.status();
  std::string shared;
  for (const DeviceSpec::Field& field : spec->options) {
    if (field.key != "shared") {
      return spec->Error(field, "no such option of host; allowed is shared");
    }
    if (absl::Status read = ReadSharedName(*spec, field, &shared); !read.ok()) return read;
  }
  std::string name = "host";
  std::size_t total = MachineBytes();
  if (!spec->main.value.empty()) {
    const absl::StatusOr<std::size_t> bytes = spec->Bytes(spec->main);
    if (!bytes.ok()) return bytes.status();
    if (*bytes < kHostGranuleBytes || *bytes > kMaxBytes) {
      return spec->Error(spec->main, "the capacity must be from 2MiB to 64TiB");
    }
    total = *bytes;
    absl::StrAppend(&name, ":", policy::FormatBytesExact(total));
  }
  if (shared.empty()) return std::make_shared<HostDevice>(name, total);
  const std::string key = absl::StrCat("host-", shared);
  absl::StatusOr<std::shared_ptr<sharing::SharedCapacity>> capacity =
      sharing::SharedCapacity::Open(key, total);
  if (!capacity.ok()) return capacity.status();
  return std::make_shared<HostDevice>(absl::StrCat(name, ",shared=", shared), total, key,
                                      *std::move(capacity));
}

}  // namespace hbm::sources
