// SPDX-License-Identifier: Apache-2.0
//
// The C interface with any arguments that a C program can pass short of memory that is
// not its own: every call ends with a status, and an error leaves a text.
//
// Input: a line with the policy, a line with the device, then calls of a byte each with
// the bytes of their arguments behind them.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "hbmalloc/c_api.h"
#include "tests/fuzz/fuzz_input.h"

namespace {

class Input : public hbm::testing::FuzzInput {
 public:
  using FuzzInput::FuzzInput;
  // Small ones mostly, and those that are near an edge.
  std::uint64_t Number() {
    const std::uint8_t kind = Byte();
    const std::uint64_t low = Byte();
    const std::uint64_t value = low | std::uint64_t{Byte()} << 8;
    switch (kind % 8) {
      case 0:
        return value & 0xFF;
      case 1:
        return value << 8;
      case 2:
        return std::uint64_t{1} << (value % 64);
      case 3:
        return (std::uint64_t{1} << (value % 64)) - 1;
      case 4:
        return (std::uint64_t{1} << (value % 64)) + 1;
      case 5:
        return ~std::uint64_t{0} - value;
      case 6:
        return value << 48 | value;
      default:
        return value;
    }
  }
  std::string Line() {
    std::string line;
    while (!empty()) {
      const char next = static_cast<char>(Byte());
      if (next == '\n' || next == '\0') break;
      line += next;
    }
    return line;
  }
};

hbm_status Checked(hbm_status status) {
  Require(hbm_status_name(status) != nullptr);
  if (status != HBM_OK) Require(std::strlen(hbm_last_error()) != 0);
  return status;
}

// Only devices of addresses: what any number names there is no memory of this process.
std::string DeviceFor(std::string line) {
  if (line.find("host") != std::string::npos || line.find("shared") != std::string::npos)
    return "sim:64MiB";
  return line.empty() ? "sim:64MiB" : line;
}

class Session {
 public:
  explicit Session(Input* input) : input_(*input) {}

  void Create(const std::string& policy, const std::string& device) {
    hbm_allocator* made = reinterpret_cast<hbm_allocator*>(this);
    const hbm_status status = Checked(hbm_allocator_create(policy.c_str(), device.c_str(), &made));
    Require((status == HBM_OK) == (made != nullptr));
    if (made != nullptr) hbm_allocator_destroy(allocator_), allocator_ = made, blocks_.clear();
    Require(hbm_policy(allocator_) != nullptr);
  }
  void End() { Checked(hbm_allocator_destroy(allocator_)); }

  void Call() {
    switch (input_.Byte() % 16) {
      case 0: {
        void* block = nullptr;
        const std::uint64_t bytes = input_.Number();
        Keep(Checked(hbm_allocate(allocator_, bytes, input_.Number(), Stream(), &block)), block);
        break;
      }
      case 1:
      case 2:
        if (!blocks_.empty()) {
          const std::size_t at = input_.Byte() % blocks_.size();
          if (Checked(hbm_deallocate(allocator_, blocks_[at], Stream())) == HBM_OK) {
            blocks_[at] = blocks_.back();
            blocks_.pop_back();
          }
        }
        break;
      case 3:
        Checked(hbm_deallocate(allocator_, Address(), Stream()));
        Recount();
        break;
      case 4: {
        // As large as a struct of any version may be, so that any size is the caller's own.
        struct {
          hbm_allocate_options options;
          unsigned char later_fields[4096];
        } given = {HBM_INIT(hbm_allocate_options), {}};
        hbm_allocate_options& options = given.options;
        if (input_.Byte() % 8 == 0) options.struct_size = input_.Number();
        given.later_fields[input_.Byte() % 64] = input_.Byte() % 4 == 0;
        options.bytes = input_.Number();
        options.alignment = input_.Number();
        options.stream = Stream();
        options.max_wait_ns = input_.Byte() % 2 == 0 ? HBM_WAIT_NEVER : 1000;
        options.tag = static_cast<std::uint32_t>(input_.Number());
        options.flags = input_.Byte();
        void* block = nullptr;
        Keep(Checked(hbm_allocate_ex(allocator_, &options, &block)), block);
        break;
      }
      case 5:
        Checked(hbm_record_use(allocator_, Address(), Stream()));
        break;
      case 6: {
        hbm_block_info info = HBM_INIT(hbm_block_info);
        if (input_.Byte() % 8 == 0) info.struct_size = input_.Number() % sizeof(info);
        Checked(hbm_describe(allocator_, Address(), &info));
        break;
      }
      case 7: {
        std::uint64_t pool = input_.Byte() % 3;
        if (Checked(hbm_begin_capture_pool(allocator_, Stream(), &pool)) == HBM_OK) pool_ = pool;
        break;
      }
      case 8:
        Checked(hbm_end_capture_pool(allocator_, input_.Byte() % 2 == 0 ? pool_ : input_.Number()));
        break;
      case 9:
        Checked(hbm_release_capture_pool(
            allocator_, input_.Byte() % 2 == 0 ? pool_ : input_.Number(), Stream()));
        break;
      case 10: {
        hbm_trim_options options = HBM_INIT(hbm_trim_options);
        options.keep_pool_bytes = input_.Number();
        options.max_wait_ns = input_.Byte();
        hbm_trim_result result = HBM_INIT(hbm_trim_result);
        Checked(hbm_trim(allocator_, input_.Byte() % 2 == 0 ? &options : nullptr,
                         input_.Byte() % 2 == 0 ? &result : nullptr));
        break;
      }
      case 11:
        Checked(hbm_set_memory_limit(allocator_, input_.Number()));
        break;
      case 12: {
        hbm_stats stats = HBM_INIT(hbm_stats);
        if (input_.Byte() % 8 == 0) stats.struct_size = input_.Number() % sizeof(stats);
        Checked(hbm_get_stats(allocator_, &stats));
        hbm_fragmentation fragmentation = HBM_INIT(hbm_fragmentation);
        Checked(hbm_get_fragmentation(allocator_, &fragmentation));
        Checked(hbm_reset_peak_stats(allocator_));
        break;
      }
      case 13:
        Checked(hbm_write_snapshot(allocator_, "/dev/null", input_.Byte() % 5 - 1));
        break;
      case 14:
        hbm_register_tag(input_.Byte() % 4 == 0 ? nullptr : "a tag of the fuzzer's");
        break;
      default: {
        const std::string policy = input_.Line();
        Create(policy, DeviceFor(input_.Line()));
      }
    }
  }

 private:
  hbm_stream Stream() { return HBM_STREAM_(input_.Number()); }
  void* Address() {
    const std::uint8_t kind = input_.Byte();
    if (kind % 2 == 0 || blocks_.empty()) return HBM_STREAM_(input_.Number());
    return static_cast<char*>(blocks_[kind % blocks_.size()]) + (kind % 4 == 1 ? 0 : 256);
  }
  void Keep(hbm_status status, void* block) {
    Require(status == HBM_OK || block == nullptr);
    if (block != nullptr) blocks_.push_back(block);
  }
  // A number may have been one of the blocks.
  void Recount() {
    std::vector<void*> left;
    for (void* const block : blocks_) {
      hbm_block_info info = HBM_INIT(hbm_block_info);
      if (hbm_describe(allocator_, block, &info) == HBM_OK && info.address == block)
        left.push_back(block);
    }
    blocks_.swap(left);
  }

  Input& input_;
  hbm_allocator* allocator_ = nullptr;
  std::vector<void*> blocks_;
  std::uint64_t pool_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  hbm_set_log_callback(nullptr, nullptr);
  Input input(data, size);
  Session session(&input);
  const std::string policy = input.Line();
  session.Create(policy, DeviceFor(input.Line()));
  for (int calls = 0; !input.empty() && calls < 500; ++calls) session.Call();
  session.End();
  return 0;
}
