# SPDX-License-Identifier: Apache-2.0
# Sets DROPTEST_CUDNN to whether attention by cuDNN is built: where CUDA code is, with cuDNN's headers and those of its
# frontend, which scripts/install-dependencies brings. The library itself is opened at run time. DROPTEST_CUDNN_MISSING
# says why not.
set(DROPTEST_CUDNN OFF)
set(DROPTEST_CUDNN_MISSING "")
if(NOT DROPTEST_CUDA)
  set(DROPTEST_CUDNN_MISSING "CUDA code is not built")
else()
  find_path(DROPTEST_CUDNN_INCLUDE cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  if(NOT EXISTS "${DROPTEST_CUDNN_FRONTEND_INCLUDE}/cudnn_frontend_version.h")
    unset(DROPTEST_CUDNN_FRONTEND_INCLUDE CACHE)  # of an earlier version, which is gone
  endif()
  find_path(DROPTEST_CUDNN_FRONTEND_INCLUDE cudnn_frontend_version.h HINTS "${PROJECT_SOURCE_DIR}/.cache/cudnn-frontend-1.32.0/include")
  if(NOT DROPTEST_CUDNN_INCLUDE)
    set(DROPTEST_CUDNN_MISSING "cudnn.h is not found")
  elseif(NOT DROPTEST_CUDNN_FRONTEND_INCLUDE)
    set(DROPTEST_CUDNN_MISSING "the headers of cuDNN's frontend are not found (scripts/install-dependencies brings them)")
  else()
    file(STRINGS "${DROPTEST_CUDNN_FRONTEND_INCLUDE}/cudnn_frontend_version.h" numbers
         REGEX "^#define CUDNN_FRONTEND_(MAJOR|MINOR|PATCH)_VERSION ")
    string(REGEX REPLACE "^[^0-9]*([0-9]+);[^0-9]*([0-9]+);[^0-9]*([0-9]+)$" "\\1.\\2.\\3" DROPTEST_CUDNN_FRONTEND_VERSION
                         "${numbers}")
    if(DROPTEST_CUDNN_FRONTEND_VERSION VERSION_LESS 1.32)
      set(DROPTEST_CUDNN_MISSING "cuDNN's frontend ${DROPTEST_CUDNN_FRONTEND_VERSION} is older than 1.32")
    endif()
  endif()
endif()
if(DROPTEST_CUDNN_MISSING)
  message(STATUS "droptest: attention by cuDNN is OFF: ${DROPTEST_CUDNN_MISSING}")
else()
  set(DROPTEST_CUDNN ON)
  message(STATUS "droptest: attention by cuDNN is ON, with cuDNN's frontend ${DROPTEST_CUDNN_FRONTEND_VERSION}")
endif()
