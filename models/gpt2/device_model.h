// SPDX-License-Identifier: Apache-2.0
// One rank's GPT-2 on a device, with activations of one element type.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/device/device_buffer.h"
#include "comm/device/stream.h"
#include "models/gpt2/device_activations.h"
#include "models/gpt2/device_collectives.h"
#include "models/gpt2/device_head.h"
#include "models/gpt2/device_parameters.h"
#include "models/gpt2/gpt2_cuda.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/kernels/attention.h"
#include "models/kernels/matrix_products.h"
#include "models/kernels/token_groups.h"

namespace droptest::models {

/// What Gpt2Cuda promises, for E float or Bf16.
template <class E>
class DeviceModel {
 public:
  DeviceModel(const Gpt2Config& config, comm::Communicator& tensor_group, const Gpt2Cuda::Options& options);
  /// Waits for the device, which an error may have left at work in this model's memory.
  ~DeviceModel();
  DeviceModel(const DeviceModel&) = delete;
  DeviceModel& operator=(const DeviceModel&) = delete;

  double evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, const BatchShape& shape);
  void zero_gradients();
  void forward_backward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                        const BatchShape& shape, double scale);
  Gpt2Cuda::StepSums step_sums();
  void step(double learning_rate, double gradient_scale) { parameters_.step(learning_rate, gradient_scale); }
  DeviceParameters<E>& parameters() { return parameters_; }
  std::uint64_t device_bytes() const { return parameters_.device_bytes() + memory_.bytes(); }
  static std::uint64_t planned_bytes(const Gpt2Config& config, int world_size, int rank,
                                     const Gpt2Cuda::Options& options, const BatchShape& shape);

 private:
  /// A layer's name in messages, and where its weight, followed by its bias, is in the list of tensors.
  struct Linear {
    std::size_t weight;
    std::string name;
    int layer;
    ProductShape shape;  ///< of any number of rows
  };
  struct Half {
    std::size_t norm;  ///< the gain; the bias follows
    Linear first;      ///< column-parallel
    Linear second;     ///< row-parallel
  };
  /// What a half has left to be added to the stream.
  struct Pending {
    comm::DeviceSpan<const E> sum;
    std::size_t bias;
  };

  static std::vector<Half> halves_of(const Gpt2Config& config, const Gpt2Part& part);
  /// What a batch of `shape` needs on a rank. A lone rank sends nothing, whatever messages are made of.
  static ActivationExtents extents_of(const Gpt2Config& config, int world_size, int rank,
                                      const Gpt2Cuda::Options& options, const BatchShape& shape);
  DeviceActivations<E>& prepared(const BatchShape& shape, Keep keep);
  void take_tokens(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                   DeviceActivations<E>& buffers);
  AttentionShape attention_shape(const BatchShape& shape) const;
  DeviceHead<E> head();

  void run_blocks(DeviceActivations<E>& buffers);
  void normalise(std::size_t norm, const NormBuffers<E>& buffers, const NormBuffers<E>* before,
                 const std::optional<Pending>& pending);
  void attention_forward_half(const Half& half, AttentionBuffers<E>& buffers, const BatchShape& shape,
                              const MessageBuffer<E>& message);
  void mlp_forward_half(const Half& half, MlpBuffers<E>& buffers, const BatchShape& shape,
                        const MessageBuffer<E>& message);
  void row_parallel_forward(const Linear& linear, comm::DeviceSpan<const E> input, std::int64_t rows,
                            comm::DeviceSpan<E> sum, const MessageBuffer<E>& message);

  void run_blocks_backward(DeviceActivations<E>& buffers, GradientMode mode);
  /// `summed_bias`: whose gradient are the columns' sums of the stream's gradient; absent in front of the first half.
  void normalise_backward(std::size_t norm, const NormBuffers<E>& norm_buffers, std::optional<std::size_t> summed_bias,
                          comm::DeviceSpan<const E> grad_residual, BackwardBuffers<E>& backward, GradientMode mode);
  void attention_backward_half(const Half& half, AttentionBuffers<E>& buffers, BackwardBuffers<E>& backward,
                               const MessageBuffer<E>& message, const BatchShape& shape, GradientMode mode);
  void mlp_backward_half(const Half& half, MlpBuffers<E>& buffers, BackwardBuffers<E>& backward,
                         const MessageBuffer<E>& message, const BatchShape& shape, GradientMode mode);
  /// Computes this rank's part of the gradient of the layer's input, and begins the sum over ranks.
  void begin_input_gradient(const Linear& linear, comm::DeviceSpan<const E> grad_output, std::int64_t rows,
                            BackwardBuffers<E>& backward, const MessageBuffer<E>& message);
  void weight_gradient(const Linear& linear, comm::DeviceSpan<const E> input, comm::DeviceSpan<const E> grad_output,
                       std::int64_t rows, GradientMode mode, comm::DeviceSpan<float> grad_bias);

  comm::DeviceSpan<const E> weight(std::size_t i) const { return parameters_.weight(i); }
  ProductShape with_rows(const Linear& linear, std::int64_t rows) const;
  void fold_losses(std::size_t passes);

  Gpt2Config config_;
  Gpt2Part part_;
  Gpt2Cuda::Options options_;
  int world_size_;
  int rank_;
  comm::Stream stream_;
  DeviceCollectives collectives_;
  DeviceParameters<E> parameters_;
  MatrixProducts products_;
  std::vector<Half> halves_;

  // In device memory: the summed losses of the passes since zero_gradients(), that of an evaluation, and the sum of
  // squares; and their copy for the host.
  comm::DeviceBuffer<double> numbers_;
  comm::PinnedBuffer<double> host_numbers_;
  std::vector<std::int64_t> pass_rows_;  ///< of each pass whose losses are in numbers_
  double folded_losses_ = 0;             ///< mean losses of passes that are there no more
  bool zeros_are_owed_ = true;

  std::optional<TokenGroups> groups_;
  std::size_t most_grouped_ = 0;
  comm::DeviceMemory memory_;
  std::optional<DeviceActivations<E>> training_;
  std::optional<DeviceActivations<E>> evaluation_;
};

}  // namespace droptest::models
