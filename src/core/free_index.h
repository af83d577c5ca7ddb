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

#include "core/chunk_table.h"
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

  // Requires that the key is there.
  void Erase(FreeKey key) {
    EraseFrom(BinOf(key.units()), key);
    --count_;
  }

  // Erase and Insert at once. Requires Reserve.
  void Replace(FreeKey old_key, FreeKey new_key) {
    const std::uint32_t old_bin = BinOf(old_key.units());
    const std::uint32_t new_bin = BinOf(new_key.units());
    if (old_bin == new_bin && bins_[old_bin] == old_key) {
      bins_[old_bin] = new_key;
      return;
    }
    EraseFrom(old_bin, old_key);
    InsertInto(new_bin, new_key);
  }

  // The first key of at least `size` bytes; !key if there is none.
  FreeKey LowerBound(std::uint64_t size) const { return LowerBound(FreeKey::Make(size, 0, 0)); }
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
    return FirstAfterBin(bin);
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
  static constexpr std::uint64_t kSub = std::uint64_t{1} << kSubBits;
  // Sizes are below 2^40 units of 256 bytes.
  static constexpr std::uint32_t kBins = (40 - kSubBits + 1) << kSubBits;
  static constexpr std::uint32_t kWords = (kBins + 63) / 64;
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

  // Sizes below 2 * kSub units have bins of their own; above, kSub bins share each
  // power of two.
  static std::uint32_t BinOf(std::uint64_t units) {
    const int shift = (63 ^ __builtin_clzll(units | kSub)) - kSubBits;
    return (static_cast<std::uint32_t>(shift) << kSubBits) +
           static_cast<std::uint32_t>(units >> shift);
  }

  void InsertInto(std::uint32_t bin, FreeKey key) {
    if (!bins_[bin]) {
      bins_[bin] = key;
      MarkBin(bin);
    } else {
      InsertIntoTree(bin, key);
    }
  }
  void EraseFrom(std::uint32_t bin, FreeKey key) {
    if (bins_[bin] == key) {
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
  // Without a branch: whether a word becomes empty is hard to foresee.
  void UnmarkBin(std::uint32_t bin) {
    const std::uint32_t word = bin / 64;
    const std::uint64_t bits = words_[word] & ~(std::uint64_t{1} << (bin % 64));
    words_[word] = bits;
    summary_ &= ~(std::uint64_t{bits == 0} << word);
  }

  FreeKey FirstAfterBin(std::uint32_t bin) const {
    std::uint32_t word = bin / 64;
    std::uint64_t bits = words_[word] & (~std::uint64_t{1} << (bin % 64));
    if (bits == 0) {
      const std::uint64_t words = summary_ & (~std::uint64_t{1} << word);
      if (words == 0) return FreeKey();
      word = static_cast<std::uint32_t>(__builtin_ctzll(words));
      bits = words_[word];
    }
    const FreeKey head = bins_[word * 64 + static_cast<std::uint32_t>(__builtin_ctzll(bits))];
    return IsTree(head) ? FirstInTree(head.id()) : head;
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

  std::uint64_t summary_ = 0;
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
