// SPDX-License-Identifier: Apache-2.0
//
// File: leak_report.h
//
// What was live when its allocator was destroyed, in words: first by tag, then the
// oldest blocks with where they were allocated.
#ifndef HBMALLOC_STRATEGIES_LEAK_REPORT_H_
#define HBMALLOC_STRATEGIES_LEAK_REPORT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "hbmalloc/tag.h"
#include "observe/stack_trace.h"

namespace hbm::strategies {

struct LeakedBlock {
  const void* address = nullptr;
  std::size_t bytes = 0;
  TagId tag;
  std::uint64_t number = 0;  // of the allocation
  observe::StackTrace where;
};

std::string LeakReport(std::vector<LeakedBlock> leaks);

}  // namespace hbm::strategies

#endif  // HBMALLOC_STRATEGIES_LEAK_REPORT_H_
