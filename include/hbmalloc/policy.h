// SPDX-License-Identifier: Apache-2.0
//
// File: policy.h
//
// A Policy is everything a user may configure, as one value: in code, as text,
// or from the environment.
//
//   hbm::Policy policy;                                       // XLA's defaults
//   policy.memory_fraction = hbm::MemoryFraction{0.5};
//   auto parsed = hbm::ParsePolicy("bfc:memory_fraction=0.5,reserve=1GiB");
//   auto from_env = hbm::PolicyFromEnv();                     // HBMALLOC_POLICY or XLA's own
//   variables
//
// In text every field goes by its name here; the strategy may stand in front.
#ifndef HBMALLOC_POLICY_H_
#define HBMALLOC_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace hbm {

// The rule by which requests are met. In text: bfc, on_demand, platform,
// cuda_async, elastic.
enum class Strategy { kBfc, kOnDemand, kPlatform, kCudaAsync, kElastic };

// The share of a device's memory that an allocator may hold. In text, XLA's
// grammar: "0.75" is fixed, "0.75+" starts there and grows to 1, "0.75-0.85"
// starts at 0.75 and grows to 0.85. Range: over 0; over 1 only fixed and with
// memory_kind=unified, and then at most 16.
struct MemoryFraction {
  double start = 0.75;
  std::optional<double> cap = std::nullopt;  // unset: fixed, the pool does not grow past start

  // A cap that equals the start is no cap.
  friend bool operator==(const MemoryFraction& a, const MemoryFraction& b) {
    return a.start == b.start && a.cap.value_or(a.start) == b.cap.value_or(b.start);
  }
};

enum class FractionOf { kTotal, kFree };                   // total, free
enum class OnShortage { kShrink, kFail };                  // shrink, fail
enum class MemoryKind { kDevice, kUnified, kPinnedHost };  // device, unified, pinned_host
enum class StreamMode { kSingle, kOrdered };               // single, ordered
enum class Sharing { kOff, kFair, kFirstCome };            // off, fair, first_come

// What is checked at every allocation and free, for debugging; docs/debugging.md has
// the cost of each. In text: "debug=guard+poison+leaks"; "none" is the default.
struct DebugChecks {
  bool guard = false;   // red zones before and behind each block, checked when it is freed
  bool poison = false;  // fill patterns when a block is given out and when it is freed
  bool leaks = false;   // what is live at destruction is listed, by tag
  bool stacks = false;  // and where it was allocated; with guard, in reports of damage too

  bool any() const { return guard || poison || leaks || stacks; }
  friend bool operator==(const DebugChecks& a, const DebugChecks& b) {
    return a.guard == b.guard && a.poison == b.poison && a.leaks == b.leaks && a.stacks == b.stacks;
  }
};

struct Policy {
  // The strategy. Default: bfc; elastic with sharing=fair.
  std::optional<Strategy> strategy;

  // Of the device's total memory (see fraction_of). Default 0.75.
  MemoryFraction memory_fraction;

  // Whether the pool is taken at construction. Default: true for bfc, false for
  // the others. bfc with false is on_demand; on_demand with true is an error.
  std::optional<bool> preallocate;

  // Most bytes the allocator may hold, whatever the fraction says. Default:
  // unset (no such limit). Range: at least one granule of the source.
  std::optional<std::size_t> memory_limit;

  // Bytes of the device left to others: contexts, cuDNN, NCCL, other processes.
  // Default 0. The limit is at most total - reserve. With sharing, 0 means 1/64 of
  // the device, at most 1 GiB.
  std::size_t reserve = 0;

  // What memory_fraction is a fraction of. Default total, so that processes
  // started one after another get equal shares.
  FractionOf fraction_of = FractionOf::kTotal;

  // First region of on_demand, in bytes; each next one is twice as large.
  // Default 2 MiB, as in XLA. Range: 256 bytes to 1 TiB.
  std::size_t growth = std::size_t{2} << 20;

  // A chunk is handed out whole if what would be split off is under
  // fragmentation_fraction x limit bytes (and under the request's size).
  // Default 0, which means 128 MiB. Range 0 to 1.
  double fragmentation_fraction = 0.0;

  // on_demand: give wholly free regions back to the device, when a request would
  // otherwise fail. Default false, as in XLA.
  bool garbage_collection = false;

  // How long Allocate waits for memory to be freed before it reports
  // exhaustion. Default 0 (XLA: 10 s). Range 0 to infinity. With sharing, 0 means
  // that it waits up to 30 s for other processes, and for nothing else.
  absl::Duration max_wait = absl::ZeroDuration();

  // What happens when a preallocated pool does not fit: shrink takes 10% less
  // until it does and says so; fail is ResourceExhausted. Default shrink.
  OnShortage on_shortage = OnShortage::kShrink;

  // Default device.
  MemoryKind memory_kind = MemoryKind::kDevice;

  // single: XLA's rule, the caller orders all work as on one compute stream.
  // ordered: a block freed on one stream is handed to another only once the
  // first stream's work is done, or ordered before the other's. Default: ordered
  // on CUDA devices, single elsewhere.
  std::optional<StreamMode> stream_mode;

  // elastic: idle memory that may stay mapped for speed, as a fraction of the
  // highest live bytes so far. 0 is tightest, infinity ("inf") never takes pages
  // back from free ranges. Default 0.05. Range 0 to infinity.
  double slack = 0.05;

  // elastic: how long one Allocate may wait, before it makes memory beyond the slack,
  // for work on freed memory to end. Programs that queue far ahead of the device hold
  // less then. Default 0 (new memory is made at once). Range 0 to infinity.
  absl::Duration reuse_wait = absl::ZeroDuration();

  // elastic: idle pages go back to the device after this long. Default:
  // infinite ("inf", never by themselves). Range 0 to infinity.
  absl::Duration idle_release = absl::InfiniteDuration();

  // cuda_async: freed memory beyond this many bytes goes back to the device when
  // the driver next synchronises. Default: unset (the whole limit if preallocate,
  // else 0).
  std::optional<std::size_t> release_threshold;

  // CUDA: memory is made exportable to other processes. Default false: exportable
  // memory costs one file descriptor a handle.
  bool exportable = false;

  // CUDA: ordinals of devices that may access the memory directly. Default none.
  // In text: "peers=1;2".
  std::vector<int> peers;

  // Keep a cache of small free blocks per thread: much faster with many threads,
  // at the price of XLA's exact placements and some memory held per thread.
  // Default false.
  bool thread_cache = false;

  // Bytes of freed blocks that are held back before reuse, so that frees of freed
  // pointers are caught for longer. Default 0. Range 0 to 1 TiB. For debugging.
  std::size_t quarantine = 0;

  // A file into which every allocation and free is recorded, in RMM's CSV format
  // with columns of our own at the end; gzip if the name ends in .gz. "%p" in it
  // becomes the process's number. Allocators of one process may share a file.
  // Default none. No commas, no control characters, no blanks at either end.
  std::string trace;

  // Keep the time integrals of pool and live bytes, for
  // Fragmentation::mean_pool_over_live, at the price of reading a clock and the
  // statistics at every allocation and free. Default false.
  bool means = false;

  // Checks of memory and leaks. Default none. guard and poison need memory whose bytes
  // can be reached: not a simulated device.
  DebugChecks debug;

  // Whether the processes on a device that share keep an account of it together
  // (sharing.h). off: each for itself. fair: each has a part of the device, by its
  // share; what nobody needs is lent, and idle memory goes to who lacks it.
  // first_come: each takes what its policy says if it is free, and else waits.
  // Default off. With fair, bfc and cuda_async need a share: they cannot give back.
  Sharing sharing = Sharing::kOff;

  // The part of the device that is this process's, of what the reserve leaves. For
  // elastic it is what others cannot keep from it, for the other strategies also the
  // most that they hold; it then stands in for a memory_fraction at its default.
  // Default: unset (an equal part of what others' shares leave). Range: over 0 to 1.
  std::optional<double> share;
};

// Reads "STRATEGY", "STRATEGY:field=value,..." or "field=value,...". Sizes take
// B, KiB, MiB, GiB, TiB (binary) and KB, MB, GB, TB (decimal) with fractions:
// 1.5GiB; durations take ns, us, ms, s, m, h; booleans true/false, 1/0, yes/no,
// on/off in any case. InvalidArgument names the field, the value and what is
// allowed.
absl::StatusOr<Policy> ParsePolicy(std::string_view spec);

// Checks every field's range and every combination. ParsePolicy, PolicyFromEnv
// and MakeAllocator call it.
absl::Status ValidatePolicy(const Policy& policy);

// A text that ParsePolicy turns into an equal policy, in the order above and as
// short as it can be: fields at their defaults are left out.
std::string ToString(const Policy& policy);
std::string_view ToString(Strategy strategy);

bool operator==(const Policy& a, const Policy& b);
inline bool operator!=(const Policy& a, const Policy& b) { return !(a == b); }

// The policy of the environment. HBMALLOC_POLICY wins if it is set; else XLA's
// variables: XLA_PYTHON_CLIENT_PREALLOCATE, XLA_CLIENT_MEM_FRACTION (or
// XLA_PYTHON_CLIENT_MEM_FRACTION), XLA_PYTHON_CLIENT_ALLOCATOR,
// TF_FORCE_UNIFIED_MEMORY. docs/policy.md has every rule. Values that would
// silently mean their opposite in XLA are understood or refused. Unknown
// HBMALLOC_ names, and variables that changed after the first call, are warned
// about once through the log sink.
absl::StatusOr<Policy> PolicyFromEnv();

// One line per field of what PolicyFromEnv gives now, with where each value came
// from, and the variables that are set but not in force. For humans.
std::string DescribePolicyFromEnv();

}  // namespace hbm

#endif  // HBMALLOC_POLICY_H_
