# SPDX-License-Identifier: Apache-2.0
# cmake --install: headers, library, programs, and a relocatable package config.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS hbmalloc EXPORT hbmallocTargets)
install(DIRECTORY include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT hbmallocTargets NAMESPACE hbmalloc:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/hbmalloc)
configure_package_config_file(cmake/hbmallocConfig.cmake.in
  ${CMAKE_CURRENT_BINARY_DIR}/hbmallocConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/hbmalloc)
write_basic_package_version_file(${CMAKE_CURRENT_BINARY_DIR}/hbmallocConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_CURRENT_BINARY_DIR}/hbmallocConfig.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/hbmallocConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/hbmalloc)
