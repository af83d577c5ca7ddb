// SPDX-License-Identifier: Apache-2.0
#include "sources/sim_device.h"

#include <unistd.h>

#include <atomic>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "policy/text.h"
#include "sources/device_spec.h"
#include "sources/sim_source.h"

namespace hbm::sources {
namespace {

// Sixteen times this still fits in an address.
constexpr std::size_t kMaxTotalBytes = std::size_t{1} << 50;
// Keeps simulated times far from overflow, and is longer than any kernel.
constexpr absl::Duration kMaxLag = absl::Seconds(30);

std::string CanonicalName(const SimOptions& options) {
  std::string name = absl::StrCat("sim:", options.total_bytes == kH200Bytes
                                              ? "h200"
                                              : policy::FormatBytesExact(options.total_bytes));
  if (options.used_bytes != 0) {
    absl::StrAppend(&name, ",used=", policy::FormatBytesExact(options.used_bytes));
  }
  if (options.lag != absl::ZeroDuration()) {
    absl::StrAppend(&name, ",lag=", absl::FormatDuration(options.lag));
  }
  if (options.context_bytes != 0) {
    absl::StrAppend(&name, ",context=", policy::FormatBytesExact(options.context_bytes));
  }
  if (!options.shared.empty()) absl::StrAppend(&name, ",shared=", options.shared);
  return name;
}

std::string NewUuid(const SimOptions& options) {
  if (!options.shared.empty()) return absl::StrCat("sim-", options.shared);
  static std::atomic<int> count{0};
  return absl::StrCat("sim-", getpid(), "-", count.fetch_add(1));
}

absl::Status ReadTotal(const DeviceSpec& spec, SimOptions* options) {
  if (spec.main.value.empty() || absl::EqualsIgnoreCase(spec.main.value, "h200")) {
    return absl::OkStatus();
  }
  const absl::StatusOr<std::size_t> bytes = spec.Bytes(spec.main);
  if (!bytes.ok()) return bytes.status();
  if (*bytes < kSimGranuleBytes || *bytes > kMaxTotalBytes) {
    return spec.Error(spec.main, "the capacity must be h200, or from 2MiB to 1024TiB");
  }
  options->total_bytes = *bytes;
  return absl::OkStatus();
}

absl::Status ReadOption(const DeviceSpec& spec, const DeviceSpec::Field& field,
                        SimOptions* options) {
  if (field.key == "lag") {
    const absl::StatusOr<absl::Duration> lag = policy::ParseDuration(field.value);
    if (!lag.ok() || *lag < absl::ZeroDuration() || *lag > kMaxLag) {
      return spec.Error(field, "must be a duration from 0 to 30s, such as 1.5ms");
    }
    options->lag = *lag;
    return absl::OkStatus();
  }
  if (field.key == "shared") return ReadSharedName(spec, field, &options->shared);
  if (field.key != "used" && field.key != "context") {
    return spec.Error(field, "no such option of sim; allowed are used, lag, context and shared");
  }
  const absl::StatusOr<std::size_t> bytes = spec.Bytes(field);
  if (!bytes.ok()) return bytes.status();
  if (*bytes > options->total_bytes) {
    return spec.Error(field, absl::StrCat("must be at most the capacity, ",
                                          policy::FormatBytesExact(options->total_bytes)));
  }
  (field.key == "used" ? options->used_bytes : options->context_bytes) = *bytes;
  return absl::OkStatus();
}

}  // namespace

SimDevice::SimDevice(const SimOptions& options, std::shared_ptr<sharing::SharedCapacity> shared)
    : state_(std::make_shared<SimState>(CanonicalName(options), options, std::move(shared))),
      uuid_(NewUuid(options)) {}

absl::StatusOr<MemoryInfo> SimDevice::GetMemoryInfo() {
  return MemoryInfo{state_->options.total_bytes, state_->capacity.available()};
}

absl::StatusOr<std::shared_ptr<MemorySource>> SimDevice::MakeSource(const Policy& policy) {
  return SimSource::Make(state_, policy.memory_kind);
}

absl::StatusOr<std::shared_ptr<Device>> OpenSimDevice(std::string_view text) {
  const absl::StatusOr<DeviceSpec> spec = DeviceSpec::Parse(text);
  if (!spec.ok()) return spec.status();
  SimOptions options;
  if (absl::Status total = ReadTotal(*spec, &options); !total.ok()) return total;
  for (const DeviceSpec::Field& field : spec->options) {
    if (absl::Status read = ReadOption(*spec, field, &options); !read.ok()) return read;
  }
  if (options.shared.empty()) return std::make_shared<SimDevice>(options);
  absl::StatusOr<std::shared_ptr<sharing::SharedCapacity>> capacity = sharing::SharedCapacity::Open(
      absl::StrCat("sim-", options.shared), options.total_bytes - options.used_bytes);
  if (!capacity.ok()) return capacity.status();
  return std::make_shared<SimDevice>(options, *std::move(capacity));
}

}  // namespace hbm::sources
