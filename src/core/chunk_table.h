// SPDX-License-Identifier: Apache-2.0
//
// File: chunk_table.h
//
// The record of every chunk, by a small number that is reused when the chunk is
// gone. What every operation needs lies in 32 bytes, so that no record straddles
// a cache line; what only some need lies apart and costs no memory until it is
// first written.
//
//   ChunkTable table;
//   ChunkId id = table.New();          // kNoChunk if the machine has no memory
//   table[id].size = 256;
//   table.Delete(id);
//
// New may move the records: references into the table end there.
#ifndef HBMALLOC_CORE_CHUNK_TABLE_H_
#define HBMALLOC_CORE_CHUNK_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "core/paged_array.h"

namespace hbm::core {

using ChunkId = std::uint32_t;
inline constexpr ChunkId kNoChunk = 0;

// Which work may still use a free chunk: 0 is none, so that it is safe for
// everyone; others are the dense numbers of streams.
using OrderId = std::uint32_t;
inline constexpr OrderId kSafe = 0;

enum class ChunkUse : std::uint8_t {
  kFree,      // in the free index
  kLive,      // a block that a caller holds
  kHeld,      // freed, but kept out of the free index
  kUnbacked,  // addresses with no memory behind them
};

struct Chunk {
  std::uint64_t address = 0;  // a multiple of 256
  std::uint64_t size = 0;     // bytes, a multiple of 256
  ChunkId prev = kNoChunk;    // neighbours in the region, by address
  ChunkId next = kNoChunk;
  // Bytes asked for; bits 63-62: ChunkUse; bit 61: the rare part is in use; bits 60-48:
  // the region's number, which stays for the chunk's life.
  std::uint64_t requested_and_use = 0;

  static constexpr int kUseShift = 62;
  static constexpr std::uint64_t kHasDetails = std::uint64_t{1} << 61;
  static constexpr int kRegionShift = 48;
  static constexpr std::uint32_t kMaxRegion = (1u << 13) - 1;
  static constexpr std::uint64_t kRegionMask = std::uint64_t{kMaxRegion} << kRegionShift;
  static constexpr std::uint64_t kRequestedMask = (std::uint64_t{1} << kRegionShift) - 1;

  std::uint64_t end() const { return address + size; }
  ChunkUse use() const { return static_cast<ChunkUse>(requested_and_use >> kUseShift); }
  bool is_free() const { return requested_and_use >> kUseShift == 0; }
  bool is_live() const {
    return requested_and_use >> kUseShift == static_cast<std::uint64_t>(ChunkUse::kLive);
  }
  std::uint64_t requested() const { return requested_and_use & kRequestedMask; }
  bool has_details() const { return (requested_and_use & kHasDetails) != 0; }

  std::uint32_t region() const {
    return static_cast<std::uint32_t>(requested_and_use >> kRegionShift) & kMaxRegion;
  }
  void SetRegion(std::uint32_t region) {
    requested_and_use = (requested_and_use & ~kRegionMask) | std::uint64_t{region} << kRegionShift;
  }

  void SetFree() { requested_and_use &= kRegionMask; }
  // Free, and in the region of another one.
  void SetFreeBeside(const Chunk& other) {
    requested_and_use = other.requested_and_use & kRegionMask;
  }
  void SetLive(std::uint64_t requested, bool has_details) {
    requested_and_use = (requested_and_use & kRegionMask) |
                        std::uint64_t{static_cast<std::uint64_t>(ChunkUse::kLive)} << kUseShift |
                        (has_details ? kHasDetails : 0) | requested;
  }
  void SetUnbacked() {
    requested_and_use = (requested_and_use & kRegionMask) |
                        std::uint64_t{static_cast<std::uint64_t>(ChunkUse::kUnbacked)} << kUseShift;
  }
  void SetHeld() {
    requested_and_use = (requested_and_use & ~(std::uint64_t{3} << kUseShift)) |
                        std::uint64_t{static_cast<std::uint64_t>(ChunkUse::kHeld)} << kUseShift;
  }
};
static_assert(sizeof(Chunk) == 32);

// The rare part.
struct ChunkDetails {
  // Of a block: the stream it was allocated on. Of a free chunk whose order is not
  // kSafe: the sequence number of its latest free.
  std::uint64_t stream_or_sequence = 0;
  OrderId order = kSafe;
  // Of a block: its tag. Of a free chunk with an order: its neighbours in the
  // queue of that order's frees.
  std::uint32_t tag_or_queue_prev = 0;
  ChunkId queue_next = kNoChunk;
  std::uint32_t unused = 0;
};
static_assert(sizeof(ChunkDetails) == 24);

class ChunkTable {
 public:
  // A record with anything in it, or kNoChunk if there is no memory for it.
  ChunkId New() {
    const ChunkId id = free_list_;
    if (id == kNoChunk) return NewAtEnd();
    free_list_ = chunks_[id].next;
    return id;
  }
  void Delete(ChunkId id) {
    chunks_[id].size = 0;  // nobody's, for IsAt
    chunks_[id].next = free_list_;
    free_list_ = id;
  }
  // Whether the record, which may have been deleted or made anew since it was known, is
  // that of a chunk at this address.
  bool IsAt(ChunkId id, std::uint64_t address) const {
    return chunks_[id].size != 0 && chunks_[id].address == address;
  }
  // Whether the next `count` calls of New succeed; makes room for them if need be.
  bool HasSpare(std::uint32_t count) { return size_ + count <= capacity_ || Reserve(count); }

  // Asks the processor to have the record at hand soon.
  void Prefetch(ChunkId id) { __builtin_prefetch(&chunks_[id], 1); }

  Chunk& operator[](ChunkId id) { return chunks_[id]; }
  const Chunk& operator[](ChunkId id) const { return chunks_[id]; }
  ChunkDetails& details(ChunkId id) { return details_[id]; }
  const ChunkDetails& details(ChunkId id) const { return details_[id]; }

  // Records ever in use at once, the unused first one included.
  std::uint32_t size() const { return size_; }
  // Bytes of memory that records may have touched.
  std::size_t TouchedBytes() const { return size_ * (sizeof(Chunk) + sizeof(ChunkDetails)); }

 private:
  ChunkId NewAtEnd() { return HasSpare(1) ? size_++ : kNoChunk; }
  bool Reserve(std::uint32_t count);

  PagedArray<Chunk> chunks_;
  PagedArray<ChunkDetails> details_;
  ChunkId free_list_ = kNoChunk;
  std::uint32_t size_ = 1;  // record 0 is kNoChunk
  std::uint32_t capacity_ = 0;
};

}  // namespace hbm::core

#endif  // HBMALLOC_CORE_CHUNK_TABLE_H_
