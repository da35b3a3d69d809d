// SPDX-License-Identifier: Apache-2.0
// A build without CUDA code has no tensors in device memory.
#include "comm/lossy/fill/device_reductions.h"
#include "comm/lossy/statistics/device_samples.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

[[noreturn]] void unavailable() { DROPTEST_CHECK(false, "a tensor in device memory in a build without CUDA"); }

}  // namespace

void reduce_delivered_on_device(ReduceOp /*op*/, ElementType /*type*/, const Contributions& /*contributions*/,
                                const DeliveredScaling& /*scaling*/, std::span<const std::byte* const> /*inputs*/,
                                std::span<std::byte* const> /*outputs*/, Stream& /*stream*/) {
  unavailable();
}
void reduce_with_last_on_device(ReduceOp /*op*/, const Contributions& /*contributions*/, Tensor /*remembered*/,
                                std::span<const std::byte* const> /*inputs*/, std::span<std::byte* const> /*outputs*/) {
  unavailable();
}
ErrorSums error_sums_on_device(ConstTensor /*exact*/, ConstTensor /*result*/) { unavailable(); }
DivergenceSums divergence_sums_on_device(ElementType /*type*/, std::uint64_t /*count_elems*/,
                                         std::span<const std::byte* const> /*contributions*/, Stream& /*stream*/) {
  unavailable();
}
std::vector<double> packet_energies_on_device(ConstTensor /*data*/, const sim::Packetizer& /*packets*/) {
  unavailable();
}

}  // namespace droptest::comm
