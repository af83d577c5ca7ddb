// SPDX-License-Identifier: Apache-2.0
//
// Memory as a whole, figures and callbacks for C.
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "hbmalloc/allocator.h"
#include "hbmalloc/c_api.h"
#include "hbmalloc/export.h"
#include "hbmalloc/log.h"
#include "hbmalloc/version.h"
#include "interop/c_failure.h"
#include "interop/c_handle.h"
#include "interop/c_struct.h"

namespace hbm::interop {
namespace {

hbm_stats ToC(const Stats& stats) {
  hbm_stats c = HBM_INIT(hbm_stats);
  c.num_allocs = stats.num_allocs;
  c.bytes_in_use = stats.bytes_in_use;
  c.peak_bytes_in_use = stats.peak_bytes_in_use;
  c.largest_alloc_size = stats.largest_alloc_size;
  c.bytes_limit = stats.bytes_limit;
  c.bytes_reserved = stats.bytes_reserved;
  c.peak_bytes_reserved = stats.peak_bytes_reserved;
  c.largest_free_block_bytes = stats.largest_free_block_bytes;
  c.pool_bytes = stats.pool_bytes;
  c.peak_pool_bytes = stats.peak_pool_bytes;
  c.peak_allocated_bytes = stats.peak_allocated_bytes;
  c.requested_bytes = stats.requested_bytes;
  c.peak_requested_bytes = stats.peak_requested_bytes;
  c.num_frees = stats.num_frees;
  c.num_failures = stats.num_failures;
  c.num_regions = stats.num_regions;
  c.highest_used_bytes = stats.highest_used_bytes;
  c.pending_bytes = stats.pending_bytes;
  c.num_waits = stats.num_waits;
  c.wait_nanoseconds = stats.wait_nanoseconds;
  c.driver_calls = stats.driver_calls;
  c.driver_nanoseconds = stats.driver_nanoseconds;
  return c;
}

hbm_fragmentation ToC(const Fragmentation& figures) {
  hbm_fragmentation c = HBM_INIT(hbm_fragmentation);
  c.free_bytes = figures.free_bytes;
  c.largest_free_bytes = figures.largest_free_bytes;
  c.external = figures.external;
  c.rounding_waste = figures.rounding_waste;
  c.utilization = figures.utilization;
  c.peak_utilization = figures.peak_utilization;
  c.height_over_load = figures.height_over_load;
  c.mean_pool_over_live = figures.mean_pool_over_live.value_or(0);
  return c;
}

absl::Status TrimInto(Allocator& allocator, const hbm_trim_options* given, hbm_trim_result* out) {
  TrimOptions options;
  if (given != nullptr) {
    hbm_trim_options known;
    if (absl::Status status = ReadStruct(given, "options", &known); !status.ok()) return status;
    if (known.max_wait_ns < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("options->max_wait_ns is ", known.max_wait_ns, ": 0 or more is allowed"));
    }
    options.keep_pool_bytes = known.keep_pool_bytes;
    options.max_wait = known.max_wait_ns == HBM_WAIT_FOREVER ? absl::InfiniteDuration()
                                                             : absl::Nanoseconds(known.max_wait_ns);
  }
  if (out != nullptr) {
    if (absl::Status status = CheckStruct(out, "out"); !status.ok()) return status;
  }
  const absl::StatusOr<TrimResult> result = allocator.Trim(options);
  if (!result.ok()) return result.status();
  if (out == nullptr) return absl::OkStatus();
  return WriteStruct(
      hbm_trim_result{sizeof(hbm_trim_result), result->released, result->pending, result->pinned},
      "out", out);
}

absl::StatusOr<std::string> Describe(const Allocator& allocator, const std::string& device,
                                     std::int32_t format) {
  switch (format) {
    case HBM_SNAPSHOT_JSON:
      return ToJson(CaptureState(allocator, device));
    case HBM_SNAPSHOT_PYTORCH_PICKLE:
      return ToPyTorchPickle({CaptureState(allocator, device)});
    case HBM_SNAPSHOT_PROMETHEUS:
      return ToPrometheus({CaptureFigures(allocator, device)});
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("format is ", format, ": one of HBM_SNAPSHOT_... (0 to 2) is allowed"));
  }
}

absl::Status WriteFile(const char* path, const std::string& text) {
  const auto failed = [&] {
    return absl::UnavailableError(
        absl::StrCat("cannot write \"", path, "\": ", std::strerror(errno)));
  };
  std::FILE* const file = std::fopen(path, "wbe");
  if (file == nullptr) return failed();
  const bool written = std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const absl::Status status = written ? absl::OkStatus() : failed();
  if (std::fclose(file) != 0 && status.ok()) return failed();
  return status;
}

absl::Status WriteSnapshot(const hbm_allocator* handle, const Allocator& allocator,
                           const char* path, std::int32_t format) {
  if (path == nullptr) return absl::InvalidArgumentError("path is null");
  const absl::StatusOr<std::string> text = Describe(allocator, handle->device, format);
  return text.ok() ? WriteFile(path, *text) : text.status();
}

LowMemoryCallback ToCallback(hbm_low_memory_function function, void* context) {
  if (function == nullptr) return nullptr;
  return [function, context](const LowMemory& low) {
    hbm_low_memory c = HBM_INIT(hbm_low_memory);
    c.bytes = low.bytes;
    c.alignment = low.alignment;
    c.stream = CStream(low.stream);
    c.tag = low.tag.value;
    c.cause = static_cast<hbm_oom_cause>(low.cause);
    c.attempt = low.attempt;
    return function(&c, context) != 0;
  };
}

EventCallback ToCallback(hbm_event_function function, void* context) {
  if (function == nullptr) return nullptr;
  return [function, context](const Event& event) {
    hbm_event c = HBM_INIT(hbm_event);
    c.kind = static_cast<std::int32_t>(event.kind);
    c.cause = static_cast<hbm_oom_cause>(event.cause);
    c.time_ns = event.time_nanoseconds;
    c.duration_ns = event.duration_nanoseconds;
    c.address = event.address;
    c.bytes = event.bytes;
    c.alignment = event.alignment;
    c.stream = CStream(event.stream);
    c.tag = event.tag.value;
    c.driver_calls = event.driver_calls;
    c.driver_ns = event.driver_nanoseconds;
    c.requested_bytes = event.stats.requested_bytes;
    c.bytes_in_use = event.stats.bytes_in_use;
    c.pool_bytes = event.stats.pool_bytes;
    function(&c, context);
  };
}

absl::Status DeviceMemory(const char* spec, std::size_t* total, std::size_t* free) {
  if (total == nullptr || free == nullptr)
    return absl::InvalidArgumentError("total or free is null");
  absl::StatusOr<std::shared_ptr<Device>> device = OpenDevice(spec == nullptr ? "cuda:0" : spec);
  if (!device.ok()) return device.status();
  const absl::StatusOr<MemoryInfo> info = (*device)->GetMemoryInfo();
  if (!info.ok()) return info.status();
  *total = info->total;
  *free = info->free;
  return absl::OkStatus();
}

}  // namespace
}  // namespace hbm::interop

using hbm::Allocator;
using hbm::interop::Guard;
using hbm::interop::ToC;
using hbm::interop::ToCallback;
using hbm::interop::WithAllocator;
using hbm::interop::WriteStruct;

uint32_t hbm_version(void) {
  return 10000 * HBMALLOC_VERSION_MAJOR + 100 * HBMALLOC_VERSION_MINOR + HBMALLOC_VERSION_PATCH;
}
const char* hbm_version_string(void) { return HBMALLOC_VERSION; }

uint32_t hbm_register_tag(const char* name) {
  std::uint32_t tag = 0;
  (void)Guard([&] {
    if (name != nullptr) tag = hbm::RegisterTag(name).value;
    return absl::OkStatus();
  });
  return tag;
}

hbm_status hbm_set_log_callback(hbm_log_function function, void* context) {
  return Guard([&] {
    hbm::LogSink sink;
    if (function != nullptr) {
      sink = [function, context](hbm::LogSeverity severity, std::string_view message) {
        function(severity == hbm::LogSeverity::kWarning ? 1 : 0, std::string(message).c_str(),
                 context);
      };
    }
    hbm::SetLogSink(std::move(sink));
    return absl::OkStatus();
  });
}

hbm_status hbm_device_memory(const char* device, size_t* total, size_t* free) {
  return Guard([&] { return hbm::interop::DeviceMemory(device, total, free); });
}

hbm_status hbm_trim(hbm_allocator* allocator, const hbm_trim_options* options,
                    hbm_trim_result* out) {
  return Guard(WithAllocator(
      allocator, [&](Allocator& a) { return hbm::interop::TrimInto(a, options, out); }));
}

hbm_status hbm_set_memory_limit(hbm_allocator* allocator, size_t bytes) {
  return Guard(WithAllocator(allocator, [&](Allocator& a) { return a.SetMemoryLimit(bytes); }));
}

hbm_status hbm_get_stats(hbm_allocator* allocator, hbm_stats* out) {
  return Guard(WithAllocator(
      allocator, [&](Allocator& a) { return WriteStruct(ToC(a.GetStats()), "out", out); }));
}

hbm_status hbm_reset_peak_stats(hbm_allocator* allocator) {
  return Guard(WithAllocator(allocator, [&](Allocator& a) {
    a.ResetPeakStats();
    return absl::OkStatus();
  }));
}

hbm_status hbm_get_fragmentation(hbm_allocator* allocator, hbm_fragmentation* out) {
  return Guard(WithAllocator(
      allocator, [&](Allocator& a) { return WriteStruct(ToC(a.GetFragmentation()), "out", out); }));
}

hbm_status hbm_write_snapshot(hbm_allocator* allocator, const char* path, int32_t format) {
  return Guard(WithAllocator(allocator, [&](Allocator& a) {
    return hbm::interop::WriteSnapshot(allocator, a, path, format);
  }));
}

hbm_status hbm_set_low_memory_callback(hbm_allocator* allocator, hbm_low_memory_function function,
                                       void* context) {
  return Guard(WithAllocator(allocator, [&](Allocator& a) {
    a.SetLowMemoryCallback(ToCallback(function, context));
    return absl::OkStatus();
  }));
}

hbm_status hbm_set_event_callback(hbm_allocator* allocator, hbm_event_function function,
                                  void* context) {
  return Guard(WithAllocator(allocator, [&](Allocator& a) {
    a.SetEventCallback(ToCallback(function, context));
    return absl::OkStatus();
  }));
}
