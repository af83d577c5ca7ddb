# SPDX-License-Identifier: Apache-2.0
# Finds what the project stands on: an installed package where there is one, else
# the release named here, pinned by hash.
include(FetchContent)

find_package(Threads REQUIRED)

find_package(absl 20220623 QUIET CONFIG)
if(NOT absl_FOUND)
  message(STATUS "Abseil: not installed, fetching 20240722.0")
  set(ABSL_PROPAGATE_CXX_STD ON)
  set(ABSL_ENABLE_INSTALL ON)
  FetchContent_Declare(absl
    URL https://github.com/abseil/abseil-cpp/archive/refs/tags/20240722.0.tar.gz
    URL_HASH SHA256=f50e5ac311a81382da7fa75b97310e4b9006474f9560ac46f54a9967f07d4ae3)
  FetchContent_MakeAvailable(absl)
endif()

find_package(ZLIB QUIET)
if(NOT ZLIB_FOUND)
  message(STATUS "zlib: not found, .gz traces cannot be read")
endif()

set(HBMALLOC_HAVE_CUDA OFF)
if(NOT HBMALLOC_CUDA STREQUAL "OFF")
  if(HBMALLOC_CUDA STREQUAL "ON")
    find_package(CUDAToolkit REQUIRED)
  else()
    find_package(CUDAToolkit QUIET)
  endif()
  if(CUDAToolkit_FOUND)
    set(HBMALLOC_HAVE_CUDA ON)
    message(STATUS "CUDA Toolkit ${CUDAToolkit_VERSION}: cuda devices are built (a driver is looked up at run time)")
  else()
    message(STATUS "CUDA Toolkit: not found, cuda devices are left out")
  endif()
endif()

if(HBMALLOC_BUILD_TESTS)
  find_package(GTest 1.11 QUIET)
  if(NOT GTest_FOUND)
    message(STATUS "GoogleTest: not installed, fetching 1.14.0")
    FetchContent_Declare(googletest
      URL https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz
      URL_HASH SHA256=8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7)
    FetchContent_MakeAvailable(googletest)
  endif()
endif()
if(HBMALLOC_BUILD_BENCHMARKS)
  find_package(benchmark QUIET)
  if(NOT benchmark_FOUND)
    message(STATUS "Google Benchmark: not installed, fetching 1.8.3")
    set(BENCHMARK_ENABLE_TESTING OFF)
    FetchContent_Declare(googlebenchmark
      URL https://github.com/google/benchmark/archive/refs/tags/v1.8.3.tar.gz
      URL_HASH SHA256=6bc180a57d23d4d9515519f92b0c83d61b05b5bab188961f36ac7b06b0d9e9ce)
    FetchContent_MakeAvailable(googlebenchmark)
  endif()
endif()
