// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_calls.h"

#include "sim/error.h"

namespace droptest::comm {

ncclDataType_t data_type(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return ncclFloat32;
    case ElementType::kFloat64:
      return ncclFloat64;
    case ElementType::kUint64:
      return ncclUint64;
    case ElementType::kBfloat16:
      return ncclBfloat16;
    case ElementType::kFloat16:
      return ncclFloat16;
    case ElementType::kInt32:
      return ncclInt32;
    case ElementType::kInt64:
      return ncclInt64;
    case ElementType::kUint8:
      return ncclUint8;
  }
  DROPTEST_CHECK(false, "unknown element type");
}

// ncclAvg cannot serve for a mean: it multiplies each input by 1 / ranks before the sum.
ncclRedOp_t reduce_operation(ReduceOp op) { return op == ReduceOp::kMax ? ncclMax : ncclSum; }

}  // namespace droptest::comm
