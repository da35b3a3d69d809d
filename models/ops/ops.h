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
  comm::ConstTensor value;    ///< value in the activations' type
  comm::ConstTensor operand;  ///< value in the operand type, for GEMMs; empty if no GEMM reads the parameter
  comm::Tensor gradient;
};

/// An activation or its gradient in the form that GEMMs read: `factor` x `values`. Made by Ops::operand().
struct Operand {
  comm::ConstTensor values;
  double factor = 1;
  comm::ConstTensor unrounded;  ///< the argument of operand()
};

/// The numbers of a step, float64 in the memory of the device, so that a step needs no host for them.
enum class Number : std::uint8_t {
  kLosses,           ///< sum of this rank's mean losses over the passes of a step
  kGradientSquares,  ///< sum of squares of the gradients that this rank counts
  kEvaluation,       ///< mean loss of an evaluation
  kLoss,             ///< result of decide_update(): mean loss
  kGradientNorm,
  kGradientFactor,
};
inline constexpr std::size_t kNumbers = 6;

/// The arenas of an update; all have the same layout.
struct UpdateArenas {
  comm::Tensor values;
  comm::ConstTensor gradients;
  comm::Tensor first_moments, second_moments;  ///< SGD: first_moments are velocities, second_moments is empty
  comm::Tensor rounded;                        ///< 16-bit copy of the values, or empty
};

/// One rank's computations. Each implementation calls its kernels (models/kernels/) in the order of these calls.
/// Tensors are in the implementation's memory and have the types of form(). `mode` says whether a parameter's gradient
/// is set or added to. Owner: one rank, from one thread. Blocking: operations on the host are complete when they
/// return; a device may still be at work. Ranks: begin_sum(), begin_all_reduce(), begin_scattered_sum(), begin_gather()
/// and decide_update() are collectives; all others are local. Determinism: results depend only on arguments, not on
/// threads.
class Ops {
 public:
  virtual ~Ops() = default;

  virtual const OpsForm& form() const = 0;
  /// The size of the group over which sums go, and this rank's number in it.
  virtual int world_size() const = 0;
  virtual int rank() const = 0;
  /// Communicator::stops_lost_gradients() of the group. Default: false, for operations that compute nothing.
  virtual bool stops_lost_gradients(sim::TrafficClass /*traffic_class*/) const { return false; }
  /// Records the rank's time; null, the default: time is not recorded.
  virtual PhaseTimes* times() { return nullptr; }
  /// Records the time of work on stream(); null, the default: time is not recorded.
  virtual comm::StreamTimer* timer() { return nullptr; }
  /// The threads of the host; null, the default: a device computes.
  virtual const Team* team() const { return nullptr; }

  /// Memory that begins at a multiple of 256 bytes. The operations outlive it.
  class Memory {
   public:
    virtual ~Memory() = default;
    virtual std::byte* data() const = 0;
  };
  enum class Content : std::uint8_t { kUnspecified, kZeros };
  /// `purpose` names the memory in errors. Throws: the device's error if there is too little memory.
  virtual std::unique_ptr<Memory> allocate(std::uint64_t bytes, const std::string& purpose, Content content) = 0;
  /// The stream of the operations; tensors are used in its order. Null: the host computes.
  virtual comm::Stream* stream() { return nullptr; }
  /// Returns when all work is finished.
  virtual void synchronize() = 0;

  /// Copies tokens from the host. `from` may change when the call returns.
  virtual void take_tokens(std::span<const std::int32_t> from, TokenIds to) = 0;
  /// Announces the tokens of the next embedding_backward() of that slot. A slot is the number of a set of saved
  /// activations: micro-batches that are in work at the same time have different slots.
  virtual void group_tokens(std::span<const std::int32_t> tokens, TokenRange range, int slot) = 0;
  virtual void zero(comm::Tensor values) = 0;
  /// Sets the elements of these ranges to zero. Default: one call of zero() for each range.
  virtual void zero_ranges(comm::Tensor values, std::span<const sim::ElementRange> ranges);
  /// Copies between equal types, or converts between float32 and a 16-bit float: rounds to the nearest, ties to even.
  virtual void convert(comm::ConstTensor from, comm::Tensor to) = 0;

  /// output[i] = table[tokens[i] - range.first], or zeros if another rank has the token.
  virtual void embedding_forward(TokenIds tokens, TokenRange range, comm::ConstTensor table, std::int64_t width,
                                 comm::Tensor output) = 0;
  /// Adds grad_output to the rows of grad_table for the tokens of the slot's last group_tokens().
  virtual void embedding_backward(TokenIds tokens, TokenRange range, int slot, comm::ConstTensor grad_output,
                                  std::int64_t width, comm::Tensor grad_table) = 0;
  /// values[b, t] += table[t].
  virtual void add_positions(comm::ConstTensor table, std::int64_t batch, std::int64_t length, std::int64_t width,
                             comm::Tensor values) = 0;
  /// grad_table[t] += the sum over b of grad_values[b, t].
  virtual void positions_backward(comm::ConstTensor grad_values, std::int64_t batch, std::int64_t length,
                                  std::int64_t width, comm::Tensor grad_table) = 0;

  /// residual_forward() computes only residual_after of norm_forward(); residual_backward() computes only
  /// grad_branch_bias of norm_backward() from grad_residual. The bits are those of the norm.
  virtual void residual_forward(const NormForward& norm) = 0;
  virtual void residual_backward(const NormBackward& norm) = 0;
  virtual void norm_forward(const NormForward& norm) = 0;
  virtual void norm_backward(const NormBackward& norm) = 0;

  /// The values in the form that GEMMs read, in `room` if the types differ. The operand is valid until the room is used
  /// again. Shapes: `room` has OpsForm's operand type and at least as many elements; empty if the types are equal.
  virtual Operand operand(comm::ConstTensor values, double factor, comm::Tensor room) = 0;
  /// output = input W + bias. `bias` may be null, and must be null if rows of the output have gaps or the output's type
  /// is wider than that of activations.
  virtual void linear_forward(const ProductShape& shape, const Operand& input, const Weight& weight, const Weight* bias,
                              comm::Tensor output) = 0;
  /// grad_input = grad_output W'.
  virtual void linear_backward_input(const ProductShape& shape, const Operand& grad_output, const Weight& weight,
                                     comm::Tensor grad_input) = 0;
  /// Computes the gradient of the weight, and of the bias if it is not null. `bias` must be null if the factor of
  /// grad_output is not 1.
  virtual void linear_backward_weight(const ProductShape& shape, const Operand& input, const Operand& grad_output,
                                      GradientMode mode, const Weight& weight, const Weight* bias) = 0;

  /// output = gelu(input W + bias). `saved` gets the input of gelu_backward_input(); in evaluation it is empty unless
  /// OpsForm::gelu_needs_room().
  virtual void gelu_forward(const ProductShape& shape, const Operand& input, const Weight& weight, const Weight& bias,
                            comm::Tensor saved, comm::Tensor output) = 0;
  /// Computes `saved` and `output` of gelu_forward() from projection = input W, with the same bits. Only if
  /// OpsForm::gelu_from_projection().
  virtual void gelu_of_projection(const ProductShape& shape, comm::ConstTensor projection, const Weight& bias,
                                  comm::Tensor saved, comm::Tensor output) = 0;
  /// grad_input = grad_output W' times the derivative of GELU. Shape and weight are those of the linear layer after the
  /// GELU; `bias` is that of the layer before it. Its gradient is complete if OpsForm::gelu_sums_bias().
  virtual void gelu_backward_input(const ProductShape& shape, const Operand& grad_output, const Weight& weight,
                                   comm::ConstTensor saved, GradientMode mode, const Weight& bias,
                                   comm::Tensor grad_input) = 0;

  /// Causal attention with dropout of the probabilities. Shapes: see AttentionShape; OpsForm gives the sizes of
  /// statistics and scratch.
  virtual void attention_forward(comm::ConstTensor qkv, const AttentionShape& shape, const DropoutMask& dropout,
                                 comm::Tensor statistics, comm::Tensor output, comm::Tensor scratch) = 0;
  virtual void attention_backward(comm::ConstTensor grad_output, comm::ConstTensor qkv, comm::ConstTensor output,
                                  comm::ConstTensor statistics, const AttentionShape& shape, const DropoutMask& dropout,
                                  comm::Tensor grad_qkv, comm::Tensor scratch) = 0;

  /// to = from with dropout; it is also its own backward pass. Both may be the same tensor. Shapes: [rows, width].
  virtual void drop_elements(comm::ConstTensor from, const DropoutMask& mask, std::int64_t rows, std::int64_t width,
                             comm::Tensor to) = 0;

  /// The parts of a cross-entropy over ranks. row_maxima() sets `largest`. exponential_sums() sets `sums` and
  /// `predicted` (the target's logit minus the largest one, 0 if another rank has the target), and may replace the
  /// logits by the exponentials. losses_of_sums() sets `losses`. logits_to_gradient() turns the result of
  /// exponential_sums() into the gradient of each row's loss.
  virtual void row_maxima(const LogitBlock& rows) = 0;
  virtual void exponential_sums(const LogitBlock& rows) = 0;
  virtual void losses_of_sums(const LogitBlock& rows) = 0;
  virtual void logits_to_gradient(const LogitBlock& rows) = 0;
  /// Multiplies each row's loss and gradient by the weight of its target, after logits_to_gradient() or cross_entropy()
  /// with the gradient. Shapes: one weight for each possible target, in host memory.
  virtual void weigh_rows(const LogitBlock& rows, std::span<const double> weights) = 0;
  /// Computes `losses`, and with Logits::kToGradient the gradient, for a rank that has the whole vocabulary. Only if
  /// OpsForm::fuses_cross_entropy().
  virtual void cross_entropy(const LogitBlock& rows, Logits logits) = 0;

  /// Begins sum = the sum over ranks of part_of(sum, message), after all operations so far. Until join(), operations
  /// must use neither tensor. Shapes: equal; message is empty if messages have the type of the sum.
  virtual void begin_sum(comm::Tensor sum, comm::Tensor message, const comm::Message& about) = 0;
  virtual void begin_all_reduce(comm::Tensor data, comm::ReduceOp op, const comm::Message& about) = 0;
  /// Begins own = part rank() of the sum over ranks of part_of(whole, message), cut into parts of `counts` elements.
  /// Until join(), operations must use none of the tensors; `whole` is overwritten. Shapes: whole and message
  /// sum(counts), own counts[rank()]; message is empty if messages have the type of the sum.
  virtual void begin_scattered_sum(comm::Tensor whole, comm::Tensor message, std::span<const std::uint64_t> counts,
                                   comm::Tensor own, const comm::Message& about) = 0;
  /// Begins whole = the parts of all ranks, which have `counts` elements; `own` is the part of this rank. If `message`
  /// is not empty, parts are sent in its type. `own` may be part rank() of `whole`. Until join(), operations must use
  /// none of the tensors. Shapes: as in begin_scattered_sum().
  virtual void begin_gather(comm::Tensor own, comm::Tensor message, std::span<const std::uint64_t> counts,
                            comm::Tensor whole, const comm::Message& about) = 0;
  /// Operations from now on see the results of all sums and gathers that were begun.
  virtual void join() = 0;

  /// Ranges of parameters of one arena, in the form that optimizer and norms process.
  class Ranges {
   public:
    virtual ~Ranges() = default;
  };
  virtual std::unique_ptr<Ranges> make_ranges(std::vector<ParameterRange> ranges) = 0;
  /// sums[c] = the sum of the squares of chunk c, in double. The ranges follow each other, each cut into chunks of
  /// kNormChunkElems. Shapes: sums are float64, one for each chunk.
  virtual void sum_squares(const Ranges& ranges, comm::ConstTensor arena, comm::Tensor sums) = 0;
  /// Sets `number` to the total of the sums, in an order that depends only on how many there are.
  virtual void add_sums(comm::ConstTensor sums, Number number) = 0;
  /// Gathers Number::kLosses and Number::kGradientSquares of all ranks with `message`, and decides about the update.
  /// Every rank gets the decision in Number::kLoss, kGradientNorm and kGradientFactor. Ranks: all of `ranks`, which the
  /// rule describes; null: the group of the sums.
  virtual void decide_update(const UpdateRule& rule, comm::Communicator* ranks, const comm::Message& message) = 0;
  /// One update of the ranges. If `rounded` is not empty, it gets the new values. kOfStep: gradients are multiplied by
  /// step.gradient_scale. kDecided: gradients are multiplied by Number::kGradientFactor; if that is NaN, nothing
  /// changes.
  enum class GradientFactor : std::uint8_t { kOfStep, kDecided };
  virtual void adamw(const Ranges& ranges, const UpdateArenas& arenas, const AdamWStep& step,
                     GradientFactor factor) = 0;
  virtual void sgd(const Ranges& ranges, const UpdateArenas& arenas, const SgdStep& step, GradientFactor factor) = 0;
  /// Sets `rounded` to the values of the ranges if updates of this implementation do not write `rounded`; otherwise
  /// does nothing.
  virtual void round_values(const Ranges& ranges, comm::ConstTensor values, comm::Tensor rounded) = 0;

  /// merge_adapter() and adapter_gradients() of models/kernels/adapter.h, in the parameters' type.
  virtual void merge_adapter(const AdapterShape& shape, comm::ConstTensor weight, comm::ConstTensor a,
                             comm::ConstTensor b, comm::Tensor merged) = 0;
  virtual void adapter_gradients(const AdapterShape& shape, comm::ConstTensor grad_merged, comm::ConstTensor a,
                                 comm::ConstTensor b, comm::Tensor grad_a, comm::Tensor grad_b) = 0;

  /// to += from. Both have the parameters' type.
  virtual void accumulate(comm::ConstTensor from, comm::Tensor to) = 0;

  /// The storage for offloaded residual streams, made at the first call. Writing and reading overlap with operations.
  virtual KeyedStorage& offload() = 0;
  /// The bytes of the buffers of offload() in the operations' memory; 0 before the first call.
  virtual std::uint64_t offload_bytes() const = 0;
  /// New storage like offload(), with separate keys. The operations outlive it.
  virtual std::unique_ptr<KeyedStorage> make_keyed_storage() = 0;

  /// New storage like offload(), but addressed by offsets. The operations outlive it. `purpose` names the storage in
  /// errors. Throws: ConfigError that names file and bytes if there is not enough room.
  virtual std::unique_ptr<Storage> make_storage(std::uint64_t bytes, const std::string& purpose) = 0;

  /// The stream of collectives over data-parallel ranks, which overlap with operations; null on the host. Collectives
  /// that are put on it after begin_traffic() run after all operations so far; operations after end_traffic() run after
  /// those collectives.
  virtual comm::Stream* begin_traffic() { return nullptr; }
  virtual void end_traffic() {}

  virtual void copy_to_host(comm::ConstTensor from, std::span<std::byte> to) = 0;
  virtual void copy_from_host(std::span<const std::byte> from, comm::Tensor to) = 0;

  /// Sets `number` to the sum of the losses divided by `divisor`, or adds it with kAdd. The host first adds up the
  /// losses of each chunk of `chunk` rows.
  virtual void sum_losses(comm::ConstTensor losses, std::int64_t chunk, double divisor, GradientMode mode,
                          Number number) = 0;
  /// A step's numbers in host memory, by Number.
  class Numbers {
   public:
    explicit Numbers(std::span<const double> values) : values_(values) {}
    double operator[](Number number) const { return values_[static_cast<std::size_t>(number)]; }

   private:
    std::span<const double> values_;
  };
  /// The numbers, valid until the next operation. Waits for the device.
  virtual Numbers numbers() = 0;
};

/// The elements first, first + 1, ..., first + count - 1. Throws: CheckError if the tensor does not have them.
comm::Tensor elements(const comm::Tensor& tensor, std::int64_t first, std::int64_t count);
comm::ConstTensor elements(const comm::ConstTensor& tensor, std::int64_t first, std::int64_t count);

/// The part of rank `rank` if the parts have `counts` elements.
comm::Tensor part_of_rank(const comm::Tensor& tensor, std::span<const std::uint64_t> counts, int rank);
/// The part of rank `rank` if elements are cut as in comm::even_counts().
comm::Tensor own_part(const comm::Tensor& tensor, int ranks, int rank);

/// The tensor for a rank's addend of a sum over ranks: `message` if its type is wider than that of the sum, so that the
/// addend is not rounded; else `sum`.
comm::Tensor part_of(const comm::Tensor& sum, const comm::Tensor& message);

}  // namespace droptest::models
