// SPDX-License-Identifier: Apache-2.0
// The operations of a transformer on one kind of device. Smallest implementation: planner_ops.h, which computes
// nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "models/gradient_mode.h"
#include "models/kernels/adamw.h"
#include "models/kernels/adapter.h"
#include "models/kernels/attention.h"
#include "models/kernels/cross_entropy.h"
#include "models/kernels/dropout.h"
#include "models/kernels/embedding.h"
#include "models/kernels/layernorm.h"
#include "models/kernels/sgd.h"
#include "models/kernels/update_decision.h"
#include "models/kernels/weight_layout.h"
#include "models/ops/keyed_storage.h"
#include "models/ops/ops_form.h"
#include "models/ops/storage.h"
#include "models/parameter.h"
#include "models/phase_times.h"
#include "models/team.h"
#include "sim/packets/packetizer.h"

namespace droptest::comm {
class StreamTimer;
}

namespace droptest::models {

/// A parameter as operations see it. A gradient has the elements of the value.
struct Weight {
  comm::ConstTensor value;    ///< of the activations' type
  comm::ConstTensor operand;  ///< of OpsForm's operand type: read by GEMMs; empty for parameters that no GEMM reads
  comm::Tensor gradient;
};

/// `factor` x `values`, as GEMMs take an activation or its gradient. Made by Ops::operand().
struct Operand {
  comm::ConstTensor values;
  double factor = 1;
  comm::ConstTensor unrounded;  ///< the argument of operand()
};

/// Numbers of a step, float64 in the memory of the device: a step needs the host for none of them.
enum class Number : std::uint8_t {
  kLosses,           ///< the sum of this rank's mean losses, of the passes of a step
  kGradientSquares,  ///< of the gradients that this rank counts
  kEvaluation,       ///< a mean loss without a backward pass
  kLoss,             ///< decide_update()'s, as the next two
  kGradientNorm,
  kGradientFactor,
};
inline constexpr std::size_t kNumbers = 6;

/// The arenas of an update; all are laid out alike.
struct UpdateArenas {
  comm::Tensor values;
  comm::ConstTensor gradients;
  comm::Tensor first_moments, second_moments;  ///< SGD has velocities, in place of the first ones, and no second ones
  comm::Tensor rounded;                        ///< of a 16-bit float, or empty
};

/// One rank's computations. Each implementation calls its kernels (models/kernels/), in the order of the calls here.
/// Tensors are those that the implementation's memory holds, of the types that form() says. A gradient of a parameter
/// is set or added to, as `mode` says. Owner: one rank, from one thread. Blocking: the host's are complete when they
/// return; a device may be at work. Ranks: begin_sum(),
/// begin_all_reduce() and decide_update() are collectives, all others are local.
/// Determinism: results depend on arguments alone, not on threads.
class Ops {
 public:
  virtual ~Ops() = default;

  virtual const OpsForm& form() const = 0;
  /// Of the group that sums go over.
  virtual int world_size() const = 0;
  virtual int rank() const = 0;
  /// Communicator::stops_lost_gradients() of the group; where nothing is computed no.
  virtual bool stops_lost_gradients(sim::TrafficClass /*traffic_class*/) const { return false; }
  /// Where the rank's time is counted; null, the default: nowhere.
  virtual PhaseTimes* times() { return nullptr; }
  /// Where the time of work on stream() is counted; null, the default: nowhere.
  virtual comm::StreamTimer* timer() { return nullptr; }
  /// The threads of a host; null, the default: a device computes.
  virtual const Team* team() const { return nullptr; }

  /// Bytes that begin at a multiple of 256. The operations outlive them.
  class Memory {
   public:
    virtual ~Memory() = default;
    virtual std::byte* data() const = 0;
  };
  enum class Content : std::uint8_t { kUnspecified, kZeros };
  /// `purpose` is for errors. Throws: the device's error where it has too little memory.
  virtual std::unique_ptr<Memory> allocate(std::uint64_t bytes, const std::string& purpose, Content content) = 0;
  /// Tensors in that memory are used in its order; null: host memory.
  virtual comm::Stream* stream() { return nullptr; }
  /// Returns when nothing is at work any more.
  virtual void synchronize() = 0;

  /// The host's range may change when the call returns.
  virtual void take_tokens(std::span<const std::int32_t> from, TokenIds to) = 0;
  /// Says which tokens the next embedding_backward() of that slot is for.
  virtual void group_tokens(std::span<const std::int32_t> tokens, TokenRange range, int slot) = 0;
  virtual void zero(comm::Tensor values) = 0;
  /// Of the elements of these ranges. Default: one by one.
  virtual void zero_ranges(comm::Tensor values, std::span<const sim::ElementRange> ranges);
  /// Of equal types: a copy. Else of float32 and a 16-bit float; rounds to the nearest, ties to even.
  virtual void convert(comm::ConstTensor from, comm::Tensor to) = 0;

  /// output[i] = table[tokens[i] - range.first], or zeros where the token is another rank's.
  virtual void embedding_forward(TokenIds tokens, TokenRange range, comm::ConstTensor table, std::int64_t width,
                                 comm::Tensor output) = 0;
  /// Adds to the rows of the tokens of the slot's last group_tokens().
  virtual void embedding_backward(TokenIds tokens, TokenRange range, int slot, comm::ConstTensor grad_output,
                                  std::int64_t width, comm::Tensor grad_table) = 0;
  /// values[b, t] += table[t].
  virtual void add_positions(comm::ConstTensor table, std::int64_t batch, std::int64_t length, std::int64_t width,
                             comm::Tensor values) = 0;
  /// Adds.
  virtual void positions_backward(comm::ConstTensor grad_values, std::int64_t batch, std::int64_t length,
                                  std::int64_t width, comm::Tensor grad_table) = 0;

  /// norm_forward()'s residual_after alone, and norm_backward()'s grad_branch_bias from grad_residual, with the same
  /// bits.
  virtual void residual_forward(const NormForward& norm) = 0;
  virtual void residual_backward(const NormBackward& norm) = 0;
  virtual void norm_forward(const NormForward& norm) = 0;
  virtual void norm_backward(const NormBackward& norm) = 0;

  /// The values as GEMMs take them, in `room` where types differ. Shapes: room of OpsForm's operand type, at least as
  /// many elements, or empty where the types are equal. The operand lasts until the room is used again.
  virtual Operand operand(comm::ConstTensor values, double factor, comm::Tensor room) = 0;
  /// output = input W + bias; without a bias where `bias` is null, as it must be where output rows have gaps or output
  /// is wider than an activation.
  virtual void linear_forward(const ProductShape& shape, const Operand& input, const Weight& weight, const Weight* bias,
                              comm::Tensor output) = 0;
  /// grad_input = grad_output W'.
  virtual void linear_backward_input(const ProductShape& shape, const Operand& grad_output, const Weight& weight,
                                     comm::Tensor grad_input) = 0;
  /// The gradient of the weight, and of the bias where it is not null.
  virtual void linear_backward_weight(const ProductShape& shape, const Operand& input, const Operand& grad_output,
                                      GradientMode mode, const Weight& weight, const Weight* bias) = 0;

  /// output = gelu(input W + bias). `saved` gets the input of gelu_backward_input(); empty in evaluation where
  /// OpsForm::gelu_needs_room() is false.
  virtual void gelu_forward(const ProductShape& shape, const Operand& input, const Weight& weight, const Weight& bias,
                            comm::Tensor saved, comm::Tensor output) = 0;
  /// gelu_forward()'s `saved` and `output` of the product input W, with the same bits. Only where
  /// OpsForm::gelu_from_projection().
  virtual void gelu_of_projection(const ProductShape& shape, comm::ConstTensor projection, const Weight& bias,
                                  comm::Tensor saved, comm::Tensor output) = 0;
  /// grad_input = grad_output W' times GELU's derivative, for the linear layer behind the GELU, whose shape and weight
  /// these are. `bias` is that of the layer in front: its gradient is complete where OpsForm::gelu_sums_bias().
  virtual void gelu_backward_input(const ProductShape& shape, const Operand& grad_output, const Weight& weight,
                                   comm::ConstTensor saved, GradientMode mode, const Weight& bias,
                                   comm::Tensor grad_input) = 0;

  /// Causal, with the mask's dropout of probabilities. Shapes: AttentionShape's; statistics and scratch as OpsForm
  /// says.
  virtual void attention_forward(comm::ConstTensor qkv, const AttentionShape& shape, const DropoutMask& dropout,
                                 comm::Tensor statistics, comm::Tensor output, comm::Tensor scratch) = 0;
  virtual void attention_backward(comm::ConstTensor grad_output, comm::ConstTensor qkv, comm::ConstTensor output,
                                  comm::ConstTensor statistics, const AttentionShape& shape, const DropoutMask& dropout,
                                  comm::Tensor grad_qkv, comm::Tensor scratch) = 0;

  /// to = from with elements set to zero; the backward pass of that, too. The two may be one tensor. Shapes: [rows,
  /// width].
  virtual void drop_elements(comm::ConstTensor from, const DropoutMask& mask, std::int64_t rows, std::int64_t width,
                             comm::Tensor to) = 0;

  /// The pieces of a cross-entropy over ranks. row_maxima() sets `largest`. exponential_sums() sets `sums` and
  /// `predicted` (the target's logit less the largest, 0 where the target is another rank's), and may leave the
  /// exponentials in the place of the logits. losses_of_sums() sets `losses`. logits_to_gradient() turns the result of
  /// exponential_sums() into the gradient of each row's loss.
  virtual void row_maxima(const LogitBlock& rows) = 0;
  virtual void exponential_sums(const LogitBlock& rows) = 0;
  virtual void losses_of_sums(const LogitBlock& rows) = 0;
  virtual void logits_to_gradient(const LogitBlock& rows) = 0;
  /// After logits_to_gradient() or cross_entropy() with the gradient: each row's loss and gradient times the weight of
  /// its target. Shapes: a weight of each target that there is, in host memory.
  virtual void weigh_rows(const LogitBlock& rows, std::span<const double> weights) = 0;
  /// Both passes of a rank that has the whole vocabulary, where OpsForm::fuses_cross_entropy(): `losses`, and with
  /// `Logits::kToGradient` the gradient.
  virtual void cross_entropy(const LogitBlock& rows, Logits logits) = 0;

  /// sum = the sum over ranks of part_of(sum, message), after all operations so far. Until join(), operations
  /// must use neither tensor. Shapes: equal; message empty where messages are of the sum's type.
  virtual void begin_sum(comm::Tensor sum, comm::Tensor message, const comm::Message& about) = 0;
  virtual void begin_all_reduce(comm::Tensor data, comm::ReduceOp op, const comm::Message& about) = 0;
  /// own = part rank() of the sum over ranks of part_of(whole, message), which is cut into parts of these many
  /// elements. Until join(), operations must use none of the tensors; `whole` is overwritten. Shapes: whole and message
  /// sum(counts), own counts[rank()]; message empty where messages are of the sum's type.
  virtual void begin_scattered_sum(comm::Tensor whole, comm::Tensor message, std::span<const std::uint64_t> counts,
                                   comm::Tensor own, const comm::Message& about) = 0;
  /// whole = the parts of all ranks, each from its owner, of these many elements, in the type of `message`, where that
  /// is not empty. `own` may be part rank() of `whole`. Until join(), operations must use none of the tensors. Shapes:
  /// as above.
  virtual void begin_gather(comm::Tensor own, comm::Tensor message, std::span<const std::uint64_t> counts,
                            comm::Tensor whole, const comm::Message& about) = 0;
  /// Operations from now on see the results of the reductions.
  virtual void join() = 0;

  /// Parameters of one arena, as the optimizer and norms work through them.
  class Ranges {
   public:
    virtual ~Ranges() = default;
  };
  virtual std::unique_ptr<Ranges> make_ranges(std::vector<ParameterRange> ranges) = 0;
  /// sums[c] = the sum of the squares of chunk c, in double: the ranges one after another, each cut into chunks of
  /// kNormChunkElems. Shapes: sums float64, as many as there are chunks.
  virtual void sum_squares(const Ranges& ranges, comm::ConstTensor arena, comm::Tensor sums) = 0;
  /// The number = the sums added up, in an order that depends on their number alone.
  virtual void add_sums(comm::ConstTensor sums, Number number) = 0;
  /// Number::kLosses and Number::kGradientSquares of all ranks decide about the update; every rank gets the decision in
  /// Number::kLoss, kGradientNorm and kGradientFactor. Ranks: all of `ranks`, which the rule describes, or where it is
  /// null those that sums go over; they gather about `message`.
  virtual void decide_update(const UpdateRule& rule, comm::Communicator* ranks, const comm::Message& message) = 0;
  /// One update of the ranges; `rounded` becomes the new values where it is not empty. kOfStep: gradients are
  /// multiplied by step.gradient_scale. kDecided: by Number::kGradientFactor; where that is NaN, nothing changes.
  enum class GradientFactor : std::uint8_t { kOfStep, kDecided };
  virtual void adamw(const Ranges& ranges, const UpdateArenas& arenas, const AdamWStep& step,
                     GradientFactor factor) = 0;
  virtual void sgd(const Ranges& ranges, const UpdateArenas& arenas, const SgdStep& step, GradientFactor factor) = 0;
  /// `rounded` = the values of the ranges, where updates do not round them.
  virtual void round_values(const Ranges& ranges, comm::ConstTensor values, comm::Tensor rounded) = 0;

  /// merge_adapter() and adapter_gradients() (models/kernels/adapter.h) of the parameters' type.
  virtual void merge_adapter(const AdapterShape& shape, comm::ConstTensor weight, comm::ConstTensor a,
                             comm::ConstTensor b, comm::Tensor merged) = 0;
  virtual void adapter_gradients(const AdapterShape& shape, comm::ConstTensor grad_merged, comm::ConstTensor a,
                                 comm::ConstTensor b, comm::Tensor grad_a, comm::Tensor grad_b) = 0;

  /// to += from. Both of the parameters' type.
  virtual void accumulate(comm::ConstTensor from, comm::Tensor to) = 0;

  /// The storage of the blocks' values: made at the first call. Storing and reading overlap with operations.
  virtual KeyedStorage& offload() = 0;
  /// Of its buffers, in the memory of operations; 0 before the first call.
  virtual std::uint64_t offload_bytes() const = 0;
  /// Storage of the same kind with keys of its own. The operations outlive it.
  virtual std::unique_ptr<KeyedStorage> make_keyed_storage() = 0;

  /// Storage of the same kind whose places the caller gives. The operations outlive it. `purpose` is for errors.
  /// Throws: ConfigError that names file and bytes where there is no room for so many.
  virtual std::unique_ptr<Storage> make_storage(std::uint64_t bytes, const std::string& purpose) = 0;

  /// The stream of collectives over data-parallel ranks, which overlap with operations; null for the host. Collectives
  /// put on it after begin_traffic() follow all operations so far; operations after end_traffic() follow those
  /// collectives.
  virtual comm::Stream* begin_traffic() { return nullptr; }
  virtual void end_traffic() {}

  virtual void copy_to_host(comm::ConstTensor from, std::span<std::byte> to) = 0;
  virtual void copy_from_host(std::span<const std::byte> from, comm::Tensor to) = 0;

  /// The sum of the losses, which were computed `chunk` at a time, by `divisor`: sets the number or adds to it.
  virtual void sum_losses(comm::ConstTensor losses, std::int64_t chunk, double divisor, GradientMode mode,
                          Number number) = 0;
  /// The numbers in host memory, until the next operation. Waits for the device.
  class Numbers {
   public:
    explicit Numbers(std::span<const double> values) : values_(values) {}
    double operator[](Number number) const { return values_[static_cast<std::size_t>(number)]; }

   private:
    std::span<const double> values_;
  };
  virtual Numbers numbers() = 0;
};

/// The elements first, first + 1, ..., first + count - 1.
comm::Tensor elements(const comm::Tensor& tensor, std::int64_t first, std::int64_t count);
comm::ConstTensor elements(const comm::ConstTensor& tensor, std::int64_t first, std::int64_t count);

/// The part of a rank where parts have so many elements.
comm::Tensor part_of_rank(const comm::Tensor& tensor, std::span<const std::uint64_t> counts, int rank);
/// The same where ranks cut the elements as comm::even_counts() does.
comm::Tensor own_part(const comm::Tensor& tensor, int ranks, int rank);

/// Where a rank's part of a sum over ranks is to be: in the message where that is wider than the sum, so that the part
/// is not rounded.
comm::Tensor part_of(const comm::Tensor& sum, const comm::Tensor& message);

}  // namespace droptest::models
