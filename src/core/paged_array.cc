// SPDX-License-Identifier: Apache-2.0
#include "core/paged_array.h"

#include <sys/mman.h>

#include <cstdint>

namespace hbm::core {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr int kProtection = PROT_READ | PROT_WRITE;
constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

void* Map(std::size_t bytes, int protection) {
  void* const pages = mmap(nullptr, bytes, protection, kFlags, -1, 0);
  return pages == MAP_FAILED ? nullptr : pages;
}

// Addresses at a multiple of 2 MiB, with nothing behind them.
char* ReserveAligned(std::size_t bytes) {
  char* const raw = static_cast<char*>(Map(bytes + kHugePage, PROT_NONE));
  if (raw == nullptr) return nullptr;
  const std::size_t past = reinterpret_cast<std::uintptr_t>(raw) % kHugePage;
  const std::size_t head = past == 0 ? 0 : kHugePage - past;
  if (head != 0) munmap(raw, head);
  munmap(raw + head + bytes, kHugePage - head);
  return raw + head;
}

// Small tables stay on small pages, so that a small pool costs little.
void PreferHugePagesBeyondTheFirst(char* pages, std::size_t bytes) {
  if (bytes > kHugePage) madvise(pages + kHugePage, bytes - kHugePage, MADV_HUGEPAGE);
}

}  // namespace

void* AllocatePages(std::size_t bytes) { return GrowPages(nullptr, 0, bytes); }

void* GrowPages(void* pages, std::size_t old_bytes, std::size_t new_bytes) {
  if (new_bytes < kHugePage) {
    if (pages == nullptr) return Map(new_bytes, kProtection);
    void* const moved = mremap(pages, old_bytes, new_bytes, MREMAP_MAYMOVE);
    return moved == MAP_FAILED ? nullptr : moved;
  }
  // Page tables move in steps of 2 MiB where both ends are aligned.
  char* const target = ReserveAligned(new_bytes);
  if (target == nullptr) return nullptr;
  const bool usable = mprotect(target, new_bytes, kProtection) == 0;
  if (!usable ||
      (pages != nullptr &&
       mremap(pages, old_bytes, old_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, target) == MAP_FAILED)) {
    munmap(target, new_bytes);
    return nullptr;
  }
  PreferHugePagesBeyondTheFirst(target, new_bytes);
  return target;
}

void ReleasePages(void* pages, std::size_t bytes) {
  if (pages != nullptr) munmap(pages, bytes);
}

}  // namespace hbm::core
