// SPDX-License-Identifier: Apache-2.0
#include "strategies/debug_bytes.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace hbm::strategies {
namespace {

constexpr std::size_t kPiece = std::size_t{1} << 20;

bool IsAll(const unsigned char* data, unsigned char value, std::size_t bytes) {
  // The first byte is right, and every other equals the one before it.
  return bytes == 0 || (data[0] == value && std::memcmp(data, data + 1, bytes - 1) == 0);
}

void Look(const unsigned char* data, unsigned char value, std::size_t bytes, std::size_t offset,
          Damage* damage) {
  if (IsAll(data, value, bytes)) return;
  for (std::size_t i = 0; i < bytes; ++i) {
    if (data[i] != value) {
      if (damage->count++ == 0) damage->first = offset + i;
      damage->last = offset + i;
    }
    if (damage->count != 0 && damage->num_found < damage->found.size()) {
      damage->found[damage->num_found++] = data[i];
    }
  }
}

}  // namespace

std::string ToString(const Damage& damage) {
  std::string text =
      absl::StrCat(damage.count, damage.count == 1 ? " byte is" : " bytes are", " overwritten, ");
  if (damage.count == 1) {
    absl::StrAppend(&text, "at offset ", damage.first);
  } else {
    absl::StrAppend(&text, "from offset ", damage.first, " to ", damage.last);
  }
  absl::StrAppend(&text, "; there is");
  const std::size_t shown = std::min(damage.num_found, damage.last - damage.first + 1);
  for (std::size_t i = 0; i < shown; ++i) absl::StrAppendFormat(&text, " %02x", damage.found[i]);
  return text;
}

DebugBytes::DebugBytes(MemorySource* source)
    : device_(dynamic_cast<sources::MemoryBytes*>(source)), host_(source->IsHostAccessible()) {}

absl::Status DebugBytes::Fill(void* address, unsigned char value, std::size_t bytes,
                              StreamRef after) const {
  if (bytes == 0) return absl::OkStatus();
  if (device_ != nullptr) return device_->Fill(address, value, bytes, after);
  std::memset(address, value, bytes);
  return absl::OkStatus();
}

absl::StatusOr<Damage> DebugBytes::Compare(const void* address, unsigned char value,
                                           std::size_t bytes, StreamRef after) const {
  Damage damage;
  const auto* const data = static_cast<const unsigned char*>(address);
  if (device_ == nullptr) {
    Look(data, value, bytes, 0, &damage);
    return damage;
  }
  std::vector<unsigned char> copy(std::min(bytes, kPiece));
  for (std::size_t done = 0; done < bytes; done += copy.size()) {
    const std::size_t piece = std::min(copy.size(), bytes - done);
    absl::Status read = device_->Read(data + done, copy.data(), piece, after);
    if (!read.ok()) return read;
    Look(copy.data(), value, piece, done, &damage);
  }
  return damage;
}

}  // namespace hbm::strategies
