// SPDX-License-Identifier: Apache-2.0
#include "api/nccl/last_error.h"

#include <cstdio>

#include "api/nccl/real_nccl.h"

namespace droptest::nccl_shim {
namespace {

thread_local std::string own_text;    // empty: the last error is NCCL's
thread_local std::string nccls_text;  // NCCL's text when own_text was made

std::string text_of_nccl(ncclComm_t comm) {
  const char* const text = DROPTEST_REAL(ncclGetLastError, comm);
  return text == nullptr ? "" : text;
}

// 2.8.3 is 2803, 2.28.9 is 22809.
std::string version_of_nccl() {
  int code = 0;
  if (DROPTEST_REAL(ncclGetVersion, &code) != ncclSuccess) return "NCCL";
  const int of_major = code < 10000 ? 1000 : 10000;
  return "NCCL " + std::to_string(code / of_major) + "." + std::to_string(code % of_major / 100) + "." +
         std::to_string(code % 100);
}

}  // namespace

ncclResult_t failed(const std::string& text) {
  nccls_text = text_of_nccl(nullptr);
  own_text = text;
  std::fprintf(stderr, "droptest: %s\n", text.c_str());
  return ncclInvalidUsage;
}

ncclResult_t failed_without(const char* function) {
  return failed(version_of_nccl() + " has no function " + function +
                ", want a newer version: DROPTEST_NCCL_LIBRARY names the file of NCCL's library");
}

ncclResult_t passed_on(ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress) own_text.clear();
  return result;
}

// Errors of functions that jumps pass on are seen by their texts.
const char* last_error(ncclComm_t comm) {
  if (!own_text.empty() && text_of_nccl(comm) != nccls_text) own_text.clear();
  return own_text.empty() ? DROPTEST_REAL(ncclGetLastError, comm) : own_text.c_str();
}

}  // namespace droptest::nccl_shim
