// SPDX-License-Identifier: Apache-2.0
//
// File: embedded_file.h
//
// Text files that were put into the program when it was built, by
// cmake/EmbedFiles.cmake: what page_files.h looks into.
#ifndef HBMALLOC_TOOLS_REPLAY_EMBEDDED_FILE_H_
#define HBMALLOC_TOOLS_REPLAY_EMBEDDED_FILE_H_

#include <cstddef>
#include <string_view>

namespace hbm::replay {

struct EmbeddedFile {
  std::string_view name;
  std::string_view text;
};

extern const EmbeddedFile kEmbeddedFiles[];
extern const std::size_t kEmbeddedFileCount;

}  // namespace hbm::replay

#endif  // HBMALLOC_TOOLS_REPLAY_EMBEDDED_FILE_H_
