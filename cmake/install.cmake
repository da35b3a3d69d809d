# SPDX-License-Identifier: Apache-2.0
# What `cmake --install --component python` puts in place: the C interface, in the folder of the Python package.
set(droptest_library $<TARGET_FILE:droptest_c>)
set(droptest_soname $<TARGET_SONAME_FILE_NAME:droptest_c>)
if(DROPTEST_PREBUILT_C_INTERFACE)
  get_directory_property(droptest_library DIRECTORY api DEFINITION DROPTEST_PREBUILT_FILE)
  set(droptest_soname libdroptest.so.${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endif()
install(FILES ${droptest_library} DESTINATION droptest/lib RENAME ${droptest_soname}
        PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE
        COMPONENT python)
install(FILES api/droptest.h DESTINATION droptest/lib COMPONENT python)  # for droptest.torch.build
if(DROPTEST_ONLY_C_INTERFACE)
  return()
endif()

# What `cmake --install --component library` puts in place for programs that use the library: the headers by their
# folders, the archives of sim, comm and models, the C interface, a CMake package with the targets droptest::models and
# droptest::c, and droptest.pc for pkg-config.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(droptest_package ${CMAKE_INSTALL_LIBDIR}/cmake/droptest)
install(DIRECTORY sim comm models DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/droptest COMPONENT library
        FILES_MATCHING PATTERN "*.h"
        REGEX "comm/(json|spec|lab)$" EXCLUDE)  # of libraries that are not in the package
install(TARGETS droptest_sim droptest_comm droptest_models
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
install(TARGETS droptest_c LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
install(FILES api/droptest.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT library)
if(TARGET droptest_nccl)
  install(TARGETS droptest_nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library)
endif()
configure_file(cmake/droptest.pc.in ${PROJECT_BINARY_DIR}/droptest.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/droptest.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT library)
configure_package_config_file(cmake/droptest-config.cmake.in ${PROJECT_BINARY_DIR}/droptest-config.cmake
                              INSTALL_DESTINATION ${droptest_package}
                              PATH_VARS CMAKE_INSTALL_LIBDIR CMAKE_INSTALL_INCLUDEDIR)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/droptest-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/droptest-config.cmake ${PROJECT_BINARY_DIR}/droptest-config-version.cmake
        DESTINATION ${droptest_package} COMPONENT library)
