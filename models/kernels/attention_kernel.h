// SPDX-License-Identifier: Apache-2.0
// The interface of attention implementations that a spec can choose by name. Smallest example:
// attention_reference_cpu.cc.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/tensor.h"
#include "models/kernels/attention.h"
#include "models/kernels/kernel_target.h"

namespace droptest::models {

/// The arguments of a forward pass. Shapes: see AttentionShape; the kernel's functions give the sizes of statistics and
/// scratch.
struct AttentionForwardTensors {
  comm::ConstTensor qkv;
  comm::Tensor statistics, output, scratch;
  DropoutMask dropout{};  ///< dropout of the probabilities; off unless the kernel takes_dropout()
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

  /// The number of elements, of the statistics' type, that a forward pass saves for the backward pass.
  virtual std::uint64_t statistics_elems(const AttentionShape& shape) const = 0;
  /// The number of elements of `scratch` in forward(), of the activations' type. `threads` is the number of threads of
  /// a rank.
  virtual std::uint64_t forward_scratch_elems(const AttentionShape& shape, int threads) const = 0;
  /// The number of elements of `scratch` in backward(), of the statistics' type.
  virtual std::uint64_t backward_scratch_elems(const AttentionShape& shape, int threads) const = 0;

  /// Whether forward() and backward() take a dropout that is on. Default: no.
  virtual bool takes_dropout() const { return false; }
  enum class Passes : std::uint8_t { kForward, kBoth };
  /// Prepares passes of that shape on the calling thread's current device, before any work runs there. Throws:
  /// ConfigError with the reason if this machine cannot compute them.
  virtual void prepare(const AttentionShape& /*shape*/, comm::ElementType /*type*/, Passes /*passes*/) const {}

  virtual void forward(const AttentionForwardTensors& tensors, const AttentionShape& shape,
                       const KernelTarget& target) const = 0;
  /// Sets grad_qkv.
  virtual void backward(const AttentionBackwardTensors& tensors, const AttentionShape& shape,
                        const KernelTarget& target) const = 0;
};

/// The host's attention of attention.h: strips of queries, GEMMs by oneDNN or Eigen, and probabilities that the
/// backward pass recomputes from the saved statistics.
std::unique_ptr<AttentionKernel> make_flash_attention();
/// The formula in the order in which it is written, with the probabilities of all pairs of rows in memory.
std::unique_ptr<AttentionKernel> make_reference_attention();
/// The device's attention of attention.h: tensor cores for the shapes that they support, otherwise plain arithmetic.
/// Throws: ConfigError if this build has no CUDA.
std::unique_ptr<AttentionKernel> make_cuda_flash_attention();
/// Plain float arithmetic for all shapes. Throws: ConfigError if this build has no CUDA.
std::unique_ptr<AttentionKernel> make_cuda_plain_attention();
/// Attention by cuDNN (cudnn_attention.h), which is opened at the first prepare() or pass. A backward pass that needs
/// more workspace than a bound takes a part of the batch at a time. Throws: ConfigError if this build has no CUDA.
std::unique_ptr<AttentionKernel> make_cudnn_attention();
/// make_cudnn_attention() with another bound of the workspace.
std::unique_ptr<AttentionKernel> make_cudnn_attention_within(std::uint64_t most_workspace_bytes);

}  // namespace droptest::models
