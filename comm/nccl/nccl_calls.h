// SPDX-License-Identifier: Apache-2.0
// Our types as NCCL's, and calls in groups. For sources that see NCCL's header anyway.
#pragma once

#include <nccl.h>

#include "comm/communicator.h"
#include "comm/nccl/nccl_result.h"

namespace droptest::comm {

ncclDataType_t data_type(ElementType type);
/// What NCCL does for `op`: the sum for a mean, whose quotient is the caller's.
ncclRedOp_t reduce_operation(ReduceOp op);

/// Makes calls that belong together, so that none waits for another. Returns the first error among them; the group is
/// closed in any case.
template <class Calls>
ncclResult_t grouped(const Calls& calls) {
  if (const ncclResult_t started = ncclGroupStart(); is_error(started)) return started;
  const ncclResult_t called = calls();
  const ncclResult_t ended = ncclGroupEnd();
  return is_error(called) ? called : ended;
}

}  // namespace droptest::comm
