// SPDX-License-Identifier: Apache-2.0
//
// File: stack_trace.h
//
// Where a thread is: taken cheaply, put into words only when somebody reads them.
//
//   const StackTrace here = StackTrace::Take(/*skip=*/1);
//   log(here.ToString("    "));          // one line per frame
#ifndef HBMALLOC_OBSERVE_STACK_TRACE_H_
#define HBMALLOC_OBSERVE_STACK_TRACE_H_

#include <array>
#include <string>
#include <string_view>

namespace hbm::observe {

class StackTrace {
 public:
  StackTrace() = default;
  // The calling thread's innermost frames, without Take itself and `skip` more.
  static StackTrace Take(int skip);

  bool empty() const { return depth_ == 0; }
  // Names where symbols are known, else the module and the offset in it.
  std::string ToString(std::string_view indent) const;

 private:
  static constexpr int kMaxDepth = 24;
  std::array<void*, kMaxDepth> frames_ = {};
  int depth_ = 0;
};

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_STACK_TRACE_H_
