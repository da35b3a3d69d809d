// SPDX-License-Identifier: Apache-2.0
// A build without CUDA code has no streams, and so no tensors in device memory.
#include "comm/device/tensor_operations.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

[[noreturn]] void unavailable() { DROPTEST_CHECK(false, "a tensor in device memory in a build without CUDA"); }

}  // namespace

void change_runs_on_device(RunOperation /*operation*/, ConstTensor /*from*/, Tensor /*data*/,
                           std::span<const ElementRun> /*runs*/) {
  unavailable();
}
void reduce_on_device(ReduceOp /*op*/, ElementType /*type*/, std::span<const std::byte* const> /*inputs*/,
                      std::span<std::byte* const> /*outputs*/, std::uint64_t /*count_elems*/, Stream& /*stream*/) {
  unavailable();
}

}  // namespace droptest::comm
