# SPDX-License-Identifier: Apache-2.0
# Libraries the project stands on; scripts/install-dependencies installs them. Nothing is downloaded at build time.
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)
find_package(nlohmann_json 3.10 REQUIRED)
find_package(OpenSSL 3.0 REQUIRED COMPONENTS Crypto)
find_package(Boost 1.74 REQUIRED)
find_path(DROPTEST_RANDOM123_INCLUDE Random123/philox.h REQUIRED)

# Headers of libraries are system headers: our warnings are for our code.
add_library(droptest_random123 INTERFACE)
target_include_directories(droptest_random123 SYSTEM INTERFACE ${DROPTEST_RANDOM123_INCLUDE})
if(DROPTEST_ONLY_C_INTERFACE)
  return()
endif()

find_package(CLI11 2.1 REQUIRED)
find_package(Eigen3 3.4 REQUIRED NO_MODULE)
# oneDNN's own package file asks for OpenCL, which its CPU engine does not need.
find_path(DROPTEST_DNNL_INCLUDE dnnl.hpp REQUIRED)
find_library(DROPTEST_DNNL_LIBRARY dnnl REQUIRED)
add_library(droptest_dnnl INTERFACE)
target_include_directories(droptest_dnnl SYSTEM INTERFACE ${DROPTEST_DNNL_INCLUDE})
target_link_libraries(droptest_dnnl INTERFACE ${DROPTEST_DNNL_LIBRARY})

find_package(OpenMP REQUIRED COMPONENTS CXX)

if(DROPTEST_WITH_GLOO)
  find_package(Gloo REQUIRED CONFIG)
  find_library(DROPTEST_HIREDIS_LIBRARY hiredis REQUIRED)
  find_path(DROPTEST_HIREDIS_INCLUDE hiredis/hiredis.h REQUIRED)
endif()
if(DROPTEST_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()
if(DROPTEST_BUILD_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()
