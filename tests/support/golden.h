// SPDX-License-Identifier: Apache-2.0
//
// File: golden.h
//
// The recorded traces in bench/traces, and in tests/golden where XLA's own
// allocator puts every block of them.
//
//   for (const GoldenCase& golden : GoldenCases()) {
//     observe::Trace trace = LoadTrace(golden.trace);
//     std::vector<std::int64_t> offsets = LoadOffsets(golden);
//   }
#ifndef HBMALLOC_TESTS_SUPPORT_GOLDEN_H_
#define HBMALLOC_TESTS_SUPPORT_GOLDEN_H_

#include <cstdint>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "observe/trace.h"

namespace hbm::testing {

// A row of pools.csv; all in bytes but the failures.
struct GoldenPool {
  std::int64_t peak_pool = 0;
  std::int64_t peak_in_use = 0;
  std::int64_t failures = 0;
};

struct GoldenCase {
  std::string trace;     // "random_mixed"
  std::string strategy;  // "bfc" or "on_demand"
  bool pressed = false;  // the device is smaller than the limit
  std::uint64_t limit = 0;
  std::uint64_t capacity = 0;
  std::optional<GoldenPool> pool;  // unset where pools.csv has no row

  std::string Name() const { return trace + "_" + strategy + (pressed ? "_pressed" : ""); }
  std::string File() const;
};
inline void PrintTo(const GoldenCase& golden, std::ostream* out) { *out << golden.Name(); }

// Every golden file there is, in order of name.
const std::vector<GoldenCase>& GoldenCases();

// Both end the test program with a message if a file is missing or malformed.
observe::Trace LoadTrace(const std::string& name);
std::vector<std::int64_t> LoadOffsets(const GoldenCase& golden);

}  // namespace hbm::testing

#endif  // HBMALLOC_TESTS_SUPPORT_GOLDEN_H_
