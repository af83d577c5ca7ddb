// SPDX-License-Identifier: Apache-2.0
//
// Events as the JSON that Perfetto and chrome://tracing open: one process a device,
// one thread a thread, counters of memory. Times are microseconds.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "hbmalloc/export.h"
#include "observe/json.h"

namespace hbm {
namespace {

using observe::JsonNumber;
using observe::JsonString;

std::string Micros(std::int64_t nanoseconds) {
  return absl::StrFormat("%d.%03d", nanoseconds / 1000, nanoseconds % 1000);
}

class TraceEvents {
 public:
  std::string Render(const std::vector<DeviceEvents>& devices) {
    for (const DeviceEvents& device : devices) {
      for (const EventHistory::Entry& entry : device.events) {
        const std::int64_t begins = entry.time_nanoseconds - entry.duration_nanoseconds;
        start_ = start_ < 0 ? begins : std::min(start_, begins);
      }
    }
    text_ = "{\"displayTimeUnit\": \"ns\", \"traceEvents\": [";
    for (std::size_t i = 0; i < devices.size(); ++i) AddDevice(i + 1, devices[i]);
    return std::move(text_) + "\n]}\n";
  }

 private:
  void Add(const std::string& event) {
    absl::StrAppend(&text_, first_ ? "\n{" : ",\n{", event, "}");
    first_ = false;
  }

  void AddDevice(std::size_t process, const DeviceEvents& device) {
    Add(absl::StrCat("\"ph\": \"M\", \"name\": \"process_name\", \"pid\": ", process,
                     ", \"args\": {\"name\": ", JsonString("hbmalloc " + device.device), "}"));
    std::int64_t in_use = -1, requested = -1, pool = -1;
    std::string fragmentation;
    for (const EventHistory::Entry& entry : device.events) {
      const std::string at = absl::StrCat("\"pid\": ", process, ", \"tid\": ", entry.thread,
                                          ", \"ts\": ", Micros(entry.time_nanoseconds - start_));
      if (entry.driver_calls > 0) AddDriver(process, entry);
      if (entry.kind == Event::Kind::kAllocateFailure) {
        Add(absl::StrCat("\"ph\": \"i\", \"s\": \"p\", \"name\": \"out of memory\", ", at,
                         ", \"args\": {\"bytes\": ", entry.bytes,
                         ", \"cause\": ", JsonString(ToString(entry.cause)), "}"));
      }
      // A counter keeps its value until the next one.
      if (entry.in_use != in_use || entry.requested != requested || entry.pool != pool) {
        in_use = entry.in_use;
        requested = entry.requested;
        pool = entry.pool;
        Add(absl::StrCat("\"ph\": \"C\", \"name\": \"memory (bytes)\", ", at,
                         ", \"args\": {\"requested\": ", requested, ", \"in use\": ", in_use,
                         ", \"pool\": ", pool, "}"));
      }
      const std::int64_t free = pool - in_use;
      const std::string external = JsonNumber(
          free <= 0 ? 0.0
                    : 1.0 - static_cast<double>(entry.largest_free) / static_cast<double>(free));
      if (external != fragmentation) {
        fragmentation = external;
        Add(absl::StrCat("\"ph\": \"C\", \"name\": \"external fragmentation\", ", at,
                         ", \"args\": {\"ratio\": ", external, "}"));
      }
    }
  }

  void AddDriver(std::size_t process, const EventHistory::Entry& entry) {
    // Inside its call where clocks agree; a simulated driver's charge takes none of
    // the simulated time.
    const std::int64_t begins = entry.duration_nanoseconds >= entry.driver_nanoseconds
                                    ? entry.time_nanoseconds - entry.duration_nanoseconds
                                    : entry.time_nanoseconds;
    Add(absl::StrCat(
        "\"ph\": \"X\", \"cat\": \"driver\", \"name\": ",
        JsonString("driver: " + std::string(ToString(entry.kind))), ", \"pid\": ", process,
        ", \"tid\": ", entry.thread, ", \"ts\": ", Micros(begins - start_),
        ", \"dur\": ", Micros(entry.driver_nanoseconds),
        ", \"args\": {\"calls\": ", entry.driver_calls, ", \"bytes\": ", entry.bytes, "}"));
  }

  std::string text_;
  bool first_ = true;
  std::int64_t start_ = -1;
};

}  // namespace

std::string ToChromeTrace(const std::vector<DeviceEvents>& devices) {
  return TraceEvents().Render(devices);
}

}  // namespace hbm
