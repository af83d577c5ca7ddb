// SPDX-License-Identifier: Apache-2.0
#include "core/chunk_table.h"

#include <algorithm>
#include <limits>

namespace hbm::core {

bool ChunkTable::Reserve(std::uint32_t count) {
  constexpr std::uint32_t kMost = std::numeric_limits<std::uint32_t>::max();
  if (count > kMost - size_) return false;
  const std::size_t wanted = std::size_t{size_} + count;
  if (!chunks_.Grow(wanted) || !details_.Grow(wanted)) return false;
  const std::size_t capacity = std::min(chunks_.capacity(), details_.capacity());
  capacity_ = static_cast<std::uint32_t>(std::min<std::size_t>(capacity, kMost));
  return true;
}

}  // namespace hbm::core
