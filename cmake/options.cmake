# SPDX-License-Identifier: Apache-2.0
# What a user can switch, and the flags that every target of the project shares.
option(DROPTEST_BUILD_TESTS "Build the unit tests" ON)
option(DROPTEST_BUILD_BENCHMARKS "Build the benchmarks" ON)
option(DROPTEST_BUILD_FUZZERS "Build the libFuzzer targets (clang only)" OFF)
option(DROPTEST_ONLY_C_INTERFACE "Configure libdroptest.so alone, which needs fewer libraries (pip install .)" OFF)
if(DROPTEST_ONLY_C_INTERFACE)
  set(DROPTEST_BUILD_TESTS OFF)
  set(DROPTEST_BUILD_BENCHMARKS OFF)
  set(DROPTEST_WITH_GLOO OFF)
  set(DROPTEST_WITH_NCCL OFF)
endif()
set(DROPTEST_PREBUILT_C_INTERFACE "" CACHE FILEPATH
    "libdroptest.so of another build of the same sources, which nothing checks: the Python package takes it, and nothing is compiled")
if(DROPTEST_PREBUILT_C_INTERFACE AND NOT DROPTEST_ONLY_C_INTERFACE)
  message(FATAL_ERROR "DROPTEST_PREBUILT_C_INTERFACE: got ${DROPTEST_PREBUILT_C_INTERFACE} for a build of all targets, "
                      "want it with DROPTEST_ONLY_C_INTERFACE (pip install .)")
endif()
option(DROPTEST_WARNINGS_ARE_ERRORS "Treat compiler warnings as errors" OFF)
option(DROPTEST_WITH_GLOO "Build the Gloo backend (ranks are processes)" ON)
set(DROPTEST_WITH_CUDA AUTO CACHE STRING "Build CUDA code: ON, OFF, or AUTO (where nvcc is found)")
set_property(CACHE DROPTEST_WITH_CUDA PROPERTY STRINGS AUTO ON OFF)
set(DROPTEST_WITH_NCCL AUTO CACHE STRING "Build the NCCL backend: ON, OFF, or AUTO (where CUDA, Gloo and NCCL are)")
set_property(CACHE DROPTEST_WITH_NCCL PROPERTY STRINGS AUTO ON OFF)
set(DROPTEST_TEST_OPTIONS "" CACHE STRING "Compile options of test sources, after all others")
option(DROPTEST_TESTS_BY_NAME "A ctest entry for each test; OFF: a few for each program, each a share of its tests in one process" ON)
option(DROPTEST_ONLY_UNSANITIZED_TESTS "Only the test programs that a build with sanitizers does not replace: labels numerics, fake_cuda, cuda, nccl" OFF)
set(DROPTEST_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them (address,undefined or thread)")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "Build type" FORCE)
endif()
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(DROPTEST_CCACHE ccache)
if(DROPTEST_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${DROPTEST_CCACHE})
endif()
option(DROPTEST_UNITY "Compile sources of one target several at a time, which reads the headers that they share once" ON)
option(DROPTEST_PRECOMPILED_TEST_HEADERS "Precompile GoogleTest and JSON for test sources, which g++ gains nothing by" OFF)

add_library(droptest_flags INTERFACE)
target_compile_features(droptest_flags INTERFACE cxx_std_20)
target_include_directories(droptest_flags INTERFACE ${PROJECT_SOURCE_DIR})
# No contraction into fused multiply-adds: equal sources give equal bits with both compilers.
target_compile_options(droptest_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion
                                                -Wno-sign-conversion -ffp-contract=off>)
# g++ then collects garbage only above 512 MB of heap, which saves a tenth of the time.
target_compile_options(droptest_flags INTERFACE $<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=524288>)
if(DROPTEST_WARNINGS_ARE_ERRORS)
  target_compile_options(droptest_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
# Further options of files whose loops are written to vectorise, which -O2 of GCC 12 does not do; they change no value.
# Sanitizers make a compilation with -O3 minutes long, and the code no better tested.
set(DROPTEST_VECTORISED -fno-math-errno -fno-trapping-math)
if(NOT DROPTEST_SANITIZE)
  list(PREPEND DROPTEST_VECTORISED $<$<NOT:$<CONFIG:Debug>>:-O3>)
endif()

# droptest_unity(<target>... BATCH <number> [ALONE <source>...]): compiles sources of the targets so many at a time (0: all at once),
# which reads the headers that they share once. Names in unnamed namespaces then have to differ. A source is ALONE if it
# shares such a name with another source, or if one of its types outside of an unnamed namespace has a member of such a type.
function(droptest_unity)
  cmake_parse_arguments(ARG "" "BATCH" "ALONE" ${ARGN})
  if(ARG_ALONE)
    set_source_files_properties(${ARG_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
  if(DROPTEST_UNITY)
    set_target_properties(${ARG_UNPARSED_ARGUMENTS} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${ARG_BATCH})
  endif()
endfunction()

# droptest_vectorise(<source>... TESTED_BY <test>...): compiles sources of this folder with DROPTEST_VECTORISED. Sanitized builds
# compile them otherwise, so the tests, paths from the root of the project, are in programs with the label numerics.
function(droptest_vectorise)
  cmake_parse_arguments(ARG "" "" "TESTED_BY" ${ARGN})
  set_source_files_properties(${ARG_UNPARSED_ARGUMENTS} PROPERTIES
    COMPILE_OPTIONS "${DROPTEST_VECTORISED}" SKIP_UNITY_BUILD_INCLUSION ON)
  list(TRANSFORM ARG_TESTED_BY PREPEND "${PROJECT_SOURCE_DIR}/")
  set_property(GLOBAL APPEND PROPERTY DROPTEST_NUMERICS_TESTS ${ARG_TESTED_BY})
endfunction()
if(DROPTEST_SANITIZE)
  set(checks -fsanitize=${DROPTEST_SANITIZE})
  if(DROPTEST_SANITIZE MATCHES address)
    # AddressSanitizer finds most of what the check of objects' sizes would, which takes an eighth of the compile time.
    list(APPEND checks -fno-sanitize=object-size)
  endif()
  target_compile_options(droptest_flags INTERFACE $<$<COMPILE_LANGUAGE:CXX>:${checks}
                                                  -fno-sanitize-recover=all -fno-omit-frame-pointer>)
  target_link_options(droptest_flags INTERFACE -fsanitize=${DROPTEST_SANITIZE})
endif()
