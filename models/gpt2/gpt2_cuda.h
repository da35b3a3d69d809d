// SPDX-License-Identifier: Apache-2.0
// GPT-2 with tensor parallelism on a CUDA device: one rank's part of the model, with its optimizer.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "comm/communicator.h"
#include "models/gpt2/execution.h"
#include "models/gpt2/gpt2_config.h"
#include "models/optimizer.h"
#include "models/parameter.h"

namespace droptest::models {

/// What Gpt2 and AdamW are on the host: the same model, tensors, cut over ranks and collectives in the same order
/// (under the same names and with as many elements), so that a network loses the same packets of both. Parameters,
/// gradients and moments are float; activations and the operands of products are of precision.compute.
/// Owner: one rank. Ranks: all ranks of the group call the same methods in the same order. Blocking: what puts work on
/// the device does not wait for it, except where it says so. Determinism: the same bits on every run of one device.
class Gpt2Cuda {
 public:
  struct Options {
    ModelPrecision precision;
    AdamWConfig adamw;
    int device = 0;                                        ///< as the CUDA runtime numbers it
    std::uint64_t logits_bytes = std::uint64_t{1} << 30U;  ///< most memory for logits: rows come in chunks
  };

  /// `tensor_group` is borrowed, outlives the model, and takes tensors of that device. Memory for parameters, gradients
  /// and moments is taken here. Throws: ConfigError where this build has no CUDA, DeviceError that says what wanted how
  /// much where the device has too little memory.
  Gpt2Cuda(const Gpt2Config& config, comm::Communicator& tensor_group, const Options& options);
  ~Gpt2Cuda();

  const Gpt2Config& config() const;

  /// Same as Gpt2's: mean cross-entropy, in the memory of one block. Waits for the device. It is forward_backward's
  /// loss bit for bit where both cut the rows into the same chunks.
  double evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, int batch, int length);

  /// The next backward pass starts from zeros.
  void zero_gradients();
  /// Adds scale x d(loss) / d(parameter) to every gradient. The tokens may change when it returns.
  void forward_backward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, int batch,
                        int length, double scale);

  /// What the passes since zero_gradients() came to on this rank.
  struct StepSums {
    double losses = 0;            ///< of the passes, added up
    double gradient_squares = 0;  ///< of this rank's gradients; replicated ones on rank 0 alone
  };
  /// Waits for the device: the only time in a step.
  StepSums step_sums();

  /// One update of AdamW with gradients multiplied by gradient_scale. The first call is step 1.
  void step(double learning_rate, double gradient_scale);

  /// Copies of the parameters in host memory, in the host model's order; the spans stay. What they hold is what
  /// download() or the caller has written last.
  std::span<Parameter<float>> host_parameters();
  enum class Fields : std::uint8_t { kValues, kValuesAndGradients };
  /// Makes the copies equal to the device's. Waits for the device.
  void download(Fields fields);
  /// Makes the device's values equal to the copies. Waits for the device.
  void upload_values();

  /// Bytes of device memory that the model holds now.
  std::uint64_t device_bytes() const;
  /// What that will be on a rank of `world_size` that has trained on and evaluated batches of such a size. Needs no
  /// device. Throws: ConfigError for a model that the ranks cannot have, or where this build has no CUDA.
  static std::uint64_t planned_bytes(const Gpt2Config& config, int world_size, int rank, const Options& options,
                                     int batch, int length);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace droptest::models
