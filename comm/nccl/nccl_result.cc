// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_result.h"

#include <string_view>

namespace droptest::comm {
namespace {

std::string_view result_name(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "ncclSuccess";
    case ncclUnhandledCudaError:
      return "ncclUnhandledCudaError";
    case ncclSystemError:
      return "ncclSystemError";
    case ncclInternalError:
      return "ncclInternalError";
    case ncclInvalidArgument:
      return "ncclInvalidArgument";
    case ncclInvalidUsage:
      return "ncclInvalidUsage";
    case ncclRemoteError:
      return "ncclRemoteError";
    case ncclInProgress:
      return "ncclInProgress";
    default:
      return "unknown result";
  }
}

std::string last_words(ncclComm_t comm) {
  const char* text = ncclGetLastError(comm);
  return text == nullptr ? "" : text;
}

}  // namespace

bool is_error(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

std::string result_text(ncclResult_t result, ncclComm_t comm) {
  std::string text = std::string(result_name(result)) + ": " + ncclGetErrorString(result);
  const std::string words = last_words(comm);
  return words.empty() ? text : text + ": " + words;
}

std::string init_failure_text(ncclResult_t result, ncclComm_t comm) {
  const bool refused = result == ncclInvalidUsage && last_words(comm).find("Duplicate GPU") != std::string::npos;
  if (!refused) return result_text(result, comm);
  return "two ranks are on one GPU (" + last_words(comm) +
         "), which NCCL refuses; start one rank for each GPU, or use backend \"local\", whose ranks share a GPU";
}

}  // namespace droptest::comm
