// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/embedding.md, compiled and run; and the page holds nothing
// else: each of its C++ blocks stands in this file, line by line.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "hbmalloc/hbmalloc.h"
#include "tests/support/paths.h"

// clang-format off
namespace {

absl::Status AllocateAndFree() {
  absl::StatusOr<std::shared_ptr<hbm::Device>> device = hbm::OpenDevice("sim:80GiB");
  if (!device.ok()) return device.status();
  absl::StatusOr<hbm::Policy> policy = hbm::ParsePolicy("bfc:memory_fraction=0.5");
  if (!policy.ok()) return policy.status();
  absl::StatusOr<std::unique_ptr<hbm::Allocator>> allocator = hbm::MakeAllocator(*policy, *device);
  if (!allocator.ok()) return allocator.status();

  absl::StatusOr<void*> block = (*allocator)->Allocate(64 << 20);
  if (!block.ok()) return block.status();
  return (*allocator)->Deallocate(*block);
}

// A runtime's own memory: here a budget over the C library's.
class ArenaSource : public hbm::MemorySource {
 public:
  explicit ArenaSource(std::size_t bytes) : total_(bytes) {}

  std::string_view Name() const override { return "my arena"; }

  absl::StatusOr<hbm::MemoryInfo> GetMemoryInfo() override {
    return hbm::MemoryInfo{total_, total_ - held_};
  }

  absl::StatusOr<hbm::MemoryRange> AllocateRegion(std::size_t bytes) override {
    if (bytes == 0 || bytes > total_ - held_) return absl::ResourceExhaustedError("arena is full");
    bytes = (bytes + 255) / 256 * 256;
    void* const address = std::aligned_alloc(256, bytes);
    if (address == nullptr) return absl::ResourceExhaustedError("no memory on this machine");
    held_ += bytes;
    return hbm::MemoryRange{address, bytes};
  }

  absl::Status ReleaseRegion(hbm::MemoryRange region) override {
    std::free(region.address);
    held_ -= region.bytes;
    return absl::OkStatus();
  }

  bool IsHostAccessible() const override { return true; }

 private:
  const std::size_t total_;  // a multiple of 256
  std::size_t held_ = 0;
};

absl::StatusOr<std::unique_ptr<hbm::Allocator>> MakeArenaAllocator() {
  absl::StatusOr<hbm::Policy> policy = hbm::ParsePolicy("on_demand:memory_fraction=1");
  if (!policy.ok()) return policy.status();
  return hbm::MakeAllocator(*policy, std::make_shared<ArenaSource>(64 << 20));
}

// Frees caches and tries again, where memory is what is missing.
absl::StatusOr<void*> AllocateOrEvict(hbm::Allocator& allocator, std::size_t bytes,
                                      void (*evict)()) {
  absl::StatusOr<void*> block = allocator.Allocate(bytes);
  if (block.ok() || hbm::GetOomCause(block.status()) == hbm::OomCause::kNone) return block;
  evict();
  return allocator.Allocate(bytes);
}

}  // namespace
// clang-format on

namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// The contents of the ```cpp blocks of a page.
std::vector<std::string> CppBlocks(const std::string& page) {
  const std::string open = "```cpp\n";
  std::vector<std::string> blocks;
  for (std::size_t at = page.find(open); at != std::string::npos; at = page.find(open, at)) {
    at += open.size();
    const std::size_t end = page.find("```", at);
    blocks.push_back(page.substr(at, end - at));
    at = end + 3;
  }
  return blocks;
}

TEST(Embedding, ThePageShowsWhatIsCompiledHere) {
  const std::vector<std::string> blocks =
      CppBlocks(ReadFile(hbm::testing::SourcePath("docs/embedding.md")));
  const std::string here = ReadFile(hbm::testing::SourcePath("tests/examples/embedding_test.cc"));
  EXPECT_EQ(blocks.size(), 3u);
  for (const std::string& block : blocks) {
    EXPECT_NE(here.find(block), std::string::npos) << "not in this file:\n" << block;
  }
}

TEST(Embedding, TenLinesAllocateAndFree) {
  const absl::Status status = AllocateAndFree();
  EXPECT_TRUE(status.ok()) << status;
}

TEST(Embedding, StrategiesWorkOverAnOwnSource) {
  absl::StatusOr<std::unique_ptr<hbm::Allocator>> allocator = MakeArenaAllocator();
  ASSERT_TRUE(allocator.ok()) << allocator.status();
  absl::StatusOr<void*> block = (*allocator)->Allocate(1 << 20);
  ASSERT_TRUE(block.ok()) << block.status();
  std::fill_n(static_cast<char*>(*block), 1 << 20, 'x');
  EXPECT_EQ((*allocator)->GetStats().bytes_limit, 64 << 20);
  const absl::StatusOr<void*> too_much = (*allocator)->Allocate(65 << 20);
  EXPECT_EQ(hbm::GetOomCause(too_much.status()), hbm::OomCause::kLimit) << too_much.status();
  EXPECT_TRUE((*allocator)->Deallocate(*block).ok());
}

hbm::Allocator* evicted_from = nullptr;
void* evictable = nullptr;

TEST(Embedding, EvictsAndTriesAgain) {
  absl::StatusOr<std::unique_ptr<hbm::Allocator>> allocator = MakeArenaAllocator();
  ASSERT_TRUE(allocator.ok()) << allocator.status();
  evicted_from = allocator->get();
  evictable = *(*allocator)->Allocate(40 << 20);
  const auto evict = [] { EXPECT_TRUE(evicted_from->Deallocate(evictable).ok()); };
  const absl::StatusOr<void*> block = AllocateOrEvict(**allocator, 40 << 20, evict);
  ASSERT_TRUE(block.ok()) << block.status();
  EXPECT_TRUE((*allocator)->Deallocate(*block).ok());
}

}  // namespace
