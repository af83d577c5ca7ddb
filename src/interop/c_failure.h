// SPDX-License-Identifier: Apache-2.0
//
// File: c_failure.h
//
// How C learns of failures: a status, and the calling thread's last failure.
//
//   hbm_status hbm_thing(...) {
//     return Guard([&]() -> absl::Status { ... });
//   }
#ifndef HBMALLOC_INTEROP_C_FAILURE_H_
#define HBMALLOC_INTEROP_C_FAILURE_H_

#include <exception>
#include <new>

#include "absl/status/status.h"
#include "hbmalloc/c_api.h"

namespace hbm::interop {

// Remembers a failure for hbm_last_error; the C number of any status.
hbm_status Fail(const absl::Status& status) noexcept;
// The same where there may be no memory for text.
hbm_status FailPlainly(hbm_status code, const char* literal) noexcept;

// Runs what returns an absl::Status; no exception passes.
template <typename Body>
hbm_status Guard(Body&& body) noexcept {
  try {
    const absl::Status status = body();
    return status.ok() ? HBM_OK : Fail(status);
  } catch (const std::bad_alloc&) {
    return FailPlainly(HBM_RESOURCE_EXHAUSTED, "the host has no memory for the library's own data");
  } catch (const std::exception& error) {
    return FailPlainly(HBM_INTERNAL, error.what());
  } catch (...) {
    return FailPlainly(HBM_INTERNAL, "an unknown exception");
  }
}

}  // namespace hbm::interop

#endif  // HBMALLOC_INTEROP_C_FAILURE_H_
