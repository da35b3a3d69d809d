// SPDX-License-Identifier: Apache-2.0
// Text for results of NCCL's calls, for sources that include NCCL's header anyway.
#pragma once

#include <nccl.h>

#include <string>

namespace droptest::comm {

/// Whether the call was refused or failed: it neither succeeded nor is under way.
bool is_error(ncclResult_t result);

/// "ncclRemoteError: remote process exited or there was a network error: <NCCL's last words>". `comm` may be null.
std::string result_text(ncclResult_t result, ncclComm_t comm);

/// result_text() for the making of a communicator, with a remedy if NCCL refuses two ranks on one GPU.
std::string init_failure_text(ncclResult_t result, ncclComm_t comm);

}  // namespace droptest::comm
