// SPDX-License-Identifier: Apache-2.0
//
// A library that holds hbmalloc is loaded, used and unloaded, again and again: threads
// and forks afterwards find nothing of it that is gone.
#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include "gtest/gtest.h"

namespace {

TEST(DlcloseTest, TheLibraryMayBeUnloadedAndLoadedAgain) {
  for (int round = 0; round < 10; ++round) {
    void* const plugin = dlopen(HBMALLOC_TEST_PLUGIN, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(plugin, nullptr) << dlerror();
    auto* const use = reinterpret_cast<int (*)()>(dlsym(plugin, "UseEverything"));
    ASSERT_NE(use, nullptr);
    EXPECT_EQ(use(), 0);
    std::thread([use] { EXPECT_EQ(use(), 0); }).join();
    EXPECT_EQ(dlclose(plugin), 0);
    // What it registered for threads' and forks' sake went with it.
    std::thread([] {}).join();
    const pid_t child = fork();
    if (child == 0) _exit(0);
    int status = 1;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

}  // namespace
