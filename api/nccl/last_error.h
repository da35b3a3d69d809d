// SPDX-License-Identifier: Apache-2.0
// The text of ncclGetLastError(): this library's, until NCCL has one of its own again.
#pragma once

#include <nccl.h>

#include <string>

namespace droptest::nccl_shim {

/// Keeps the text for the calling thread, and prints it. Returns the result of the call that failed.
ncclResult_t failed(const std::string& text);
/// Fails because `function` is not in NCCL's own library: failed() with a text that names both.
ncclResult_t failed_without(const char* function);
/// Called after a call of NCCL: an error of its own is newer than the kept text.
ncclResult_t passed_on(ncclResult_t result);
/// The last error of the calling thread; `comm` as in NCCL's function.
const char* last_error(ncclComm_t comm);

}  // namespace droptest::nccl_shim
