# SPDX-License-Identifier: Apache-2.0
# What `cmake --install --component library` puts in place for programs that use the library: the headers by their
# folders, the archives of sim, comm and models, and a CMake package with the target droptest::models.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(droptest_package ${CMAKE_INSTALL_LIBDIR}/cmake/droptest)
install(DIRECTORY sim comm models DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/droptest COMPONENT library
        FILES_MATCHING PATTERN "*.h"
        REGEX "comm/(json|spec|lab)$" EXCLUDE)  # of libraries that are not in the package
install(TARGETS droptest_sim droptest_comm droptest_models
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
configure_package_config_file(cmake/droptest-config.cmake.in ${PROJECT_BINARY_DIR}/droptest-config.cmake
                              INSTALL_DESTINATION ${droptest_package}
                              PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/droptest-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/droptest-config.cmake ${PROJECT_BINARY_DIR}/droptest-config-version.cmake
        DESTINATION ${droptest_package} COMPONENT library)
