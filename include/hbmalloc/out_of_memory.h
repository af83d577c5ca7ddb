// SPDX-License-Identifier: Apache-2.0
//
// File: out_of_memory.h
//
// Why a request found no memory, for programs; the status's message is the report
// for people.
//
//   absl::StatusOr<void*> block = allocator->Allocate(bytes);
//   if (hbm::GetOomCause(block.status()) == hbm::OomCause::kFragmentation) ...
//   if (auto details = hbm::GetOomDetails(block.status())) use(details->largest_free_bytes);
//
// and a way to free something at the last moment:
//
//   allocator->SetLowMemoryCallback([&](const hbm::LowMemory& low) {
//     return cache.Evict(low.bytes) > 0;      // true: try again
//   });
#ifndef HBMALLOC_OUT_OF_MEMORY_H_
#define HBMALLOC_OUT_OF_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>

#include "absl/status/status.h"
#include "hbmalloc/stats.h"
#include "hbmalloc/stream.h"
#include "hbmalloc/tag.h"

namespace hbm {

// Why a request found no memory.
enum class OomCause {
  kNone,           // not an out-of-memory error
  kLimit,          // the policy's limit
  kFragmentation,  // enough is free, but not in one piece
  kPending,        // freed blocks are held back by streams
  kOtherProcess,   // others on the device hold it
  kDevice,         // the device has no more
};
std::string_view ToString(OomCause cause);

// Why an Allocate failed; kNone for any status that is not out of memory.
OomCause GetOomCause(const absl::Status& status);

// What was known at the failure; all in bytes.
struct OomDetails {
  OomCause cause = OomCause::kNone;
  std::uint64_t requested_bytes = 0;
  std::uint64_t alignment = 0;
  std::int64_t limit_bytes = 0;
  LimitSource limit_source = LimitSource::kMemoryFraction;
  std::int64_t pool_bytes = 0;
  std::int64_t in_use_bytes = 0;
  std::int64_t free_bytes = 0;  // pool - in use
  std::int64_t largest_free_bytes = 0;
  std::int64_t pending_bytes = 0;
  // Unset if the device could not be asked.
  std::optional<std::uint64_t> device_total_bytes;
  std::optional<std::uint64_t> device_free_bytes;
};

// Where they stand in a status: one "name=value" a line, names as above. It survives
// copies of the status, and goes where its payloads go.
inline constexpr char kOomDetailsPayload[] = "hbmalloc/oom_details";

// Unset for any status that is not this library's out-of-memory error.
std::optional<OomDetails> GetOomDetails(const absl::Status& status);

// What a request is short of.
struct LowMemory {
  std::size_t bytes = 0;
  std::size_t alignment = 0;
  StreamRef stream;
  TagId tag;
  OomCause cause = OomCause::kNone;
  int attempt = 0;  // 0 at first, then how often it was tried again for this request
};

// Called by Allocate (not TryAllocate) when nothing else is left, on the thread that
// asks, before it waits or fails. Returns whether to try again: at most
// kMostLowMemoryAttempts times for one request. Not under a lock: it may free, trim,
// ask for statistics, and allocate; a request from inside it that finds no memory
// fails without calling it again. Must not throw.
using LowMemoryCallback = std::function<bool(const LowMemory&)>;
inline constexpr int kMostLowMemoryAttempts = 16;

}  // namespace hbm

#endif  // HBMALLOC_OUT_OF_MEMORY_H_
