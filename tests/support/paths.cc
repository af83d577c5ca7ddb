// SPDX-License-Identifier: Apache-2.0
#include "tests/support/paths.h"

namespace hbm::testing {

// The one file that is compiled with a path of the machine, so that a compiler cache
// can serve all others to any checkout.
std::string SourcePath(std::string_view relative) {
  return std::string(HBMALLOC_SOURCE_DIR "/").append(relative);
}

}  // namespace hbm::testing
