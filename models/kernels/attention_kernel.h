// SPDX-License-Identifier: Apache-2.0
// An implementation of attention that can be chosen by name. Smallest example: attention_reference_cpu.cc.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/tensor.h"
#include "models/kernels/attention.h"
#include "models/kernels/kernel_target.h"

namespace droptest::models {

/// The arguments of a forward pass. Shapes: see AttentionShape; statistics and scratch as the kernel says.
struct AttentionForwardTensors {
  comm::ConstTensor qkv;
  comm::Tensor statistics, output, scratch;
  DropoutMask dropout{};  ///< of the probabilities; on only where the kernel takes it
};

/// The arguments of a backward pass; output and statistics are those of the forward pass.
struct AttentionBackwardTensors {
  comm::ConstTensor grad_output, qkv, output, statistics;
  comm::Tensor grad_qkv, scratch;
  DropoutMask dropout{};
};

/// Causal self-attention: output = softmax(mask(Q K' / sqrt(D))) V. Thread safety: used by one rank. Determinism:
/// results depend on the arguments, not on the number of threads.
class AttentionKernel {
 public:
  virtual ~AttentionKernel() = default;

  /// Elements, of the statistics' type, that a forward pass saves for the backward pass.
  virtual std::uint64_t statistics_elems(const AttentionShape& shape) const = 0;
  /// Elements of `scratch`, of the activations' type; `threads` are a rank's.
  virtual std::uint64_t forward_scratch_elems(const AttentionShape& shape, int threads) const = 0;
  /// The same, of the statistics' type.
  virtual std::uint64_t backward_scratch_elems(const AttentionShape& shape, int threads) const = 0;

  /// Whether forward() and backward() take a dropout that is on. Default: no.
  virtual bool takes_dropout() const { return false; }
  enum class Passes : std::uint8_t { kForward, kBoth };
  /// Gets ready for passes of that shape on the calling thread's current device, which runs nothing yet. Throws:
  /// ConfigError in words where this machine cannot compute them.
  virtual void prepare(const AttentionShape& /*shape*/, comm::ElementType /*type*/, Passes /*passes*/) const {}

  virtual void forward(const AttentionForwardTensors& tensors, const AttentionShape& shape,
                       const KernelTarget& target) const = 0;
  /// Sets grad_qkv.
  virtual void backward(const AttentionBackwardTensors& tensors, const AttentionShape& shape,
                        const KernelTarget& target) const = 0;
};

/// attention.h's on the host: strips of queries, GEMMs by oneDNN or Eigen, probabilities computed again in the backward
/// pass from the saved statistics.
std::unique_ptr<AttentionKernel> make_flash_attention();
/// The formula in the order in which it is written, with the probabilities of all pairs of rows in memory.
std::unique_ptr<AttentionKernel> make_reference_attention();
/// attention.h's on a device: tensor cores for the shapes that they take, plain arithmetic else. Throws: ConfigError
/// where this build has no CUDA.
std::unique_ptr<AttentionKernel> make_cuda_flash_attention();
/// Plain float arithmetic for all shapes. Throws: as above.
std::unique_ptr<AttentionKernel> make_cuda_plain_attention();
/// cuDNN's (cudnn_attention.h), opened when it first prepares or runs a pass. A backward pass that wants more workspace
/// than a bound takes a part of the batch at a time. Throws: as above.
std::unique_ptr<AttentionKernel> make_cudnn_attention();
/// The same with another bound of the workspace.
std::unique_ptr<AttentionKernel> make_cudnn_attention_within(std::uint64_t most_workspace_bytes);

}  // namespace droptest::models
