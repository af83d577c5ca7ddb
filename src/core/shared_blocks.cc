// SPDX-License-Identifier: Apache-2.0
#include "core/shared_blocks.h"

namespace hbm::core {

void SharedBlocks::Put(Table& table, SharedBlock* block) {
  std::size_t i = Hash(block->address.load(std::memory_order_relaxed)) & table.mask;
  while (table.slots[i].load(std::memory_order_relaxed) != nullptr) i = (i + 1) & table.mask;
  table.slots[i].store(block, std::memory_order_release);
}

void SharedBlocks::Publish(std::size_t slots) {
  auto table = std::make_unique<Table>();
  table->mask = slots - 1;
  table->slots = std::make_unique<std::atomic<SharedBlock*>[]>(slots);
  for (std::size_t i = 0; i < slots; ++i) {
    table->slots[i].store(nullptr, std::memory_order_relaxed);
  }
  if (!tables_.empty()) {
    const Table& old = *tables_.back();
    for (std::size_t i = 0; i <= old.mask; ++i) {
      if (SharedBlock* const block = old.slots[i].load(std::memory_order_relaxed)) {
        Put(*table, block);
      }
    }
  }
  table_.store(table.get(), std::memory_order_release);
  tables_.push_back(std::move(table));
}

SharedBlock* SharedBlocks::Add(std::uint64_t address) {
  if (SharedBlock* const known = Find(address)) return known;
  MutexLock lock(mutex_);
  if (SharedBlock* const known = Find(address)) return known;
  if (blocks_.size() >= kMaxBlocks) return nullptr;
  if (2 * (blocks_.size() + 1) > tables_.back()->mask) Publish(2 * (tables_.back()->mask + 1));
  SharedBlock& block = blocks_.emplace_back();
  block.address.store(address, std::memory_order_relaxed);
  Put(*tables_.back(), &block);
  return &block;
}

}  // namespace hbm::core
