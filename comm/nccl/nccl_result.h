// SPDX-License-Identifier: Apache-2.0
// Results of NCCL's calls in words. For sources that see NCCL's header anyway.
#pragma once

#include <nccl.h>

#include <string>

namespace droptest::comm {

/// Whether the call was refused or failed: not a success, and not under way.
bool is_error(ncclResult_t result);

/// "ncclRemoteError: remote process exited or there was a network error: <NCCL's last words>". `comm` may be null.
std::string result_text(ncclResult_t result, ncclComm_t comm);

/// The same for the making of a communicator, with what to do about it where NCCL refuses two ranks on one GPU.
std::string init_failure_text(ncclResult_t result, ncclComm_t comm);

}  // namespace droptest::comm
