# SPDX-License-Identifier: Apache-2.0
# Sets DROPTEST_CUDA to whether CUDA sources are compiled; DROPTEST_WITH_CUDA=AUTO means "where nvcc is found".
include(CheckLanguage)
set(DROPTEST_CUDA OFF)
if(DROPTEST_WITH_CUDA STREQUAL "AUTO")
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(DROPTEST_CUDA ON)
  endif()
elseif(DROPTEST_WITH_CUDA)
  set(DROPTEST_CUDA ON)
endif()
if(DROPTEST_CUDA)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)  # code for sm_80 and sm_90, PTX of the latter for newer ones
  endif()
  if(DROPTEST_CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${DROPTEST_CCACHE})
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit REQUIRED)
endif()
message(STATUS "droptest: CUDA sources are ${DROPTEST_CUDA}")

# CMake 3.25 knows no C++20 for CUDA, so the flag is passed by hand.
function(droptest_cuda_flags target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 -Xcompiler=-Wall,-Wextra>)
endfunction()

# droptest_cuda_unity(<variable> <source.cu>...): sets the variable to one source that includes those of this folder, or,
# without DROPTEST_UNITY, to the sources, whose names have to differ. nvcc takes four seconds for a small source and two
# architectures, because it reads CUDA's headers four times; the kernels take half a second of it.
function(droptest_cuda_unity variable)
  set(sources ${ARGN})
  if(DROPTEST_UNITY)
    file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
    list(TRANSFORM sources PREPEND "#include \"${folder}/")
    list(TRANSFORM sources APPEND "\"\n")
    list(JOIN sources "" content)
    set(sources "${CMAKE_CURRENT_BINARY_DIR}/${variable}.cu")
    file(CONFIGURE OUTPUT "${sources}" CONTENT "${content}" @ONLY)
  endif()
  set(${variable} ${sources} PARENT_SCOPE)
endfunction()
