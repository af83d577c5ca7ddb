# SPDX-License-Identifier: Apache-2.0
# Installs the library where nothing else is, moves it, and builds and runs a
# program against it. FROM says where the library comes from: build (an existing
# build tree), source (built here), or embedded (the consumer builds it itself).
function(run)
  string(JOIN " " line ${ARGN})
  message(STATUS "${line}")
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${WORK_DIR})
file(MAKE_DIRECTORY ${WORK_DIR})
set(common -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_BUILD_TYPE=Release)
set(consumer ${common} -DCMAKE_CXX_STANDARD=${STANDARD} -DCMAKE_CXX_STANDARD_REQUIRED=ON -DPROGRAM=${PROGRAM}
  -DC_PROGRAM=${C_PROGRAM})

if(FROM STREQUAL "embedded")
  run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/embedded -B ${WORK_DIR}/build ${consumer}
    -DHBMALLOC_DIR=${SOURCE_DIR})
  run(${CMAKE_COMMAND} --build ${WORK_DIR}/build --parallel)
  run(${WORK_DIR}/build/program)
  run(${WORK_DIR}/build/c_program)
  return()
endif()

if(FROM STREQUAL "source")
  set(BINARY_DIR ${WORK_DIR}/library)
  run(${CMAKE_COMMAND} -S ${SOURCE_DIR} -B ${BINARY_DIR} ${common} -DBUILD_SHARED_LIBS=${SHARED}
    -DHBMALLOC_CUDA=${CUDA} -DHBMALLOC_BUILD_TESTS=OFF -DHBMALLOC_BUILD_BENCHMARKS=OFF)
  run(${CMAKE_COMMAND} --build ${BINARY_DIR} --parallel)
endif()
run(${CMAKE_COMMAND} --install ${BINARY_DIR} --prefix ${WORK_DIR}/staged)
file(RENAME ${WORK_DIR}/staged ${WORK_DIR}/moved)

# Nothing installed may name the place where it was built.
file(GLOB_RECURSE texts ${WORK_DIR}/moved/*.cmake ${WORK_DIR}/moved/*.pc)
foreach(text IN LISTS texts)
  file(STRINGS ${text} lines)
  foreach(place IN ITEMS ${SOURCE_DIR} ${BINARY_DIR} ${WORK_DIR})
    if(lines MATCHES "${place}")
      message(FATAL_ERROR "${text} names ${place}: the installed tree cannot be moved")
    endif()
  endforeach()
endforeach()

# The installed programs run from where they were moved to.
file(GLOB programs ${WORK_DIR}/moved/bin/hbm-*)
foreach(program IN LISTS programs)
  execute_process(COMMAND ${program} --help OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endforeach()

if(PKG_CONFIG)
  find_program(pkg_config NAMES pkg-config pkgconf REQUIRED)
  file(GLOB_RECURSE pc ${WORK_DIR}/moved/hbmalloc.pc)
  get_filename_component(pc_dir ${pc} DIRECTORY)
  set(ENV{PKG_CONFIG_PATH} ${pc_dir})
  execute_process(COMMAND ${pkg_config} --cflags --libs hbmalloc OUTPUT_VARIABLE flags
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  separate_arguments(flags UNIX_COMMAND "${flags}")
  run(${CXX} -std=c++${STANDARD} ${PROGRAM} ${flags} -o ${WORK_DIR}/program)
  get_filename_component(library_dir ${pc_dir} DIRECTORY)
  run(${CMAKE_COMMAND} -E env LD_LIBRARY_PATH=${library_dir} ${WORK_DIR}/program)
  return()
endif()

run(${CMAKE_COMMAND} -S ${CMAKE_CURRENT_LIST_DIR}/installed -B ${WORK_DIR}/build ${consumer}
  -DCMAKE_PREFIX_PATH=${WORK_DIR}/moved)
run(${CMAKE_COMMAND} --build ${WORK_DIR}/build --parallel)
run(${WORK_DIR}/build/program)
run(${WORK_DIR}/build/c_program)
