// SPDX-License-Identifier: Apache-2.0
#include "core/free_index.h"

#include <algorithm>
#include <cstring>

namespace hbm::core {
namespace {

// How many of the sorted keys come before `key`. Without branches: which way a
// comparison goes is a coin toss.
std::uint32_t CountBefore(const FreeKey* keys, std::uint32_t count, FreeKey key) {
  std::uint32_t base = 0;
  std::uint32_t length = count;
  while (length > 1) {
    const std::uint32_t half = length / 2;
    base += half & (0u - static_cast<std::uint32_t>(keys[base + half - 1] < key));
    length -= half;
  }
  return base + static_cast<std::uint32_t>(length != 0 && keys[base] < key);
}

// The key with another number in its last bits.
FreeKey WithId(FreeKey key, std::uint32_t id) { return FreeKey((key.bits() >> 32 << 32) | id); }

// Which child of an inner node may hold `key`: the last that does not start after
// it, whatever the numbers in the last bits.
std::uint32_t ChildFor(const FreeKey* keys, std::uint32_t count, FreeKey key) {
  const std::uint32_t after =
      CountBefore(keys, count, FreeKey((key.bits() >> 32 << 32) + (FreeKey::Bits{1} << 32)));
  return after == 0 ? 0 : after - 1;
}

void MoveKeys(FreeKey* to, const FreeKey* from, std::uint32_t count) {
  std::memmove(static_cast<void*>(to), from, count * sizeof(FreeKey));
}

}  // namespace

bool FreeIndex::GrowNodes(std::uint32_t count) {
  const std::size_t before = std::max<std::size_t>(nodes_.capacity(), 1);
  if (!nodes_.Grow(before + count)) return false;
  spare_nodes_ += static_cast<std::uint32_t>(nodes_.capacity() - before);
  return true;
}

FreeIndex::NodeId FreeIndex::NewNode(bool is_inner) {
  --spare_nodes_;
  NodeId id = free_nodes_;
  if (id != 0) {
    free_nodes_ = nodes_[id].next_free;
  } else {
    id = num_nodes_++;
  }
  nodes_[id].count = 0;
  nodes_[id].is_inner = is_inner;
  return id;
}

void FreeIndex::DeleteNode(NodeId id) {
  nodes_[id].next_free = free_nodes_;
  free_nodes_ = id;
  ++spare_nodes_;
}

FreeKey FreeIndex::FirstInTree(NodeId root) const {
  const Node* node = &nodes_[root];
  while (node->is_inner) node = &nodes_[node->keys[0].id()];
  return node->keys[0];
}

FreeKey FreeIndex::LastInTree(NodeId root) const {
  const Node* node = &nodes_[root];
  while (node->is_inner) node = &nodes_[node->keys[node->count - 1].id()];
  return node->keys[node->count - 1];
}

FreeKey FreeIndex::LowerBoundInTree(FreeKey head, FreeKey from) const {
  const Node* node = &nodes_[head.id()];
  NodeId after = 0;  // the subtree that follows the path, at the lowest level that has one
  while (node->is_inner) {
    const std::uint32_t child = ChildFor(node->keys, node->count, from);
    if (child + 1 < node->count) after = node->keys[child + 1].id();
    node = &nodes_[node->keys[child].id()];
  }
  const std::uint32_t position = CountBefore(node->keys, node->count, from);
  if (position < node->count) return node->keys[position];
  return after != 0 ? FirstInTree(after) : FreeKey();
}

FreeKey FreeIndex::Largest() const {
  for (std::uint32_t word = kWords; word-- > 0;) {
    if (words_[word] == 0) continue;
    const auto top = 63 - static_cast<std::uint32_t>(__builtin_clzll(words_[word]));
    const FreeKey head = bins_[word * 64 + top];
    return IsTree(head) ? LastInTree(head.id()) : head;
  }
  return FreeKey();
}

// Moves the upper half of a full node into a new one.
FreeIndex::NodeId FreeIndex::SplitNode(NodeId id) {
  const NodeId right_id = NewNode(nodes_[id].is_inner != 0);
  Node& left = nodes_[id];
  Node& right = nodes_[right_id];
  right.count = left.count / 2;
  left.count -= right.count;
  MoveKeys(right.keys, left.keys + left.count, right.count);
  return right_id;
}

// Puts a new root above a full one and splits that.
FreeIndex::NodeId FreeIndex::SplitRoot(NodeId root) {
  const NodeId above = NewNode(true);
  const NodeId right = SplitNode(root);
  Node& node = nodes_[above];
  node.count = 2;
  node.keys[0] = WithId(nodes_[root].keys[0], root);
  node.keys[1] = WithId(nodes_[right].keys[0], right);
  return above;
}

void FreeIndex::InsertIntoTree(std::uint32_t bin, FreeKey key) {
  const FreeKey head = bins_[bin];
  if (!IsTree(head)) {
    const NodeId leaf = NewNode(false);
    nodes_[leaf].count = 2;
    nodes_[leaf].keys[0] = std::min(head, key);
    nodes_[leaf].keys[1] = std::max(head, key);
    bins_[bin] = TreeHead(leaf);
    AddTo(in_trees_, head);
    AddTo(in_trees_, key);
    return;
  }
  AddTo(in_trees_, key);
  NodeId root = head.id();
  if (nodes_[root].count == kFanout) {
    root = SplitRoot(root);
    bins_[bin] = TreeHead(root);
  }
  // Full nodes are split on the way down, so that a parent always has room.
  Node* node = &nodes_[root];
  while (node->is_inner) {
    std::uint32_t child = ChildFor(node->keys, node->count, key);
    const NodeId child_id = node->keys[child].id();
    if (key < node->keys[child]) node->keys[child] = WithId(key, child_id);
    if (nodes_[child_id].count == kFanout) {
      const NodeId right = SplitNode(child_id);
      const FreeKey separator = WithId(nodes_[right].keys[0], right);
      MoveKeys(node->keys + child + 2, node->keys + child + 1, node->count - child - 1);
      node->keys[child + 1] = separator;
      ++node->count;
      if (!(key < WithId(separator, 0))) ++child;
    }
    node = &nodes_[node->keys[child].id()];
  }
  const std::uint32_t position = CountBefore(node->keys, node->count, key);
  MoveKeys(node->keys + position + 1, node->keys + position, node->count - position);
  node->keys[position] = key;
  ++node->count;
}

// Makes a child that has no key to spare larger, by merging it with a neighbour or
// by taking keys from it.
void FreeIndex::FixUnderfull(Node& parent, std::uint32_t position) {
  const std::uint32_t left_position = position + 1 < parent.count ? position : position - 1;
  const NodeId left_id = parent.keys[left_position].id();
  const NodeId right_id = parent.keys[left_position + 1].id();
  Node& left = nodes_[left_id];
  Node& right = nodes_[right_id];
  const std::uint32_t total = left.count + right.count;
  if (total <= kMergeKeys) {
    MoveKeys(left.keys + left.count, right.keys, right.count);
    left.count = total;
    DeleteNode(right_id);
    MoveKeys(parent.keys + left_position + 1, parent.keys + left_position + 2,
             parent.count - left_position - 2);
    --parent.count;
    return;
  }
  const std::uint32_t new_left = total / 2;
  if (new_left > left.count) {
    const std::uint32_t moved = new_left - left.count;
    MoveKeys(left.keys + left.count, right.keys, moved);
    MoveKeys(right.keys, right.keys + moved, right.count - moved);
  } else {
    const std::uint32_t moved = left.count - new_left;
    MoveKeys(right.keys + moved, right.keys, right.count);
    MoveKeys(right.keys, left.keys + new_left, moved);
  }
  left.count = new_left;
  right.count = total - new_left;
  parent.keys[left_position + 1] = WithId(right.keys[0], right_id);
}

void FreeIndex::EraseFromTree(std::uint32_t bin, FreeKey key) {
  TakeFrom(in_trees_, key);
  NodeId root = bins_[bin].id();
  Node* node = &nodes_[root];
  while (node->is_inner) {
    std::uint32_t child = ChildFor(node->keys, node->count, key);
    if (nodes_[node->keys[child].id()].count <= kMinKeys) {
      FixUnderfull(*node, child);
      child = ChildFor(node->keys, node->count, key);
      if (node->count == 1) {  // the root, whose two children became one
        const NodeId only = node->keys[0].id();
        DeleteNode(root);
        root = only;
        bins_[bin] = TreeHead(root);
        node = &nodes_[root];
        continue;
      }
    }
    node = &nodes_[node->keys[child].id()];
  }
  const std::uint32_t position = CountBefore(node->keys, node->count, key);
  MoveKeys(node->keys + position, node->keys + position + 1, node->count - position - 1);
  --node->count;
  if (node->count == 1 && node == &nodes_[root]) {
    bins_[bin] = node->keys[0];
    TakeFrom(in_trees_, bins_[bin]);
    DeleteNode(root);
  }
}

void FreeIndex::AddSums(Sums* sums) const {
  for (std::size_t i = 0; i < sums->size(); ++i) {
    (*sums)[i].count += in_trees_[i].count;
    (*sums)[i].units += in_trees_[i].units;
  }
  for (std::uint32_t word = 0; word < kWords; ++word) {
    for (std::uint64_t bits = words_[word]; bits != 0; bits &= bits - 1) {
      const FreeKey head = bins_[word * 64 + static_cast<std::uint32_t>(__builtin_ctzll(bits))];
      if (!IsTree(head)) AddTo(*sums, head);
    }
  }
}

std::size_t FreeIndex::TouchedBytes() const { return sizeof(*this) + num_nodes_ * sizeof(Node); }

}  // namespace hbm::core
