// SPDX-License-Identifier: Apache-2.0
#include "observe/oom_report.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "policy/text.h"

namespace hbm::observe {
namespace {

constexpr std::size_t kTopEntries = 5;
constexpr std::size_t kMapColumns = 64;

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

std::string Bytes(std::int64_t bytes) {
  return policy::FormatBytes(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 0)));
}
std::string Bytes(std::size_t bytes) { return policy::FormatBytes(bytes); }

std::string StreamText(StreamRef stream) {
  if (stream.is_synchronized()) return "none (synchronised)";
  if (!stream.is_handle()) return "the block's own";
  if (stream.value() == 0) return "default";
  return absl::StrFormat("0x%x", stream.value());
}

// The field that set the limit, with its value, as a user would write it.
std::string LimitText(const OomReportInput& input) {
  const Policy& policy = input.policy;
  switch (input.stats.limit_source) {
    case LimitSource::kMemoryFraction: {
      const double share = policy.memory_fraction.cap.value_or(policy.memory_fraction.start);
      return absl::StrCat("memory_fraction=", share, " of the device's ",
                          policy.fraction_of == FractionOf::kFree ? "free" : "total", " memory");
    }
    case LimitSource::kMemoryLimit:
      return absl::StrCat("memory_limit=",
                          policy::FormatBytesExact(policy.memory_limit.value_or(0)));
    case LimitSource::kReserve:
      return absl::StrCat("reserve=", policy::FormatBytesExact(policy.reserve),
                          ", which is left to others");
    case LimitSource::kSetMemoryLimit:
      return "SetMemoryLimit";
    case LimitSource::kShortage:
      return "what the device had left when the pool was taken";
    case LimitSource::kShare:
      return absl::StrCat("share=", policy::FormatNumber(policy.share.value_or(0)),
                          " of the device");
  }
  return "the policy";
}

// A tag's name is the caller's: the start of its first line is enough, and nothing in
// it may steer a terminal.
std::string TagText(TagId tag) {
  constexpr std::size_t kShown = 60;
  const std::string_view name = TagName(tag);
  std::string text(name.substr(0, std::min(name.find('\n'), kShown)));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  if (text.empty() && !name.empty()) text = "?";
  return text;
}

// Figures that contradict each other, as seen while others allocate, are no reason
// to overflow.
std::int64_t FreeBytes(const Stats& stats) {
  return std::max<std::int64_t>(stats.pool_bytes, 0) -
         std::max<std::int64_t>(stats.bytes_in_use, 0);
}

// The cause in one sentence.
std::string CauseText(const OomReportInput& input) {
  const Stats& stats = input.stats;
  switch (input.cause) {
    case OomCause::kLimit:
      return absl::StrCat("the policy's limit of ", Bytes(stats.bytes_limit), " (set by ",
                          LimitText(input), ") is reached: ", Bytes(stats.bytes_in_use),
                          " of it in use");
    case OomCause::kFragmentation:
      return absl::StrCat("fragmentation: ", Bytes(FreeBytes(stats)),
                          " of the pool are free, but the largest piece is ",
                          Bytes(stats.largest_free_block_bytes));
    case OomCause::kPending:
      return absl::StrCat(Bytes(stats.pending_bytes),
                          " are freed but held back until the work of other streams is done");
    case OomCause::kOtherProcess:
    case OomCause::kDevice: {
      std::string text = input.cause == OomCause::kDevice ? "the device has no more memory to give"
                                                          : "others on the device hold the memory";
      if (input.device.has_value()) {
        const std::size_t used =
            input.device->total - std::min(input.device->free, input.device->total);
        const auto own = static_cast<std::size_t>(std::max<std::int64_t>(stats.pool_bytes, 0));
        absl::StrAppend(&text, ": of ", Bytes(input.device->total), ", ", Bytes(input.device->free),
                        " are free, this allocator holds ", Bytes(own), " and others ",
                        Bytes(used - std::min(own, used)));
      }
      return text;
    }
    case OomCause::kNone:
      break;
  }
  return "unknown";
}

struct Group {
  std::size_t bytes = 0;
  std::size_t count = 0;
};

// The live groups that hold the most bytes, largest first.
template <typename Key>
std::vector<std::pair<Key, Group>> Top(const std::map<Key, Group>& groups) {
  std::vector<std::pair<Key, Group>> all(groups.begin(), groups.end());
  const std::size_t kept = std::min(kTopEntries, all.size());
  std::partial_sort(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(kept), all.end(),
                    [](const auto& a, const auto& b) {
                      return a.second.bytes != b.second.bytes ? a.second.bytes > b.second.bytes
                                                              : a.first < b.first;
                    });
  all.resize(kept);
  return all;
}

void AppendHolders(const Snapshot& snapshot, std::string* text) {
  std::map<std::size_t, Group> sizes;
  std::map<std::uint32_t, Group> tags;
  for (const Snapshot::Region& region : snapshot.regions) {
    for (const Snapshot::Chunk& chunk : region.chunks) {
      if (chunk.state != ChunkState::kLive) continue;
      for (Group* group : {&sizes[chunk.requested_bytes], &tags[chunk.tag.value]}) {
        group->bytes += chunk.requested_bytes;
        ++group->count;
      }
    }
  }
  if (sizes.empty()) {
    absl::StrAppend(text, "\nlive: nothing");
    return;
  }
  absl::StrAppend(text, "\nlive, the sizes that hold the most:");
  for (const auto& [bytes, group] : Top(sizes)) {
    absl::StrAppendFormat(text, "\n  %10s  %d x %s", Bytes(group.bytes), group.count, Bytes(bytes));
  }
  const bool tagged = tags.size() > 1 || tags.begin()->first != 0;
  if (!tagged) return;
  absl::StrAppend(text, "\nlive, the tags that hold the most:");
  for (const auto& [tag, group] : Top(tags)) {
    const std::string name = TagText(TagId{tag});
    absl::StrAppendFormat(text, "\n  %10s  %s (%d block%s)", Bytes(group.bytes),
                          name.empty() ? "untagged" : name, group.count,
                          group.count == 1 ? "" : "s");
  }
}

std::size_t OffsetIn(const Snapshot::Region& region, const Snapshot::Chunk& chunk) {
  return reinterpret_cast<std::uintptr_t>(chunk.address) -
         reinterpret_cast<std::uintptr_t>(region.range.address);
}

// One character for each 1/64 of the pool, regions one after another.
void AppendMap(const Snapshot& snapshot, std::string* text) {
  std::size_t pool = 0;
  for (const Snapshot::Region& region : snapshot.regions) pool += region.range.bytes;
  if (pool == 0) return;
  std::array<double, kMapColumns> live{};
  std::array<double, kMapColumns> pending{};
  const double column_bytes = static_cast<double>(pool) / kMapColumns;
  std::size_t offset = 0;
  for (const Snapshot::Region& region : snapshot.regions) {
    for (const Snapshot::Chunk& chunk : region.chunks) {
      if (chunk.state != ChunkState::kFree) {
        auto& share = chunk.state == ChunkState::kLive ? live : pending;
        // Not all of the region need be told of.
        const std::size_t start = offset + OffsetIn(region, chunk);
        double at = static_cast<double>(start) / column_bytes;
        const double end = static_cast<double>(start + chunk.bytes) / column_bytes;
        while (at < end) {
          const auto column =
              static_cast<std::size_t>(std::min(at, static_cast<double>(kMapColumns - 1)));
          const double next = std::min(end, static_cast<double>(column) + 1.0);
          if (next <= at) break;
          share[column] += next - at;
          at = next;
        }
      }
    }
    offset += region.range.bytes;
  }
  std::string map;
  for (std::size_t i = 0; i < kMapColumns; ++i) {
    if (live[i] > 0.995) {
      map += '#';
    } else if (pending[i] > live[i]) {
      map += '~';
    } else {
      map += live[i] > 0.5 ? '+' : live[i] + pending[i] > 0.0 ? '-' : '.';
    }
  }
  absl::StrAppend(text, "\nmap, ", Bytes(pool / kMapColumns),
                  " a character (# in use, + mostly, - partly, ~ held back, . free):\n  [", map,
                  "]");
}

// What a user could change, and only what is not so already.
void AppendAdvice(const OomReportInput& input, std::string* text) {
  const Policy& policy = input.policy;
  std::vector<std::string> advice;
  switch (input.cause) {
    case OomCause::kLimit:
      switch (input.stats.limit_source) {
        case LimitSource::kMemoryFraction:
          if (policy.memory_fraction.cap.value_or(policy.memory_fraction.start) < 0.95) {
            advice.emplace_back("raise memory_fraction");
          }
          break;
        case LimitSource::kMemoryLimit:
          advice.emplace_back("raise memory_limit");
          break;
        case LimitSource::kReserve:
          advice.emplace_back("lower reserve");
          break;
        case LimitSource::kSetMemoryLimit:
          advice.emplace_back("call SetMemoryLimit with more");
          break;
        case LimitSource::kShortage:
          advice.emplace_back(
              "end the other users of the device before this process starts, or use "
              "strategy=elastic, which grows when they give memory back");
          break;
        case LimitSource::kShare:
          advice.emplace_back(
              "ask for a larger share, or use strategy=elastic, which may also hold what other "
              "processes do not need");
          break;
      }
      break;
    case OomCause::kFragmentation:
      if (policy.strategy == Strategy::kOnDemand && !policy.garbage_collection) {
        advice.emplace_back(
            "set garbage_collection=true: wholly free regions are given back first");
      }
      if (policy.strategy == Strategy::kOnDemand || policy.strategy == Strategy::kBfc) {
        advice.emplace_back("use strategy=elastic: free pages move to where they are needed");
      }
      break;
    case OomCause::kPending:
      advice.emplace_back(
          "free blocks on the stream that allocates next, or synchronise before freeing");
      break;
    case OomCause::kOtherProcess:
    case OomCause::kDevice:
      advice.emplace_back(
          "give the device's other users less, or this process a device of its own");
      break;
    case OomCause::kNone:
      break;
  }
  if (policy.max_wait == absl::ZeroDuration()) {
    advice.emplace_back("set max_wait if other threads are about to free memory");
  }
  if (advice.empty()) return;
  absl::StrAppend(text, "\nwhat to change:");
  for (const std::string& line : advice) absl::StrAppend(text, "\n  - ", line);
}

}  // namespace

std::string BuildOomReport(const OomReportInput& input) {
  std::string text = absl::StrCat("out of memory: ", Bytes(input.bytes), " (", input.bytes,
                                  " bytes) could not be allocated; cause: ", CauseText(input));
  absl::StrAppend(&text, "\nasked: alignment ", input.alignment, ", stream ",
                  StreamText(input.stream));
  const std::string tag = TagText(input.tag);
  if (!tag.empty()) absl::StrAppend(&text, ", tag ", tag);
  if (!input.attempts.empty()) {
    absl::StrAppend(&text, "\ntried:");
    const std::size_t shown = std::min<std::size_t>(input.attempts.size(), 8);
    for (std::size_t i = 0; i < shown; ++i) {
      absl::StrAppend(&text, i == 0 ? " " : ", ", input.attempts[i].what.substr(0, 80), " (",
                      absl::FormatDuration(input.attempts[i].took), ")");
    }
  }
  const Stats& stats = input.stats;
  const std::string_view strategy = ToString(input.policy.strategy.value_or(Strategy::kBfc));
  absl::StrAppend(&text, "\npool: strategy ", View(strategy), ", holds ", Bytes(stats.pool_bytes),
                  " of at most ", Bytes(stats.bytes_limit), "; in use ", Bytes(stats.bytes_in_use),
                  " (asked for: ", Bytes(stats.requested_bytes), "), free ",
                  Bytes(FreeBytes(stats)), ", largest free piece ",
                  Bytes(stats.largest_free_block_bytes), ", held back ",
                  Bytes(stats.pending_bytes));
  if (input.device.has_value()) {
    absl::StrAppend(&text, "\ndevice: ", Bytes(input.device->total), ", of which free ",
                    Bytes(input.device->free));
  }
  AppendHolders(input.snapshot, &text);
  AppendMap(input.snapshot, &text);
  AppendAdvice(input, &text);
  return text;
}

}  // namespace hbm::observe
