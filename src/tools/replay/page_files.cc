// SPDX-License-Identifier: Apache-2.0
#include "tools/replay/page_files.h"

#include "tools/replay/embedded_file.h"

namespace hbm::replay {

std::string_view PageFile(std::string_view name) {
  for (std::size_t i = 0; i < kEmbeddedFileCount; ++i) {
    if (kEmbeddedFiles[i].name == name) return kEmbeddedFiles[i].text;
  }
  return {};
}

std::string PageScripts() {
  constexpr std::string_view kEnding = ".js";
  std::string scripts;
  for (std::size_t i = 0; i < kEmbeddedFileCount; ++i) {
    const auto& [name, text] = kEmbeddedFiles[i];
    if (name.size() > kEnding.size() && name.substr(name.size() - kEnding.size()) == kEnding) {
      scripts += text;
    }
  }
  return scripts;
}

}  // namespace hbm::replay
