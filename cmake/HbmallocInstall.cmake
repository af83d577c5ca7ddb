# SPDX-License-Identifier: Apache-2.0
# cmake --install: headers, library, programs, a relocatable package config and a
# pkg-config file. Install components: runtime, development, tools.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(HBMALLOC_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/hbmalloc)

install(TARGETS hbmalloc EXPORT hbmallocTargets
  RUNTIME COMPONENT runtime
  LIBRARY COMPONENT runtime NAMELINK_COMPONENT development
  ARCHIVE COMPONENT development)
# Beside a static library, the same as a shared one: for C, dlopen, Python and PyTorch.
get_target_property(library_type hbmalloc TYPE)
if(library_type STREQUAL "STATIC_LIBRARY")
  install(TARGETS hbmalloc_shared EXPORT hbmallocTargets
    LIBRARY COMPONENT runtime NAMELINK_COMPONENT development)
  target_include_directories(hbmalloc_shared INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
endif()
# For PYTHONPATH; the package finds the library as the loader does, or by HBMALLOC_LIBRARY.
install(DIRECTORY src/interop/python/hbmalloc DESTINATION ${CMAKE_INSTALL_DATADIR}/hbmalloc/python
  COMPONENT runtime FILES_MATCHING PATTERN "*.py")
install(DIRECTORY include/hbmalloc DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT runtime)
install(EXPORT hbmallocTargets NAMESPACE hbmalloc:: DESTINATION ${HBMALLOC_CMAKE_DIR}
  COMPONENT development)

set(HBMALLOC_INSTALLED_TOOLS "")
if(HBMALLOC_BUILD_TOOLS)
  get_property(HBMALLOC_INSTALLED_TOOLS DIRECTORY src/tools PROPERTY BUILDSYSTEM_TARGETS)
  list(FILTER HBMALLOC_INSTALLED_TOOLS INCLUDE REGEX "^hbm-")
  if(HBMALLOC_INSTALLED_TOOLS)
    # The library is found from wherever the tree is moved to.
    file(RELATIVE_PATH to_library /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
    set_target_properties(${HBMALLOC_INSTALLED_TOOLS} PROPERTIES INSTALL_RPATH "$ORIGIN/${to_library}")
    install(TARGETS ${HBMALLOC_INSTALLED_TOOLS} RUNTIME COMPONENT tools)
  endif()
endif()

# What find_package(hbmalloc COMPONENTS ...) may ask for.
set(HBMALLOC_COMPONENTS "")
if(HBMALLOC_HAVE_CUDA)
  list(APPEND HBMALLOC_COMPONENTS cuda)
endif()
if(ZLIB_FOUND)
  list(APPEND HBMALLOC_COMPONENTS gzip)
endif()
if(HBMALLOC_INSTALLED_TOOLS)
  list(APPEND HBMALLOC_COMPONENTS tools)
endif()
configure_package_config_file(cmake/hbmallocConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/hbmallocConfig.cmake
  INSTALL_DESTINATION ${HBMALLOC_CMAKE_DIR} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/hbmallocConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/hbmallocConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/hbmallocConfigVersion.cmake
  DESTINATION ${HBMALLOC_CMAKE_DIR} COMPONENT development)

# A static library's users link what it stands on; a shared one brings it along.
set(HBMALLOC_PC_REQUIRES "absl_status absl_statusor absl_time")
set(HBMALLOC_PC_PRIVATE "absl_strings absl_str_format absl_flat_hash_map absl_symbolize")
set(HBMALLOC_PC_LIBS_PRIVATE "${CMAKE_THREAD_LIBS_INIT} -ldl")
if(ZLIB_FOUND)
  string(APPEND HBMALLOC_PC_PRIVATE " zlib")
endif()
get_target_property(library_type hbmalloc TYPE)
if(library_type STREQUAL "STATIC_LIBRARY")
  string(APPEND HBMALLOC_PC_REQUIRES " ${HBMALLOC_PC_PRIVATE}")
  set(HBMALLOC_PC_LIBS "${HBMALLOC_PC_LIBS_PRIVATE}")
  set(HBMALLOC_PC_PRIVATE "")
  set(HBMALLOC_PC_LIBS_PRIVATE "")
endif()
file(RELATIVE_PATH HBMALLOC_PC_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
configure_file(cmake/hbmalloc.pc.in ${CMAKE_CURRENT_BINARY_DIR}/hbmalloc.pc @ONLY)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/hbmalloc.pc
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
