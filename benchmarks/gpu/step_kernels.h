// SPDX-License-Identifier: Apache-2.0
// The kernels of a training step of GPT-2 in bfloat16, by kind of work. Each function measures its kernels at the
// extents of one rank, and adds them to the rates. Throws: DeviceError.
#pragma once

#include <cstdint>
#include <string>

#include "benchmarks/gpu/kernel_rates.h"
#include "comm/device/stream.h"

namespace droptest {

/// A model and its batch; a step has one micro-batch.
struct StepShape {
  std::int64_t batch = 64;
  std::int64_t length = 1024;
  std::int64_t layers = 12;
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t vocabulary = 50257;

  std::int64_t rows() const { return batch * length; }
  std::int64_t hidden() const { return 4 * width; }
  std::int64_t parameters() const {
    return (vocabulary + length) * width + layers * (12 * width * width + 13 * width) + 2 * width;
  }
  /// A kernel that each block calls once.
  InStep in_each_block(const std::string& group, const std::string& phase) const {
    return {static_cast<double>(layers), group, phase};
  }
};

/// Layer norms, embeddings, the optimizer, and messages of four ranks on one card.
void norm_kernels(const StepShape& shape, comm::Stream& stream, KernelRates& rates);
void embedding_kernels(const StepShape& shape, comm::Stream& stream, KernelRates& rates);
void parameter_kernels(const StepShape& shape, comm::Stream& stream, KernelRates& rates);
void message_kernels(const StepShape& shape, comm::Stream& stream, KernelRates& rates);
/// The GEMMs of linear layers, and of the LM head for one chunk of rows with the size that a step uses.
void linear_kernels(const StepShape& shape, comm::Stream& stream, KernelRates& rates);
void head_kernels(const StepShape& shape, comm::Stream& stream, KernelRates& rates);

}  // namespace droptest
