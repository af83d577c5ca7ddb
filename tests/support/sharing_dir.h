// SPDX-License-Identifier: Apache-2.0
//
// File: sharing_dir.h
//
// A directory of a test's own for the files by which processes share devices, so that
// tests see neither each other's nor the machine's.
//
//   testing::SharingDir dir;   // HBMALLOC_SHARING_DIR, until it dies
#ifndef HBMALLOC_TESTS_SUPPORT_SHARING_DIR_H_
#define HBMALLOC_TESTS_SUPPORT_SHARING_DIR_H_

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace hbm::testing {

class SharingDir {
 public:
  SharingDir() {
    char path[] = "/dev/shm/hbmalloc-test-XXXXXX";
    path_ = mkdtemp(path);
    setenv("HBMALLOC_SHARING_DIR", path_.c_str(), 1);
  }
  ~SharingDir() {
    for (const std::string& name : Files()) unlink((path_ + "/" + name).c_str());
    rmdir(path_.c_str());
    unsetenv("HBMALLOC_SHARING_DIR");
  }
  SharingDir(const SharingDir&) = delete;
  SharingDir& operator=(const SharingDir&) = delete;

  const std::string& path() const { return path_; }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    DIR* const dir = opendir(path_.c_str());
    while (const dirent* const entry = dir == nullptr ? nullptr : readdir(dir)) {
      if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    }
    if (dir != nullptr) closedir(dir);
    return names;
  }

 private:
  std::string path_;
};

}  // namespace hbm::testing

#endif  // HBMALLOC_TESTS_SUPPORT_SHARING_DIR_H_
