// SPDX-License-Identifier: Apache-2.0
//
// File: free_index.h
//
// The free chunks in order of (size, address), so that the smallest that fits,
// and of those the lowest, is found at once.
//
//   FreeIndex index;
//   index.Insert(FreeKey::Make(size, address, id));
//   FreeKey best = index.LowerBound(size);         // !best: none is large enough
//   index.Erase(best);
//
// Each key holds size, address and chunk in 128 bits, so that comparing reads no
// chunk. Keys lie in bins, 32 for each power of two; a bin's only key lies in the
// bin itself, several lie in a B+-tree of flat nodes. Two levels of bitmaps lead
// from an empty bin to the next one that is not.
#ifndef HBMALLOC_CORE_FREE_INDEX_H_
#define HBMALLOC_CORE_FREE_INDEX_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/bits.h"
#include "core/chunk_table.h"
#include "core/compiler.h"
#include "core/paged_array.h"

namespace hbm::core {

// Sizes and addresses are multiples of 256 below 2^48 and 2^64.
class FreeKey {
 public:
  using Bits = unsigned __int128;

  constexpr FreeKey() = default;
  explicit constexpr FreeKey(Bits bits) : bits_(bits) {}
  static constexpr FreeKey Make(std::uint64_t size, std::uint64_t address, ChunkId id) {
    // [size / 256 : 40][address / 256 : 56][id : 32], in two words.
    const std::uint64_t units = address >> 8;
    return FreeKey(Bits{(size >> 8) << 24 | units >> 32} << 64 | (units << 32 | id));
  }

  explicit constexpr operator bool() const { return bits_ != 0; }
  constexpr Bits bits() const { return bits_; }
  constexpr std::uint64_t units() const { return high() >> 24; }  // of 256 bytes
  constexpr std::uint64_t size() const { return units() << 8; }
  constexpr std::uint64_t address() const { return ((high() & 0xFFFFFF) << 32 | low() >> 32) << 8; }
  constexpr std::uint32_t id() const { return static_cast<std::uint32_t>(low()); }

  friend constexpr bool operator<(FreeKey a, FreeKey b) { return a.bits_ < b.bits_; }
  friend constexpr bool operator==(FreeKey a, FreeKey b) { return a.bits_ == b.bits_; }

 private:
  constexpr std::uint64_t high() const { return static_cast<std::uint64_t>(bits_ >> 64); }
  constexpr std::uint64_t low() const { return static_cast<std::uint64_t>(bits_); }

  Bits bits_ = 0;
};

// The largest size that a key can hold.
inline constexpr std::uint64_t kMaxChunkBytes = (std::uint64_t{1} << 48) - 256;

class FreeIndex {
 public:
  // Makes sure that the next `count` Inserts succeed; false if there is no memory.
  bool Reserve(std::uint32_t count) {
    // One Insert splits at most one node a level and makes one new root.
    return count * (kMaxHeight + 1) <= spare_nodes_ || GrowNodes(count * (kMaxHeight + 1));
  }

  // Requires Reserve, and that the key is not there.
  void Insert(FreeKey key) {
    InsertInto(BinOf(key.units()), key);
    ++count_;
  }

  // A key and where it lies, so that what is found need not be looked for again.
  struct Place {
    FreeKey key;
    std::uint32_t bin;
  };
  // Requires that the key is there, here and below.
  static Place PlaceOf(FreeKey key) { return {key, BinOf(key.units())}; }

  void Erase(FreeKey key) { Erase(PlaceOf(key)); }
  void Erase(Place place) {
    EraseFrom(place.bin, place.key);
    --count_;
  }

  // Erase and Insert at once. Requires Reserve.
  void Replace(FreeKey old_key, FreeKey new_key) { Replace(PlaceOf(old_key), new_key); }
  void Replace(Place old, FreeKey new_key) {
    const std::uint32_t new_bin = BinOf(new_key.units());
    if (old.bin == new_bin && !IsTree(bins_[new_bin])) {
      bins_[new_bin] = new_key;
      return;
    }
    EraseFrom(old.bin, old.key);
    InsertInto(new_bin, new_key);
  }

  // The first key of at least `size` bytes; !key if there is none.
  FreeKey LowerBound(std::uint64_t size) const { return Find(size < 256 ? 256 : size).key; }
  // The same; requires at least 256 bytes.
  Place Find(std::uint64_t size) const {
    const std::uint64_t units = size >> 8;
    const std::uint32_t bin = BinOf(units);
    const FreeKey head = bins_[bin];
    if (head) {
      if (HBM_LIKELY(!IsTree(head))) {
        if (head.units() >= units) return {head, bin};
      } else if (const FreeKey found = LowerBoundInTree(head, FreeKey::Make(size, 0, 0))) {
        return {found, bin};
      }
    }
    return FirstAfterBin(bin);
  }
  // The first key that is not before `from`.
  FreeKey LowerBound(FreeKey from) const {
    const std::uint32_t bin = BinOf(from.units());
    const FreeKey head = bins_[bin];
    if (head) {
      if (!IsTree(head)) {
        if (!(head < from)) return head;
      } else if (const FreeKey found = LowerBoundInTree(head, from)) {
        return found;
      }
    }
    return FirstAfterBin(bin).key;
  }
  // The key after `key`, which need not be there itself.
  FreeKey Next(FreeKey key) const { return LowerBound(FreeKey(key.bits() + 1)); }
  // The last key; !key if there is none.
  FreeKey Largest() const;

  // How many keys there are, and of how many units of 256 bytes, by powers of two:
  // sums[i] is of those of at least 2^i units and less than twice that.
  struct Sum {
    std::uint64_t count = 0;
    std::uint64_t units = 0;
  };
  using Sums = std::array<Sum, 40>;
  // Adds them to `sums`. Takes time proportional to the bins, whatever the keys.
  void AddSums(Sums* sums) const;

  // Calls visit(key) for each key, largest first, until it returns false.
  template <typename Visit>
  void VisitDescending(Visit visit) const {
    for (std::uint32_t word = kWords; word-- > 0;) {
      for (std::uint64_t bits = words_[word]; bits != 0;) {
        const auto top = 63 - static_cast<std::uint32_t>(__builtin_clzll(bits));
        bits &= ~(std::uint64_t{1} << top);
        const FreeKey head = bins_[word * 64 + top];
        if (!(IsTree(head) ? VisitTreeDescending(head.id(), visit) : visit(head))) return;
      }
    }
  }

  std::size_t size() const { return count_; }
  bool empty() const { return count_ == 0; }
  // Bytes of memory that are in use for this index.
  std::size_t TouchedBytes() const;

 private:
  static constexpr int kSubBits = 5;
  // Sizes are below 2^40 units of 256 bytes.
  static constexpr std::uint32_t kBins = 40u << kSubBits;
  static constexpr std::uint32_t kWords = kBins / 64;
  static_assert(kWords <= 64, "one word says which words have bits");
  static constexpr std::uint32_t kFanout = 31;
  // Nodes other than the root keep at least this many keys.
  static constexpr std::uint32_t kMinKeys = 8;
  // Two neighbours with at most this many together become one.
  static constexpr std::uint32_t kMergeKeys = 24;
  // 8^11 is more than 2^32.
  static constexpr std::uint32_t kMaxHeight = 12;

  using NodeId = std::uint32_t;
  // Leaves hold keys. Inner nodes hold, for each child, a key no greater than the
  // child's first and greater than all before it, with the child's number in place
  // of the chunk's.
  struct Node {
    std::uint32_t count;
    std::uint32_t is_inner;
    NodeId next_free;
    std::uint32_t unused;
    FreeKey keys[kFanout];
  };

  // A bin with a tree holds the root's number and no size.
  static bool IsTree(FreeKey head) { return head.units() == 0; }
  static FreeKey TreeHead(NodeId root) { return FreeKey(FreeKey::Bits{root}); }

  // By the power of two and the bits that follow: sizes below 2^6 units have bins of
  // their own. Requires units over 0.
  static std::uint32_t BinOf(std::uint64_t units) { return FloatBits<kSubBits>(units); }

  void InsertInto(std::uint32_t bin, FreeKey key) {
    if (!bins_[bin]) {
      bins_[bin] = key;
      MarkBin(bin);
    } else {
      InsertIntoTree(bin, key);
    }
  }
  void EraseFrom(std::uint32_t bin, FreeKey key) {
    if (HBM_LIKELY(!IsTree(bins_[bin]))) {
      bins_[bin] = FreeKey();
      UnmarkBin(bin);
    } else {
      EraseFromTree(bin, key);
    }
  }

  void MarkBin(std::uint32_t bin) {
    words_[bin / 64] |= std::uint64_t{1} << (bin % 64);
    summary_ |= std::uint64_t{1} << (bin / 64);
  }
  // A word that becomes empty stays in the summary until somebody looks at it: most
  // often a bit comes back first.
  void UnmarkBin(std::uint32_t bin) { words_[bin / 64] &= ~(std::uint64_t{1} << (bin % 64)); }

  Place FirstAfterBin(std::uint32_t bin) const {
    std::uint32_t word = bin / 64;
    std::uint64_t bits = words_[word] & (~std::uint64_t{1} << (bin % 64));
    if (bits == 0) {
      std::uint64_t words = summary_ & (~std::uint64_t{1} << word);
      for (;; words &= words - 1) {
        if (HBM_UNLIKELY(words == 0)) return {FreeKey(), 0};
        word = static_cast<std::uint32_t>(__builtin_ctzll(words));
        bits = words_[word];
        if (HBM_LIKELY(bits != 0)) break;
        summary_ &= ~(std::uint64_t{1} << word);
      }
    }
    bin = word * 64 + static_cast<std::uint32_t>(__builtin_ctzll(bits));
    const FreeKey head = bins_[bin];
    return {HBM_UNLIKELY(IsTree(head)) ? FirstInTree(head.id()) : head, bin};
  }

  template <typename Visit>
  bool VisitTreeDescending(NodeId id, Visit& visit) const {
    const Node& node = nodes_[id];
    for (std::uint32_t i = node.count; i-- > 0;) {
      if (!(node.is_inner ? VisitTreeDescending(node.keys[i].id(), visit) : visit(node.keys[i]))) {
        return false;
      }
    }
    return true;
  }

  static void AddTo(Sums& sums, FreeKey key) {
    Sum& sum = sums[63 - static_cast<std::uint32_t>(__builtin_clzll(key.units()))];
    ++sum.count;
    sum.units += key.units();
  }
  static void TakeFrom(Sums& sums, FreeKey key) {
    Sum& sum = sums[63 - static_cast<std::uint32_t>(__builtin_clzll(key.units()))];
    --sum.count;
    sum.units -= key.units();
  }

  bool GrowNodes(std::uint32_t count);
  NodeId NewNode(bool is_inner);
  void DeleteNode(NodeId id);

  FreeKey FirstInTree(NodeId root) const;
  FreeKey LastInTree(NodeId root) const;
  FreeKey LowerBoundInTree(FreeKey head, FreeKey from) const;
  void InsertIntoTree(std::uint32_t bin, FreeKey key);
  void EraseFromTree(std::uint32_t bin, FreeKey key);
  NodeId SplitNode(NodeId id);
  NodeId SplitRoot(NodeId root);
  void FixUnderfull(Node& parent, std::uint32_t position);

  mutable std::uint64_t summary_ = 0;  // the words that may have bits
  std::size_t count_ = 0;
  std::uint64_t words_[kWords] = {};
  FreeKey bins_[kBins];
  Sums in_trees_;  // of the keys that lie in trees: the others are seen in bins_
  PagedArray<Node> nodes_;
  NodeId free_nodes_ = 0;          // a list
  std::uint32_t num_nodes_ = 1;    // ever in use at once; node 0 is none
  std::uint32_t spare_nodes_ = 0;  // that NewNode can give without growing
};

}  // namespace hbm::core

#endif  // HBMALLOC_CORE_FREE_INDEX_H_
