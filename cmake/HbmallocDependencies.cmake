# SPDX-License-Identifier: Apache-2.0
# Finds what the project stands on: a target that the including project already
# has, else an installed package, else the release named here, pinned by hash.
include(FetchContent)

find_package(Threads REQUIRED)

# ---- Abseil: 20220623 or newer ------------------------------------------------
# Its package config takes only the exact version, so a newer one that is
# installed is asked for by the number that the first search came across.
set(HBMALLOC_ABSL_VERSION "")
if(NOT TARGET absl::status)
  find_package(absl 20220623 QUIET CONFIG)
  foreach(version IN LISTS absl_CONSIDERED_VERSIONS)
    if(NOT absl_FOUND AND version VERSION_GREATER 20220623)
      find_package(absl ${version} QUIET CONFIG)
    endif()
  endforeach()
  if(absl_FOUND)
    set(HBMALLOC_ABSL_VERSION ${absl_VERSION})
    message(STATUS "Abseil ${absl_VERSION}: ${absl_DIR}")
  else()
    message(STATUS "Abseil: none installed that is new enough, fetching 20240722.0")
    set(HBMALLOC_ABSL_VERSION 20240722)
    set(ABSL_PROPAGATE_CXX_STD ON)
    set(ABSL_ENABLE_INSTALL ${HBMALLOC_INSTALL})
    if(NOT CMAKE_CXX_STANDARD)
      set(CMAKE_CXX_STANDARD 17)  # Abseil's types depend on it
    endif()
    set(hbmalloc_position_independent ${CMAKE_POSITION_INDEPENDENT_CODE})
    set(CMAKE_POSITION_INDEPENDENT_CODE ON)
    FetchContent_Declare(absl SYSTEM
      URL https://github.com/abseil/abseil-cpp/archive/refs/tags/20240722.0.tar.gz
      URL_HASH SHA256=f50e5ac311a81382da7fa75b97310e4b9006474f9560ac46f54a9967f07d4ae3
      DOWNLOAD_EXTRACT_TIMESTAMP OFF)
    FetchContent_MakeAvailable(absl)
    set(CMAKE_POSITION_INDEPENDENT_CODE ${hbmalloc_position_independent})
  endif()
endif()

# ---- zlib and the CUDA Toolkit: used when found -------------------------------
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

# ---- Tests and benchmarks only ------------------------------------------------
if(HBMALLOC_BUILD_TESTS AND NOT TARGET GTest::gtest)
  find_package(GTest 1.11 QUIET)
  if(NOT GTest_FOUND)
    message(STATUS "GoogleTest: not installed, fetching 1.14.0")
    set(INSTALL_GTEST OFF)
    FetchContent_Declare(googletest SYSTEM
      URL https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz
      URL_HASH SHA256=8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7
      DOWNLOAD_EXTRACT_TIMESTAMP OFF)
    FetchContent_MakeAvailable(googletest)
  endif()
endif()
if(HBMALLOC_BUILD_BENCHMARKS AND NOT TARGET benchmark::benchmark)
  find_package(benchmark QUIET)
  if(NOT benchmark_FOUND)
    message(STATUS "Google Benchmark: not installed, fetching 1.8.3")
    set(BENCHMARK_ENABLE_TESTING OFF)
    set(BENCHMARK_ENABLE_INSTALL OFF)
    FetchContent_Declare(googlebenchmark SYSTEM
      URL https://github.com/google/benchmark/archive/refs/tags/v1.8.3.tar.gz
      URL_HASH SHA256=6bc180a57d23d4d9515519f92b0c83d61b05b5bab188961f36ac7b06b0d9e9ce
      DOWNLOAD_EXTRACT_TIMESTAMP OFF)
    FetchContent_MakeAvailable(googlebenchmark)
  endif()
endif()
