// SPDX-License-Identifier: Apache-2.0
//
// However much a caller passes, an error stays readable.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "hbmalloc/hbmalloc.h"

namespace hbm {
namespace {

constexpr std::size_t kMost = 6000;
const std::string kLong(std::size_t{1} << 20, 'x');

void ExpectShort(const absl::Status& status) {
  EXPECT_FALSE(status.ok());
  EXPECT_LE(status.ToString().size(), kMost) << status.ToString().substr(0, 200);
}

TEST(BoundedErrorsTest, LongNamesOfDevices) {
  for (const std::string& spec :
       {kLong, "sim:" + kLong, "sim:1GiB," + kLong, "sim:1GiB,used=" + kLong, "host:" + kLong,
        "cuda:" + kLong, "GPU-" + kLong, "sim:1GiB," + kLong + "=1"}) {
    ExpectShort(OpenDevice(spec).status());
  }
}

TEST(BoundedErrorsTest, LongPolicies) {
  for (const std::string& spec :
       {kLong, kLong + ":", "bfc:" + kLong, "bfc:" + kLong + "=1", "bfc:memory_fraction=" + kLong,
        "bfc:trace=" + kLong, "bfc:strategy=" + kLong, "bfc:peers=" + kLong}) {
    ExpectShort(ParsePolicy(spec).status());
  }
  Policy policy;
  policy.peers.assign(100'000, 7);
  ExpectShort(ValidatePolicy(policy));
  ExpectShort(MakeAllocator(policy, *OpenDevice("sim:1GiB")).status());
  policy.peers.clear();
  policy.trace = "/no/such/" + std::string(4000, 'y');
  ExpectShort(MakeAllocator(policy, *OpenDevice("sim:1GiB")).status());
}

// What a report is made of: tags with long or strange names, peers, a policy that
// says much.
TEST(BoundedErrorsTest, OutOfMemory) {
  Policy policy = *ParsePolicy("bfc:memory_fraction=1,max_wait=1ms");
  for (int ordinal = 0; ordinal < 1000; ++ordinal) policy.peers.push_back(ordinal);
  const auto allocator = MakeAllocator(policy, *OpenDevice("sim:64MiB"));
  ASSERT_TRUE(allocator.ok()) << allocator.status();
  std::vector<void*> blocks;
  for (int i = 0; i < 40; ++i) {
    AllocateOptions options;
    options.tag = RegisterTag(absl::StrCat(i, "\x1b[31m\r\t", kLong));
    blocks.push_back(*(*allocator)->Allocate(static_cast<std::size_t>(1000 * (i + 1)), options));
  }
  AllocateOptions options;
  options.tag = RegisterTag("\x1b[2J" + kLong);
  const absl::Status status = (*allocator)->Allocate(std::size_t{1} << 40, options).status();
  ExpectShort(status);
  for (const char c : std::string(status.message())) {
    EXPECT_TRUE(c == '\n' || static_cast<unsigned char>(c) >= 0x20);
  }
  for (void* const block : blocks) EXPECT_TRUE((*allocator)->Deallocate(block).ok());
}

}  // namespace
}  // namespace hbm
