// SPDX-License-Identifier: Apache-2.0
#include "observe/stack_trace.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <cstdint>

#include "absl/debugging/symbolize.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace hbm::observe {
namespace {

std::string NameOf(const void* frame) {
  std::array<char, 512> name;
  // Less one: the return address may lie behind the last instruction of its function.
  if (absl::Symbolize(static_cast<const char*>(frame) - 1, name.data(), name.size())) {
    return name.data();
  }
  Dl_info module = {};
  if (dladdr(frame, &module) == 0 || module.dli_fname == nullptr) return "(unknown)";
  const auto offset =
      reinterpret_cast<std::uintptr_t>(frame) - reinterpret_cast<std::uintptr_t>(module.dli_fbase);
  return absl::StrFormat("%s+%#x", module.dli_fname, offset);
}

}  // namespace

StackTrace StackTrace::Take(int skip) {
  // The unwinder starts at this function, which nobody wants to read.
  constexpr int kMaxSkip = 8;
  std::array<void*, kMaxDepth + kMaxSkip> all;
  const int first = std::min(skip + 1, kMaxSkip);
  const int taken = backtrace(all.data(), static_cast<int>(all.size()));
  StackTrace trace;
  trace.depth_ = std::clamp(taken - first, 0, kMaxDepth);
  std::copy_n(all.begin() + first, trace.depth_, trace.frames_.begin());
  return trace;
}

std::string StackTrace::ToString(std::string_view indent) const {
  std::string text;
  for (int i = 0; i < depth_; ++i) {
    absl::StrAppend(&text, absl::string_view(indent.data(), indent.size()),
                    NameOf(frames_[static_cast<std::size_t>(i)]), "\n");
  }
  return text;
}

}  // namespace hbm::observe
