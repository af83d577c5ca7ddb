// SPDX-License-Identifier: Apache-2.0
#include "interop/c_failure.h"

#include <string>

#include "hbmalloc/out_of_memory.h"

namespace hbm::interop {
namespace {

struct LastFailure {
  std::string text;
  OomCause cause = OomCause::kNone;
};

LastFailure& Last() {
  thread_local LastFailure last;
  return last;
}

}  // namespace

hbm_status Fail(const absl::Status& status) noexcept {
  const auto code = static_cast<hbm_status>(status.code());
  try {
    Last().cause = GetOomCause(status);
    Last().text.assign(status.message().data(), status.message().size());
  } catch (...) {
    Last().text.clear();
  }
  return code;
}

hbm_status FailPlainly(hbm_status code, const char* literal) noexcept {
  try {
    Last().cause = OomCause::kNone;
    Last().text = literal;
  } catch (...) {
    Last().text.clear();
  }
  return code;
}

}  // namespace hbm::interop

const char* hbm_last_error(void) { return hbm::interop::Last().text.c_str(); }

hbm_oom_cause hbm_last_oom_cause(void) {
  return static_cast<hbm_oom_cause>(hbm::interop::Last().cause);
}

const char* hbm_status_name(hbm_status status) {
  static const char* const kNames[] = {"ok",
                                       "cancelled",
                                       "unknown",
                                       "invalid argument",
                                       "deadline exceeded",
                                       "not found",
                                       "already exists",
                                       "permission denied",
                                       "resource exhausted",
                                       "failed precondition",
                                       "aborted",
                                       "out of range",
                                       "unimplemented",
                                       "internal",
                                       "unavailable",
                                       "data loss"};
  if (status < 0 || status >= static_cast<hbm_status>(sizeof(kNames) / sizeof(kNames[0]))) {
    return "no status of this library";
  }
  return kNames[status];
}
