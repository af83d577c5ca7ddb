// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a sequence of calls, on every strategy and source: after each step the
// allocator agrees with a model of ranges, and no byte of a live block has changed.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "hbmalloc/hbmalloc.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

constexpr std::array<const char*, 14> kPolicies = {"bfc",
                                                   "on_demand",
                                                   "platform",
                                                   "elastic",
                                                   "elastic:slack=0",
                                                   "elastic:slack=inf,idle_release=0",
                                                   "bfc:memory_fraction=0.1-0.9",
                                                   "on_demand:garbage_collection=true,growth=256",
                                                   "on_demand:stream_mode=ordered",
                                                   "elastic:stream_mode=ordered",
                                                   "bfc:thread_cache=true",
                                                   "on_demand:quarantine=64KiB",
                                                   "on_demand:debug=leaks+stacks",
                                                   "bfc:fragmentation_fraction=1"};
constexpr std::array<const char*, 5> kDevices = {"sim:8MiB", "sim:64MiB,lag=1ms", "host:8MiB",
                                                 "host:32MiB", "sim:256MiB,used=200MiB"};

class Bytes : public hbm::testing::FuzzInput {
 public:
  using FuzzInput::FuzzInput;
  // All magnitudes, and around powers of two.
  std::size_t Size() {
    const std::uint8_t shape = Byte();
    const std::size_t power = std::size_t{1} << (shape & 63);
    switch (shape >> 6) {
      case 0:
        return Byte();
      case 1:
        return std::size_t{Byte()} << (shape % 16);
      case 2:
        return power + Byte() - 128;
      default:
        return (power >> 40 == 0 ? power : 4096) + Byte();
    }
  }
};

struct Shadow {
  std::size_t bytes;
  unsigned char value;
};

class Run {
 public:
  Run(const std::string& policy, const std::string& device, bool readable)
      : device_(*hbm::OpenDevice(device)), readable_(readable) {
    auto made = hbm::MakeAllocator(*hbm::ParsePolicy(policy), device_);
    if (made.ok()) allocator_ = *std::move(made);
  }

  void Step(Bytes& bytes) {
    if (allocator_ == nullptr) return;
    switch (bytes.Byte() % 16) {
      case 0:
        allocator_->Trim({bytes.Size(), absl::ZeroDuration()}).status().IgnoreError();
        break;
      case 1:
        allocator_->SetMemoryLimit(bytes.Size()).IgnoreError();
        break;
      case 2:
        BadPointer(bytes);
        break;
      case 3:
        CheckSnapshot();
        break;
      case 4:
        if (auto* const clock = device_->simulated_clock()) {
          clock->AdvanceTo(clock->Now() + absl::Microseconds(std::uint32_t{bytes.Byte()} * 16));
        }
        break;
      case 5:
        Record(bytes);
        break;
      case 6:
      case 7:
      case 8:
      case 9:
      case 10:
        Free(bytes);
        break;
      default:
        Allocate(bytes);
    }
    CheckFigures();
  }

  void End() {
    while (!live_.empty()) FreeAt(live_.begin(), hbm::StreamRef::OfAllocation());
    if (allocator_ == nullptr) return;
    CheckFigures();
    Require(allocator_->GetStats().bytes_in_use == 0);
  }

 private:
  using Live = std::map<std::uintptr_t, Shadow>;

  static hbm::StreamRef Stream(Bytes& bytes) {
    const std::uint8_t choice = bytes.Byte();
    if (choice % 8 == 7) return hbm::StreamRef::Synchronized();
    return hbm::StreamRef::FromHandle(reinterpret_cast<void*>(std::uintptr_t{choice} % 4));
  }

  void Allocate(Bytes& bytes) {
    hbm::AllocateOptions options;
    const std::size_t size = bytes.Size();
    const std::uint8_t flags = bytes.Byte();
    if (flags % 8 == 0) options.alignment = bytes.Size();
    options.contiguous = flags % 16 == 1;
    if (flags % 4 == 2) options.stream = Stream(bytes);
    hbm::AllocError why;
    auto* const block = static_cast<unsigned char*>(allocator_->TryAllocate(size, options, &why));
    if (block == nullptr) {
      Require(size == 0 || why.code != absl::StatusCode::kOk || options.alignment == 0);
      if (why.code == absl::StatusCode::kResourceExhausted) {
        Require(why.cause != hbm::OomCause::kNone);
      }
      return;
    }
    const auto start = reinterpret_cast<std::uintptr_t>(block);
    Require(size != 0 && start % std::max<std::size_t>(options.alignment, 256) == 0);
    const auto after = live_.lower_bound(start);
    Require(after == live_.end() || start + size <= after->first);
    Require(after == live_.begin() ||
            std::prev(after)->first + std::prev(after)->second.bytes <= start);
    const Shadow shadow{size, static_cast<unsigned char>(++allocs_)};
    if (readable_) std::memset(block, shadow.value, size);
    live_.emplace(start, shadow);
    requested_ += static_cast<std::int64_t>(size);
  }

  void FreeAt(Live::iterator block, hbm::StreamRef after) {
    void* const pointer = reinterpret_cast<void*>(block->first);
    if (readable_) {
      const auto* const data = static_cast<const unsigned char*>(pointer);
      const std::size_t size = block->second.bytes;
      Require(data[0] == block->second.value && std::memcmp(data, data + 1, size - 1) == 0);
    }
    Require(allocator_->Deallocate(pointer, after).ok());
    requested_ -= static_cast<std::int64_t>(block->second.bytes);
    ++frees_;
    live_.erase(block);
    Require(!allocator_->Deallocate(pointer).ok());
  }

  Live::iterator Choose(Bytes& bytes) {
    return std::next(live_.begin(), static_cast<std::ptrdiff_t>(bytes.Byte() % live_.size()));
  }

  void Free(Bytes& bytes) {
    if (live_.empty()) return;
    const auto block = Choose(bytes);
    FreeAt(block, bytes.Byte() % 4 == 0 ? Stream(bytes) : hbm::StreamRef::OfAllocation());
  }

  void Record(Bytes& bytes) {
    if (live_.empty()) return;
    const hbm::StreamRef stream = Stream(bytes);
    void* const block = reinterpret_cast<void*>(Choose(bytes)->first);
    Require(allocator_->RecordUse(block, stream).ok() == stream.is_handle());
  }

  void BadPointer(Bytes& bytes) {
    std::uintptr_t address = bytes.Size();
    if (!live_.empty() && address % 2 == 0) address += Choose(bytes)->first;
    if (address == 0) return;
    void* const pointer = reinterpret_cast<void*>(address);
    auto block = live_.upper_bound(address);
    const bool inside = block != live_.begin() &&
                        address - std::prev(block)->first < std::prev(block)->second.bytes;
    // The rounding behind a block may be told as part of it.
    const absl::StatusOr<hbm::BlockInfo> info = allocator_->Describe(pointer);
    Require(info.ok() || !inside);
    if (info.ok()) {
      const auto base = reinterpret_cast<std::uintptr_t>(info->address);
      Require(live_.count(base) != 0 && live_[base].bytes == info->requested_bytes);
      Require(address - base < info->chunk_bytes);
    }
    if (live_.count(address) != 0) return;
    Require(!allocator_->Deallocate(pointer).ok());
    Require(!allocator_->RecordUse(pointer, hbm::StreamRef()).ok());
  }

  void CheckSnapshot() {
    const hbm::Snapshot snapshot = allocator_->TakeSnapshot();
    std::int64_t asked = 0;
    for (const auto& region : snapshot.regions) {
      auto next = reinterpret_cast<std::uintptr_t>(region.range.address);
      for (const auto& chunk : region.chunks) {
        Require(reinterpret_cast<std::uintptr_t>(chunk.address) == next);
        next += chunk.bytes;
        if (chunk.state == hbm::ChunkState::kLive) {
          asked += static_cast<std::int64_t>(chunk.requested_bytes);
        }
      }
      Require(next == reinterpret_cast<std::uintptr_t>(region.range.address) + region.range.bytes);
    }
    Require(asked == requested_);
  }

  void CheckFigures() {
    const hbm::Stats stats = allocator_->GetStats();
    Require(stats.num_allocs == static_cast<std::int64_t>(allocs_) && stats.num_frees == frees_);
    Require(stats.requested_bytes == requested_ && stats.bytes_in_use >= requested_);
    Require(stats.bytes_in_use <= stats.pool_bytes && stats.pool_bytes <= stats.peak_pool_bytes);
    Require(stats.bytes_in_use <= stats.peak_bytes_in_use && stats.pending_bytes >= 0);
    Require(stats.largest_free_block_bytes <= stats.pool_bytes - stats.bytes_in_use);
  }

  std::shared_ptr<hbm::Device> device_;
  const bool readable_;
  std::unique_ptr<hbm::Allocator> allocator_;
  Live live_;
  std::uint64_t allocs_ = 0;
  std::int64_t frees_ = 0;
  std::int64_t requested_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const bool quiet = (hbm::SetLogSink(nullptr), true);
  Require(quiet);
  Bytes bytes(data, size);
  const std::string policy = kPolicies[bytes.Byte() % kPolicies.size()];
  const std::string device = kDevices[bytes.Byte() % kDevices.size()];
  const bool readable = device.compare(0, 4, "host") == 0;
  Run run(policy, device, readable);
  for (int step = 0; !bytes.empty() && step < 2000; ++step) run.Step(bytes);
  run.End();
  return 0;
}
