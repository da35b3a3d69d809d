// SPDX-License-Identifier: Apache-2.0
// NCCL's names of our types, and calls in groups, for sources that include NCCL's header anyway.
#pragma once

#include <nccl.h>

#include "comm/communicator.h"
#include "comm/nccl/nccl_result.h"

namespace droptest::comm {

ncclDataType_t data_type(ElementType type);
/// NCCL's operation for `op`; for a mean the sum, which the caller divides.
ncclRedOp_t reduce_operation(ReduceOp op);

/// Makes calls that belong together, so that none waits for another. Returns the first error among them; closes the
/// group in any case.
template <class Calls>
ncclResult_t grouped(const Calls& calls) {
  if (const ncclResult_t started = ncclGroupStart(); is_error(started)) return started;
  const ncclResult_t called = calls();
  const ncclResult_t ended = ncclGroupEnd();
  return is_error(called) ? called : ended;
}

}  // namespace droptest::comm
