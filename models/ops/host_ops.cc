// SPDX-License-Identifier: Apache-2.0
#include "models/ops/host_ops.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "models/host_buffer.h"
#include "models/kernels/adamw.h"
#include "models/kernels/attention_kernel.h"
#include "models/kernels/chunks.h"
#include "models/kernels/gelu.h"
#include "models/kernels/matmul.h"
#include "models/kernels/matmul_bf16.h"
#include "models/kernels/matmul_kernel.h"
#include "models/kernels/narrow_floats.h"
#include "models/kernels/residual.h"
#include "models/kernels/sgd.h"
#include "models/kernels/squares.h"
#include "models/ops/file_storage.h"
#include "models/ops/kernel_registry.h"
#include "models/ops/offload_file.h"
#include "models/team.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

using comm::ConstTensor;
using comm::ElementType;
using comm::Tensor;

const HostOpsOptions& validated(const HostOpsOptions& options) {
  if (options.precision != ModelPrecision{} && options.type != ElementType::kFloat32) {
    throw ConfigError("GPT-2: /training/precision: got 16-bit floats for a model of double numbers, want float32");
  }
  if (options.precision.compute == Precision::kTf32) {
    throw ConfigError(
        "GPT-2: /training/precision/compute: got \"tf32\" on the CPU, want \"float32\", \"bfloat16\" or \"float16\", "
        "or "
        "/device \"cuda\"");
  }
  check_kernels(options.kernels, KernelDevice::kHost);
  return options;
}

class HostForm final : public OpsForm {
 public:
  HostForm(const HostOpsOptions& options, int world_size)
      : options_(validated(options)),
        world_size_(world_size),
        attention_(make_attention(options.kernels, KernelDevice::kHost)) {}

  const AttentionKernel& attention() const { return *attention_; }

  OpsTypes types() const override {
    const ElementType own = options_.type;
    const auto rounded = [own](Precision p) { return p == Precision::kFloat32 ? own : element_type(p); };
    return {own,
            rounded(options_.precision.compute),
            world_size_ == 1 ? own : rounded(options_.precision.message),
            own,
            ElementType::kFloat64,
            own};
  }
  KernelDevice device() const override { return KernelDevice::kHost; }
  int threads() const override { return options_.threads; }
  std::uint64_t attention_statistics_elems(const AttentionShape& shape) const override {
    return attention_->statistics_elems(shape);
  }
  std::uint64_t attention_forward_scratch_elems(const AttentionShape& shape) const override {
    return attention_->forward_scratch_elems(shape, options_.threads);
  }
  std::uint64_t attention_backward_scratch_elems(const AttentionShape& shape) const override {
    return attention_->backward_scratch_elems(shape, options_.threads);
  }
  std::uint64_t norm_scratch_elems(std::int64_t /*rows*/, std::int64_t /*width*/) const override { return 0; }
  bool gelu_needs_room() const override { return false; }
  bool gelu_from_projection() const override { return true; }
  bool gelu_sums_bias() const override { return true; }
  LogitChunks logit_chunks(std::int64_t rows, std::int64_t columns, std::int64_t largest_part) const override {
    const std::int64_t most_rows =
        std::max<std::int64_t>(1, options_.max_logits / std::max<std::int64_t>(1, largest_part));
    const std::int64_t chunks = std::max<std::int64_t>(1, (rows + most_rows - 1) / most_rows);
    return {columns, (rows + chunks - 1) / chunks};
  }
  bool fuses_cross_entropy() const override { return false; }
  bool drops_probabilities() const override { return attention_->takes_dropout(); }

 private:
  HostOpsOptions options_;
  int world_size_;
  std::unique_ptr<AttentionKernel> attention_;
};

class HostMemory final : public Ops::Memory {
 public:
  explicit HostMemory(std::uint64_t bytes) : memory_(bytes) {}
  std::byte* data() const override { return memory_.data(); }

 private:
  ZeroedMemory memory_;
};

struct HostRanges final : Ops::Ranges {
  explicit HostRanges(std::vector<ParameterRange> ranges) : list(std::move(ranges)) {}
  std::vector<ParameterRange> list;
};

Transpose transposed_if(bool yes) { return yes ? Transpose::kYes : Transpose::kNo; }

/// The rows and columns of a stored weight that the layer uses.
template <class Pointer>
auto as_stored(Pointer* data, const ProductShape& shape) {
  return shape.layout == WeightLayout::kInputsByOutputs ? dense(data, shape.inputs, shape.outputs)
                                                        : dense(data, shape.outputs, shape.inputs);
}

/// T is float or double.
template <class T>
class HostOps final : public Ops {
 public:
  HostOps(const HostOpsOptions& options, comm::Communicator& group, PhaseTimes* times)
      : form_(options, group.world_size()),
        team_(options.threads),
        group_(group),
        times_(times),
        matmul_(make_matmul(options.kernels)),
        multiplies_bf16_(has_bf16_products() && matmul_->multiplies_bf16() &&
                         options.narrow_products == HostOpsOptions::NarrowProducts::kFastest),
        offload_directory_(options.offload_directory) {}

  const OpsForm& form() const override { return form_; }
  int world_size() const override { return group_.world_size(); }
  int rank() const override { return group_.rank(); }
  bool stops_lost_gradients(sim::TrafficClass traffic_class) const override {
    return group_.stops_lost_gradients(traffic_class);
  }
  PhaseTimes* times() override { return times_; }
  const Team* team() const override { return &team_; }

  std::unique_ptr<Memory> allocate(std::uint64_t bytes, const std::string& /*purpose*/, Content /*content*/) override {
    return std::make_unique<HostMemory>(bytes);
  }
  void synchronize() override {}

  void take_tokens(std::span<const std::int32_t> from, TokenIds to) override {
    std::copy(from.begin(), from.end(), to.data);
  }
  void group_tokens(std::span<const std::int32_t> /*tokens*/, TokenRange /*range*/, int /*slot*/) override {}
  void zero(Tensor values) override { std::fill(values.bytes.begin(), values.bytes.end(), std::byte{0}); }
  void convert(ConstTensor from, Tensor to) override {
    if (from.type == to.type) {
      std::copy(from.bytes.begin(), from.bytes.end(), to.bytes.begin());
    } else if (to.type == ElementType::kFloat32) {
      widen(from, to.as<float>());
    } else {
      round(from.as<float>(), 1.0F, to);
    }
  }

  void embedding_forward(TokenIds tokens, TokenRange range, ConstTensor table, std::int64_t width,
                         Tensor output) override {
    const PhaseScope scope(times_, Phase::kEmbedding);
    models::embedding_forward<T>(host(tokens), range, table.as<T>(), width, output.as<T>(), team_);
  }
  void embedding_backward(TokenIds tokens, TokenRange range, int /*slot*/, ConstTensor grad_output, std::int64_t width,
                          Tensor grad_table) override {
    const PhaseScope scope(times_, Phase::kEmbedding);
    models::embedding_backward<T>(host(tokens), range, grad_output.as<T>(), width, grad_table.as<T>(), team_);
  }
  void add_positions(ConstTensor table, std::int64_t batch, std::int64_t length, std::int64_t width,
                     Tensor values) override {
    const PhaseScope scope(times_, Phase::kEmbedding);
    models::add_positions<T>(table.as<T>(), batch, length, width, values.as<T>(), team_);
  }
  void positions_backward(ConstTensor grad_values, std::int64_t batch, std::int64_t length, std::int64_t width,
                          Tensor grad_table) override {
    const PhaseScope scope(times_, Phase::kEmbedding);
    models::positions_backward<T>(grad_values.as<T>(), batch, length, width, grad_table.as<T>(), team_);
  }

  void residual_forward(const NormForward& n) override {
    const PhaseScope scope(times_, Phase::kBias);
    add_branch<T>(n, team_);
  }
  void residual_backward(const NormBackward& n) override {
    add_bias_gradient(n.grad_residual, n.rows, n.mode, n.grad_branch_bias);
  }
  void norm_forward(const NormForward& n) override {
    const PhaseScope scope(times_, Phase::kLayerNorm);
    layernorm_forward<T>(n, team_);
  }
  void norm_backward(const NormBackward& n) override {
    {
      const PhaseScope scope(times_, Phase::kLayerNorm);
      if (n.grad_before.bytes.empty()) {
        zero(n.grad_residual);
      } else if (n.grad_before.bytes.data() != n.grad_residual.bytes.data()) {
        convert(n.grad_before, n.grad_residual);
      }
      started(n.grad_gain, n.mode);
      started(n.grad_bias, n.mode);
      layernorm_backward<T>(n, team_);
    }
    if (!n.grad_branch_bias.bytes.empty()) residual_backward(n);
  }

  Operand operand(ConstTensor values, double factor, Tensor room) override {
    if (room.bytes.empty()) return {values, factor, values};
    const PhaseScope scope(times_, Phase::kProducts);
    const Tensor rounded = elements(room, 0, static_cast<std::int64_t>(values.count_elems()));
    round(values.as<float>(), static_cast<float>(factor), rounded);
    return {rounded, 1, values};
  }
  void linear_forward(const ProductShape& shape, const Operand& input, const Weight& weight, const Weight* bias,
                      Tensor output) override {
    if (bias != nullptr) {
      const PhaseScope scope(times_, Phase::kBias);
      fill_rows<T>(bias->value.as<T>(), shape.rows, output.as<T>(), team_);
    }
    multiply_forward(shape, input, weight, bias == nullptr ? T(0) : T(1), output);
  }
  void linear_backward_input(const ProductShape& shape, const Operand& grad_output, const Weight& weight,
                             Tensor grad_input) override {
    const bool outputs_first = shape.layout == WeightLayout::kOutputsByInputs;
    multiply(Transpose::kNo, grad_output, shape.rows, shape.outputs, transposed_if(!outputs_first), weight.operand,
             stored_rows(shape), stored_columns(shape), grad_output.factor, T(0),
             dense(grad_input.as<T>().data(), shape.rows, shape.inputs));
  }
  void linear_backward_weight(const ProductShape& shape, const Operand& input, const Operand& grad_output,
                              GradientMode mode, const Weight& weight, const Weight* bias) override {
    DROPTEST_CHECK(bias == nullptr || grad_output.factor == 1, "a factor of a bias gradient");
    if (bias != nullptr) add_bias_gradient(grad_output.unrounded, shape.rows, mode, bias->gradient);
    const bool outputs_first = shape.layout == WeightLayout::kOutputsByInputs;
    const Operand& left = outputs_first ? grad_output : input;
    const Operand& right = outputs_first ? input : grad_output;
    multiply(Transpose::kYes, left, shape.rows, outputs_first ? shape.outputs : shape.inputs, Transpose::kNo,
             right.values, shape.rows, outputs_first ? shape.inputs : shape.outputs, grad_output.factor,
             mode == GradientMode::kSet ? T(0) : T(1), as_stored(weight.gradient.as<T>().data(), shape));
  }

  void gelu_forward(const ProductShape& shape, const Operand& input, const Weight& weight, const Weight& bias,
                    Tensor saved, Tensor output) override {
    const bool keep = !saved.bytes.empty();
    multiply_forward(shape, input, weight, T(0), keep ? saved : output);
    const PhaseScope scope(times_, Phase::kGelu);
    if (keep) {
      bias_gelu_forward<T>(bias.value.as<T>(), shape.rows, saved.as<T>(), output.as<T>(), team_);
    } else {
      bias_gelu<T>(bias.value.as<T>(), shape.rows, output.as<T>(), team_);
    }
  }
  void gelu_of_projection(const ProductShape& shape, ConstTensor projection, const Weight& bias, Tensor saved,
                          Tensor output) override {
    convert(projection, saved);
    const PhaseScope scope(times_, Phase::kGelu);
    bias_gelu_forward<T>(bias.value.as<T>(), shape.rows, saved.as<T>(), output.as<T>(), team_);
  }
  void gelu_backward_input(const ProductShape& shape, const Operand& grad_output, const Weight& weight,
                           ConstTensor saved, GradientMode mode, const Weight& bias, Tensor grad_input) override {
    linear_backward_input(shape, grad_output, weight, grad_input);
    const PhaseScope scope(times_, Phase::kGelu);
    bias_gelu_backward<T>(saved.as<T>(), shape.rows, grad_input.as<T>(), started(bias.gradient, mode), team_);
  }

  void attention_forward(ConstTensor qkv, const AttentionShape& shape, const DropoutMask& dropout, Tensor statistics,
                         Tensor output, Tensor scratch) override {
    const PhaseScope scope(times_, Phase::kAttention);
    form_.attention().forward({qkv, statistics, output, scratch, dropout}, shape, {&team_, nullptr});
  }
  void attention_backward(ConstTensor grad_output, ConstTensor qkv, ConstTensor output, ConstTensor statistics,
                          const AttentionShape& shape, const DropoutMask& dropout, Tensor grad_qkv,
                          Tensor scratch) override {
    const PhaseScope scope(times_, Phase::kAttention);
    form_.attention().backward({grad_output, qkv, output, statistics, grad_qkv, scratch, dropout}, shape,
                               {&team_, nullptr});
  }
  void drop_elements(ConstTensor from, const DropoutMask& mask, std::int64_t rows, std::int64_t width,
                     Tensor to) override {
    const PhaseScope scope(times_, Phase::kBias);
    models::drop_elements<T>(from.as<T>().data(), mask, rows, width, to.as<T>().data(), team_);
  }

  void row_maxima(const LogitBlock& b) override {
    const PhaseScope scope(times_, Phase::kCrossEntropy);
    models::row_maxima<T>(b, team_);
  }
  void exponential_sums(const LogitBlock& b) override {
    const PhaseScope scope(times_, Phase::kCrossEntropy);
    models::exponential_sums<T>(b, team_);
  }
  void losses_of_sums(const LogitBlock& b) override {
    const PhaseScope scope(times_, Phase::kCrossEntropy);
    models::losses_of_sums<T>(b);
  }
  void logits_to_gradient(const LogitBlock& b) override {
    const PhaseScope scope(times_, Phase::kCrossEntropy);
    models::logits_to_gradient<T>(b, team_);
  }
  void weigh_rows(const LogitBlock& b, std::span<const double> weights) override {
    const PhaseScope scope(times_, Phase::kCrossEntropy);
    models::weigh_rows<T>(b, weights, team_);
  }
  void cross_entropy(const LogitBlock& /*rows*/, Logits /*logits*/) override {
    DROPTEST_CHECK(false, "the host's cross-entropy is in pieces");
  }

  void begin_sum(Tensor sum, Tensor message, const comm::Message& about) override {
    const PhaseScope scope(times_, Phase::kReductions);
    if (message.bytes.empty()) return group_.all_reduce(sum, comm::ReduceOp::kSum, about);
    convert(sum, message);
    group_.all_reduce(message, comm::ReduceOp::kSum, about);
    convert(message, sum);
  }
  void begin_all_reduce(Tensor data, comm::ReduceOp op, const comm::Message& about) override {
    const PhaseScope scope(times_, Phase::kReductions);
    group_.all_reduce(data, op, about);
  }
  void begin_scattered_sum(Tensor whole, Tensor message, std::span<const std::uint64_t> counts, Tensor own,
                           const comm::Message& about) override {
    const PhaseScope scope(times_, Phase::kReductions);
    if (message.bytes.empty()) return group_.reduce_scatter(whole, own, counts, comm::ReduceOp::kSum, about);
    const Tensor sent = part_of_rank(message, counts, rank());
    convert(whole, message);
    group_.reduce_scatter(message, sent, counts, comm::ReduceOp::kSum, about);
    convert(sent, own);
  }
  void begin_gather(Tensor own, Tensor message, std::span<const std::uint64_t> counts, Tensor whole,
                    const comm::Message& about) override {
    const PhaseScope scope(times_, Phase::kReductions);
    if (message.bytes.empty()) return group_.all_gather(own, whole, counts, about);
    const Tensor sent = part_of_rank(message, counts, rank());
    convert(own, sent);
    group_.all_gather(sent, message, counts, about);
    convert(message, whole);
  }
  void join() override {}

  KeyedStorage& offload() override {
    if (!offload_) offload_.emplace(make_offload_file(offload_directory_));
    return *offload_;
  }
  std::uint64_t offload_bytes() const override { return offload_ ? offload_->buffer_bytes() : 0; }
  std::unique_ptr<KeyedStorage> make_keyed_storage() override {
    return std::make_unique<OffloadFile>(make_offload_file(offload_directory_));
  }
  std::unique_ptr<Storage> make_storage(std::uint64_t bytes, const std::string& purpose) override {
    return std::make_unique<FileStorage>(make_offload_file(offload_directory_), bytes, purpose);
  }

  std::unique_ptr<Ranges> make_ranges(std::vector<ParameterRange> ranges) override {
    return std::make_unique<HostRanges>(std::move(ranges));
  }
  void sum_squares(const Ranges& ranges, ConstTensor arena, Tensor sums) override {
    const PhaseScope scope(times_, Phase::kGradientNorm);
    std::span<double> rest = sums.as<double>();
    for (const ParameterRange& range : list(ranges)) {
      const std::size_t chunks = (range.count + kNormChunkElems - 1) / kNormChunkElems;
      squares_of_chunks<T>(part(arena, range), rest.first(chunks), team_);
      rest = rest.subspan(chunks);
    }
    DROPTEST_CHECK(rest.empty(), "more sums of squares than chunks");
  }
  void add_sums(ConstTensor sums, Number number) override {
    const std::span<const double> values = sums.as<double>();
    number_at(number) = std::accumulate(values.begin(), values.end(), 0.0);
  }
  void decide_update(const UpdateRule& rule, comm::Communicator* deciding, const comm::Message& message) override {
    const PhaseScope scope(times_, Phase::kReductions);
    comm::Communicator& ranks = deciding == nullptr ? group_ : *deciding;
    std::vector<RankNumbers> all(static_cast<std::size_t>(ranks.world_size()));
    const RankNumbers own{number_at(Number::kLosses), number_at(Number::kGradientSquares)};
    const std::vector<std::uint64_t> counts(all.size(), 2);
    ranks.all_gather(std::span<const double>(own), std::span<double>(all.front().data(), 2 * all.size()), counts,
                     message);
    const UpdateDecision decision = models::decide_update(all, ranks.rank(), rule);
    number_at(Number::kLoss) = decision.loss;
    number_at(Number::kGradientNorm) = decision.gradient_norm;
    number_at(Number::kGradientFactor) = decision.factor;
  }
  void adamw(const Ranges& ranges, const UpdateArenas& a, const AdamWStep& step, GradientFactor factor) override {
    update(ranges, step, factor, [&](const ParameterRange& range, const AdamWStep& of_range) {
      adamw_update<T>(part(a.values, range), part(a.gradients, range), part(a.first_moments, range),
                      part(a.second_moments, range), of_range, team_);
    });
  }
  void sgd(const Ranges& ranges, const UpdateArenas& a, const SgdStep& step, GradientFactor factor) override {
    update(ranges, step, factor, [&](const ParameterRange& range, const SgdStep& of_range) {
      sgd_update<T>(part(a.values, range), part(a.gradients, range), part(a.first_moments, range), of_range, team_);
    });
  }
  void round_values(const Ranges& ranges, ConstTensor values, Tensor rounded) override {
    if constexpr (std::is_same_v<T, float>) {
      for (const ParameterRange& range : list(ranges)) {
        round(part(values, range), 1.0F,
              elements(rounded, static_cast<std::int64_t>(range.offset), static_cast<std::int64_t>(range.count)));
      }
    }
  }

  void merge_adapter(const AdapterShape& shape, ConstTensor weight, ConstTensor a, ConstTensor b,
                     Tensor merged) override {
    models::merge_adapter<T>(shape, weight.as<T>(), a.as<T>(), b.as<T>(), merged.as<T>(), team_);
  }
  void adapter_gradients(const AdapterShape& shape, ConstTensor grad_merged, ConstTensor a, ConstTensor b,
                         Tensor grad_a, Tensor grad_b) override {
    models::adapter_gradients<T>(shape, grad_merged.as<T>(), a.as<T>(), b.as<T>(), grad_a.as<T>(), grad_b.as<T>(),
                                 team_);
  }

  void accumulate(ConstTensor from, Tensor to) override { add_column_sums<T>(from.as<T>(), 1, to.as<T>(), team_); }

  void copy_to_host(ConstTensor from, std::span<std::byte> to) override {
    std::copy(from.bytes.begin(), from.bytes.end(), to.begin());
  }
  void copy_from_host(std::span<const std::byte> from, Tensor to) override {
    std::copy(from.begin(), from.end(), to.bytes.begin());
  }

  void sum_losses(ConstTensor losses, std::int64_t chunk, double divisor, GradientMode mode, Number number) override {
    const std::span<const double> values = losses.as<double>();
    double sum = 0;
    for (std::size_t row = 0; row < values.size(); row += static_cast<std::size_t>(chunk)) {
      double of_chunk = 0;
      const std::size_t end = std::min(values.size(), row + static_cast<std::size_t>(chunk));
      for (std::size_t i = row; i < end; ++i) of_chunk += values[i];
      sum += of_chunk;
    }
    number_at(number) = (mode == GradientMode::kSet ? 0.0 : number_at(number)) + sum / divisor;
  }
  Numbers numbers() override { return Numbers(numbers_); }

 private:
  /// Calls body(range, step) with the update step of each range.
  template <class Step, class Body>
  void update(const Ranges& ranges, Step step, GradientFactor factor, const Body& body) {
    const PhaseScope scope(times_, Phase::kOptimizer);
    if (factor == GradientFactor::kDecided) {
      step.gradient_scale = number_at(Number::kGradientFactor);
      if (std::isnan(step.gradient_scale)) return;
    }
    for (const ParameterRange& range : list(ranges)) {
      Step of_range = step;
      if (range.decay == Decay::kKeeps) of_range.weight_decay = 0;
      of_range.learning_rate *= range.learning_rate_factor;
      body(range, of_range);
    }
  }

  /// to = factor x from, in 16 bits.
  void round(std::span<const float> from, float factor, Tensor to) {
    if (to.type == ElementType::kFloat16) return to_narrow(from, factor, to.as<Fp16>(), team_);
    to_narrow(from, factor, to.as<Bf16>(), team_);
  }
  void widen(ConstTensor from, std::span<float> to) {
    if (from.type == ElementType::kFloat16) return to_floats(from.as<Fp16>(), to, team_);
    to_floats(from.as<Bf16>(), to, team_);
  }
  /// The elements as floats; valid until the next call with this room.
  const float* widened(ConstTensor narrow, HostBuffer<float>& room) {
    const std::size_t count = narrow.count_elems();
    if (room.elems().size() < count) room = HostBuffer<float>(count);
    widen(narrow, room.elems().first(count));
    return room.elems().data();
  }

  double& number_at(Number number) { return numbers_[static_cast<std::size_t>(number)]; }
  static std::span<const std::int32_t> host(TokenIds tokens) { return {tokens.data, tokens.count}; }

  static const std::vector<ParameterRange>& list(const Ranges& ranges) {
    return static_cast<const HostRanges&>(ranges).list;
  }
  static std::span<T> part(const Tensor& arena, const ParameterRange& range) {
    return arena.as<T>().subspan(range.offset, range.count);
  }
  static std::span<const T> part(const ConstTensor& arena, const ParameterRange& range) {
    return arena.as<T>().subspan(range.offset, range.count);
  }

  /// A gradient that kernels may add to.
  std::span<T> started(Tensor gradient, GradientMode mode) {
    if (mode == GradientMode::kSet) zero(gradient);
    return gradient.as<T>();
  }
  void add_bias_gradient(ConstTensor grad_output, std::int64_t rows, GradientMode mode, Tensor gradient) {
    const PhaseScope scope(times_, Phase::kBias);
    add_column_sums<T>(grad_output.as<T>(), rows, started(gradient, mode), team_);
  }

  static std::int64_t stored_rows(const ProductShape& s) {
    return s.layout == WeightLayout::kInputsByOutputs ? s.inputs : s.outputs;
  }
  static std::int64_t stored_columns(const ProductShape& s) {
    return s.layout == WeightLayout::kInputsByOutputs ? s.outputs : s.inputs;
  }
  void multiply_forward(const ProductShape& shape, const Operand& input, const Weight& weight, T beta, Tensor output) {
    multiply(Transpose::kNo, input, shape.rows, shape.inputs,
             transposed_if(shape.layout == WeightLayout::kOutputsByInputs), weight.operand, stored_rows(shape),
             stored_columns(shape), 1, beta, dense(output.as<T>().data(), shape.rows, shape.outputs));
  }
  /// result = factor op(a) op(b) + beta result; beta is 0 or 1.
  void multiply(Transpose transpose_a, const Operand& a, std::int64_t a_rows, std::int64_t a_columns,
                Transpose transpose_b, ConstTensor b, std::int64_t b_rows, std::int64_t b_columns, double factor,
                T beta, const Matrix<T>& result) {
    const PhaseScope scope(times_, Phase::kProducts);
    const SingleThreadedLibraries single_threaded;
    if constexpr (std::is_same_v<T, float>) {
      if (b.type == ElementType::kBfloat16 && multiplies_bf16_) {
        bf16_matmul_(transpose_a, dense(a.values.as<Bf16>().data(), a_rows, a_columns), transpose_b,
                     dense(b.as<Bf16>().data(), b_rows, b_columns),
                     beta == 0 ? Bf16Matmul::Keep::kSet : Bf16Matmul::Keep::kAdd, result, team_);
        return;
      }
      // The product of two rounded operands is exact in float, so the library only decides the order of the sums.
      if (b.type != ElementType::kFloat32) {
        const ConstTensor used_a = elements(a.values, 0, a_rows * a_columns);
        const ConstTensor used_b = elements(b, 0, b_rows * b_columns);
        matmul_->multiply(
            Product<float>{transpose_a, dense(widened(used_a, widened_a_), a_rows, a_columns), transpose_b,
                           dense(widened(used_b, widened_b_), b_rows, b_columns), 1.0F, beta, result},
            team_);
        return;
      }
    }
    matmul_->multiply(Product<T>{transpose_a, dense(a.values.as<T>().data(), a_rows, a_columns), transpose_b,
                                 dense(b.as<T>().data(), b_rows, b_columns), static_cast<T>(factor), beta, result},
                      team_);
  }

  HostForm form_;
  Team team_;
  comm::Communicator& group_;
  PhaseTimes* times_;
  std::unique_ptr<MatmulKernel> matmul_;
  bool multiplies_bf16_;
  std::string offload_directory_;
  std::optional<OffloadFile> offload_;
  Bf16Matmul bf16_matmul_;
  HostBuffer<float> widened_a_;  ///< operands of GEMMs that are computed in float
  HostBuffer<float> widened_b_;
  std::array<double, kNumbers> numbers_{};
};

}  // namespace

std::unique_ptr<OpsForm> host_ops_form(const HostOpsOptions& options, int world_size) {
  return std::make_unique<HostForm>(options, world_size);
}

std::unique_ptr<Ops> make_host_ops(const HostOpsOptions& options, comm::Communicator& group, PhaseTimes* times) {
  if (options.threads < 1) {
    throw ConfigError("GPT-2: threads of rank " + std::to_string(group.rank()) + ": got " +
                      std::to_string(options.threads) + ", want at least 1");
  }
  if (options.type == ElementType::kFloat64) return std::make_unique<HostOps<double>>(options, group, times);
  return std::make_unique<HostOps<float>>(options, group, times);
}

}  // namespace droptest::models
