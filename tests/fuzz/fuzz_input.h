// SPDX-License-Identifier: Apache-2.0
//
// File: fuzz_input.h
//
// What fuzz targets share: bytes to take one after the other, and a condition that ends
// the process, with its line, where it does not hold.
#ifndef HBMALLOC_TESTS_FUZZ_FUZZ_INPUT_H_
#define HBMALLOC_TESTS_FUZZ_FUZZ_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace hbm::testing {

inline void RequireAt(bool condition, int line) {
  if (condition) return;
  std::fprintf(stderr, "line %d is broken\n", line);
  std::abort();
}

// The input; zeroes after its end.
class FuzzInput {
 public:
  FuzzInput(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool empty() const { return size_ == 0; }
  std::uint8_t Byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

}  // namespace hbm::testing

#define Require(condition) ::hbm::testing::RequireAt(condition, __LINE__)

#endif  // HBMALLOC_TESTS_FUZZ_FUZZ_INPUT_H_
