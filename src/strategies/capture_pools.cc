// SPDX-License-Identifier: Apache-2.0
#include "strategies/capture_pools.h"

#include <algorithm>

namespace hbm::strategies {
namespace {

// A block that is larger than this many times the request is kept for a larger one.
constexpr std::size_t kMostTimesTooLarge = 2;

bool Holds(const CapturePools::Block& block, CapturePool pool) {
  return std::find(block.pools.begin(), block.pools.end(), pool.id) != block.pools.end();
}

bool IsOnlyOf(const CapturePools::Block& block, CapturePool pool) {
  return block.pools.size() == 1 && block.pools.front() == pool.id;
}

}  // namespace

bool CapturePools::Open(CapturePool* pool, StreamRef stream, std::uint64_t stream_id) {
  if (pool->id == 0) {
    pool->id = ++last_pool_;
  } else if (!IsKnown(*pool) || IsOpen(*pool)) {
    return false;
  }
  pools_[pool->id] = true;
  open_.push_back({*pool, stream, stream_id});
  return true;
}

bool CapturePools::IsOpen(CapturePool pool) const {
  const auto found = pools_.find(pool.id);
  return found != pools_.end() && found->second;
}

bool CapturePools::Close(CapturePool pool) {
  if (!IsOpen(pool)) return false;
  pools_[pool.id] = false;
  open_.erase(std::find_if(open_.begin(), open_.end(),
                           [&](const OpenPool& open) { return open.pool.id == pool.id; }));
  return true;
}

const CapturePools::Block* CapturePools::Find(std::uintptr_t address) const {
  const auto found = blocks_.find(address);
  return found == blocks_.end() ? nullptr : &found->second;
}

bool CapturePools::Add(CapturePool pool, const Block& block) {
  Block& known = blocks_.emplace(block.address, block).first->second;
  if (known.kept) return false;
  if (!Holds(known, pool)) known.pools.push_back(pool.id);
  return true;
}

void CapturePools::CountKept(const Block& block, int sign) {
  kept_chunk_bytes_ += sign * static_cast<std::int64_t>(block.chunk_bytes);
  extra_requested_ -= sign * static_cast<std::int64_t>(block.requested);
}

bool CapturePools::Keep(std::uintptr_t address, bool is_reusable) {
  Block& block = blocks_.at(address);
  if (block.kept) return false;
  block.kept = true;
  if (is_reusable && block.pools.size() == 1) reusable_.insert(KeyOf(block));
  CountKept(block, 1);
  ++extra_frees_;
  return true;
}

std::uintptr_t CapturePools::TakeKept(CapturePool pool, StreamRef stream, std::size_t bytes,
                                      std::size_t alignment, TagId tag) {
  auto at = reusable_.lower_bound({pool.id, stream.value(), bytes, 0});
  for (;; ++at) {
    if (at == reusable_.end()) return 0;
    const auto& [its_pool, its_stream, capacity, address] = *at;
    if (its_pool != pool.id || its_stream != stream.value()) return 0;
    if (capacity / kMostTimesTooLarge > bytes) return 0;
    if (address % alignment == 0) break;
  }
  Block& block = blocks_.at(std::get<3>(*at));
  reusable_.erase(at);
  CountKept(block, -1);
  extra_requested_ += static_cast<std::int64_t>(bytes) - static_cast<std::int64_t>(block.requested);
  ++extra_allocs_;
  block.requested = bytes;
  block.tag = tag;
  block.kept = false;
  return block.address;
}

std::vector<CapturePools::Block> CapturePools::BlocksOnlyOf(CapturePool pool) const {
  std::vector<Block> blocks;
  for (const auto& [address, block] : blocks_) {
    if (IsOnlyOf(block, pool)) blocks.push_back(block);
  }
  return blocks;
}

void CapturePools::Leave(CapturePool pool) {
  for (auto& [address, block] : blocks_) {
    if (!IsOnlyOf(block, pool)) {
      block.pools.erase(std::remove(block.pools.begin(), block.pools.end(), pool.id),
                        block.pools.end());
    }
  }
}

void CapturePools::Remove(std::uintptr_t address) {
  const auto found = blocks_.find(address);
  if (found == blocks_.end()) return;
  const Block& block = found->second;
  if (!block.pools.empty()) reusable_.erase(KeyOf(block));
  if (block.kept) {
    // From here on the strategy counts the free.
    CountKept(block, -1);
    --extra_frees_;
  }
  extra_requested_ -=
      static_cast<std::int64_t>(block.requested) - static_cast<std::int64_t>(block.counted);
  blocks_.erase(found);
}

void CapturePools::AddTo(Stats* stats) const {
  stats->num_allocs += extra_allocs_;
  stats->num_frees += extra_frees_;
  stats->bytes_in_use -= kept_chunk_bytes_;
  stats->pending_bytes += kept_chunk_bytes_;
  stats->requested_bytes += extra_requested_;
}

}  // namespace hbm::strategies
