# SPDX-License-Identifier: Apache-2.0
# Every option of the build, and what follows from it for each target.

option(HBMALLOC_BUILD_TESTS "Build the tests" ${PROJECT_IS_TOP_LEVEL})
option(HBMALLOC_BUILD_BENCHMARKS "Build the micro-benchmarks" ${PROJECT_IS_TOP_LEVEL})
option(HBMALLOC_BUILD_TOOLS "Build the installed programs (hbm-replay)" ${PROJECT_IS_TOP_LEVEL})
option(HBMALLOC_INSTALL "Generate the install rules" ${PROJECT_IS_TOP_LEVEL})
option(HBMALLOC_WERROR "Treat compiler warnings as errors" OFF)
option(HBMALLOC_FUZZ "Build libFuzzer targets (needs clang)" OFF)
option(HBMALLOC_COVERAGE "Instrument for line coverage (gcov)" OFF)
set(HBMALLOC_CUDA "AUTO" CACHE STRING "CUDA devices: AUTO (when a toolkit is found), ON or OFF")
set_property(CACHE HBMALLOC_CUDA PROPERTY STRINGS AUTO ON OFF)
set(HBMALLOC_SANITIZE "" CACHE STRING "Sanitizers: empty, address,undefined or thread")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES AND PROJECT_IS_TOP_LEVEL)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(HBMALLOC_SANITIZE)
  add_compile_options(-fsanitize=${HBMALLOC_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${HBMALLOC_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-maybe-uninitialized)  # wrong about the standard library's <regex> then
  endif()
endif()
if(HBMALLOC_COVERAGE)
  add_compile_options(--coverage -O0 -fprofile-update=atomic)
  add_link_options(--coverage)
endif()

# Flags for the project's own targets; nothing leaks to those who link us.
function(hbmalloc_target_defaults target)
  target_compile_features(${target} PUBLIC cxx_std_17)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wshadow -Wconversion -Wsign-conversion -Wnon-virtual-dtor
      -Woverloaded-virtual -Wcast-qual -Wold-style-cast>
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:Clang>>:-Wthread-safety>)
  if(HBMALLOC_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
  endif()
endfunction()
