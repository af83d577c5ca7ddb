// SPDX-License-Identifier: Apache-2.0
//
// File: page_files.h
//
// The files of page/, as they were when the program was built. Their definitions
// come from cmake/EmbedFiles.cmake.
#ifndef HBMALLOC_TOOLS_REPLAY_PAGE_FILES_H_
#define HBMALLOC_TOOLS_REPLAY_PAGE_FILES_H_

#include <string>
#include <string_view>

namespace hbm::replay {

// The text of one file of page/; empty if there is none of that name.
std::string_view PageFile(std::string_view name);

// All scripts, in the order in which they need each other.
std::string PageScripts();

}  // namespace hbm::replay

#endif  // HBMALLOC_TOOLS_REPLAY_PAGE_FILES_H_
