// SPDX-License-Identifier: Apache-2.0
#include "models/ops/cuda_ops.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "comm/device/device_buffer.h"
#include "comm/device/device_tensor.h"
#include "comm/device/stream.h"
#include "comm/device/tensor_operations.h"
#include "models/kernels/attention_kernel.h"
#include "models/kernels/matrix_products.h"
#include "models/kernels/narrow_floats.h"
#include "models/kernels/residual.h"
#include "models/kernels/sgd.h"
#include "models/kernels/tensor_segments.h"
#include "models/kernels/token_groups.h"
#include "models/ops/cuda_offload.h"
#include "models/ops/cuda_storage.h"
#include "models/ops/device_spans.h"
#include "models/ops/kernel_registry.h"
#include "models/phase_times.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

using comm::ConstTensor;
using comm::DeviceSpan;
using comm::ElementType;
using comm::Tensor;

// Rows of logits begin at multiples of kStrideElems elements, and chunks at multiples of kChunkRows rows if the memory
// limit allows so many. So GEMMs load whole vectors and tiles.
constexpr std::int64_t kStrideElems = 64;
constexpr std::int64_t kChunkRows = 64;

std::int64_t rounded_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

class CudaForm final : public OpsForm {
 public:
  CudaForm(const CudaOpsOptions& options, int world_size)
      : options_(options),
        world_size_(world_size),
        attention_(make_attention(options.kernels, KernelDevice::kCuda)),
        fuses_cross_entropy_(kernel_name(options.kernels, "cross_entropy", KernelDevice::kCuda) == "fused") {
    check_kernels(options.kernels, KernelDevice::kCuda);
  }

  OpsTypes types() const override {
    const ElementType compute = element_type(options_.precision.compute);
    return {compute,
            compute,
            world_size_ == 1 ? compute : element_type(options_.precision.message),
            ElementType::kFloat32,
            ElementType::kFloat32,
            ElementType::kFloat32};
  }
  KernelDevice device() const override { return KernelDevice::kCuda; }
  std::uint64_t attention_statistics_elems(const AttentionShape& shape) const override {
    return attention_->statistics_elems(shape);
  }
  std::uint64_t attention_forward_scratch_elems(const AttentionShape& shape) const override {
    return attention_->forward_scratch_elems(shape, 0);
  }
  std::uint64_t attention_backward_scratch_elems(const AttentionShape& shape) const override {
    return attention_->backward_scratch_elems(shape, 0);
  }
  std::uint64_t norm_scratch_elems(std::int64_t rows, std::int64_t width) const override {
    return layernorm_scratch_elems(rows, width);
  }
  bool gelu_needs_room() const override { return true; }
  bool gelu_from_projection() const override { return false; }  // a GEMM's epilogue may round another way
  bool gelu_sums_bias() const override { return false; }
  LogitChunks logit_chunks(std::int64_t rows, std::int64_t /*columns*/, std::int64_t largest_part) const override {
    LogitChunks chunks;
    chunks.stride = rounded_up(std::max<std::int64_t>(1, largest_part), kStrideElems);
    const auto row_bytes = static_cast<std::uint64_t>(chunks.stride) * comm::element_bytes(types().activations);
    const auto most_rows = std::max<std::int64_t>(1, static_cast<std::int64_t>(options_.logits_bytes / row_bytes));
    const std::int64_t count = std::max<std::int64_t>(1, (rows + most_rows - 1) / most_rows);  // a rank may have none
    chunks.rows = std::min({rounded_up((rows + count - 1) / count, kChunkRows), most_rows, rows});
    return chunks;
  }
  bool fuses_cross_entropy() const override { return fuses_cross_entropy_; }
  bool rounds_logit_gradients_to_fp16() const override { return types().activations == ElementType::kFloat16; }
  bool drops_probabilities() const override { return attention_->takes_dropout(); }

 private:
  CudaOpsOptions options_;
  int world_size_;
  std::unique_ptr<AttentionKernel> attention_;
  bool fuses_cross_entropy_;
};

/// Waits in its destructor for the work on the stream.
class CudaMemory final : public Ops::Memory {
 public:
  CudaMemory(std::uint64_t bytes, const std::string& purpose, comm::Stream& stream)
      : stream_(stream), memory_(bytes, purpose) {}
  ~CudaMemory() override {
    try {
      stream_.synchronize();
    } catch (const DeviceError&) {
      // A broken device does not work on anything.
    }
  }
  std::byte* data() const override { return memory_.data(); }

 private:
  comm::Stream& stream_;
  comm::DeviceMemory memory_;
};

struct CudaRanges final : Ops::Ranges {
  CudaRanges(std::span<const ParameterRange> list, comm::Stream& stream) : segments(list, stream) {}
  TensorSegments segments;
};

Tensor on_stream(const Tensor& tensor, comm::Stream& stream) { return {tensor.type, tensor.bytes, &stream}; }

/// Counts the work that is put on the stream during its lifetime as a phase.
class StreamPhase : public comm::StreamTimer::Scope {
 public:
  StreamPhase(comm::StreamTimer* timer, Phase phase, comm::Stream& stream)
      : Scope(timer, static_cast<std::size_t>(phase), &stream) {}
};

/// E, float, Bf16 or Fp16, is the type of activations.
template <class E>
class CudaOps final : public Ops {
 public:
  CudaOps(const CudaOpsOptions& options, comm::Communicator& group, comm::StreamTimer* timer)
      : form_(options, group.world_size()),
        group_(group),
        stream_(options.device),
        attention_(make_attention(options.kernels, KernelDevice::kCuda)),
        timer_(timer),
        gemms_(stream_,
               kernel_name(options.kernels, "matmul", KernelDevice::kCuda) == "cublaslt_unfused"
                   ? MatrixProducts<E>::Epilogues::kOwnKernels
                   : MatrixProducts<E>::Epilogues::kFused,
               options.precision.compute == Precision::kTf32 ? FloatProducts::kTf32 : FloatProducts::kExact),
        numbers_(kNumbers, "losses and norms"),
        host_numbers_(kNumbers) {
    if (group.world_size() > 1) collectives_.emplace(stream_.device());
  }

  const OpsForm& form() const override { return form_; }
  int world_size() const override { return group_.world_size(); }
  int rank() const override { return group_.rank(); }
  bool stops_lost_gradients(sim::TrafficClass traffic_class) const override {
    return group_.stops_lost_gradients(traffic_class);
  }

  comm::StreamTimer* timer() override { return timer_; }

  std::unique_ptr<Memory> allocate(std::uint64_t bytes, const std::string& purpose, Content content) override {
    auto memory = std::make_unique<CudaMemory>(bytes, purpose, stream_);
    if (content == Content::kZeros) comm::zero_on_device(memory->data(), bytes, stream_);
    return memory;
  }
  comm::Stream* stream() override { return &stream_; }
  void synchronize() override { stream_.synchronize(); }

  void take_tokens(std::span<const std::int32_t> from, TokenIds to) override {
    const auto* staged = static_cast<const std::int32_t*>(stream_.stage(std::as_bytes(from)));
    comm::copy_on_device(DeviceSpan<const std::int32_t>(staged, from.size()), {to.data, to.count}, stream_);
  }
  void group_tokens(std::span<const std::int32_t> tokens, TokenRange range, int slot) override {
    const auto i = static_cast<std::size_t>(slot);
    if (i >= groups_.size()) groups_.resize(i + 1);
    Groups& own = groups_[i];
    if (own.groups == nullptr || tokens.size() > own.most_tokens) {
      stream_.synchronize();  // an earlier pass may still use the old buffers
      own = {std::make_unique<TokenGroups>(range, tokens.size()), tokens.size()};
    }
    own.groups->group(tokens, stream_);
  }
  void zero(Tensor values) override { comm::zero_on_device(values.bytes.data(), values.bytes.size(), stream_); }
  void zero_ranges(Tensor values, std::span<const sim::ElementRange> ranges) override {
    comm::zero_ranges_on_device(on_stream(values, stream_), ranges);
  }
  void convert(ConstTensor from, Tensor to) override { convert_on(from, to, stream_); }

  void embedding_forward(TokenIds tokens, TokenRange range, ConstTensor table, std::int64_t width,
                         Tensor output) override {
    const StreamPhase phase(timer_, Phase::kEmbedding, stream_);
    models::embedding_forward<E>(span_of(tokens), range, span_of<E>(table), width, span_of<E>(output), stream_);
  }
  void embedding_backward(TokenIds /*tokens*/, TokenRange /*range*/, int slot, ConstTensor grad_output,
                          std::int64_t width, Tensor grad_table) override {
    const StreamPhase phase(timer_, Phase::kEmbedding, stream_);
    models::embedding_backward<E>(*groups_.at(static_cast<std::size_t>(slot)).groups, span_of<E>(grad_output), width,
                                  span_of<float>(grad_table), stream_);
  }
  void add_positions(ConstTensor table, std::int64_t batch, std::int64_t length, std::int64_t width,
                     Tensor values) override {
    const StreamPhase phase(timer_, Phase::kEmbedding, stream_);
    models::add_positions<E>(span_of<E>(table), batch, length, width, span_of<E>(values), stream_);
  }
  void positions_backward(ConstTensor grad_values, std::int64_t batch, std::int64_t length, std::int64_t width,
                          Tensor grad_table) override {
    const StreamPhase phase(timer_, Phase::kEmbedding, stream_);
    models::positions_backward<E>(span_of<E>(grad_values), batch, length, width, span_of<float>(grad_table), stream_);
  }

  void residual_forward(const NormForward& n) override {
    const StreamPhase phase(timer_, Phase::kBias, stream_);
    add_branch<E>(n, stream_);
  }
  void residual_backward(const NormBackward& n) override {
    const StreamPhase phase(timer_, Phase::kBias, stream_);
    branch_bias_gradient<E>(n, stream_);
  }
  void norm_forward(const NormForward& n) override {
    const StreamPhase phase(timer_, Phase::kLayerNorm, stream_);
    layernorm_forward<E>(n, stream_);
  }
  void norm_backward(const NormBackward& n) override {
    const StreamPhase phase(timer_, Phase::kLayerNorm, stream_);
    layernorm_backward<E>(n, stream_);
  }

  Operand operand(ConstTensor values, double factor, Tensor /*room*/) override { return {values, factor, values}; }
  void linear_forward(const ProductShape& shape, const Operand& input, const Weight& weight, const Weight* bias,
                      Tensor output) override {
    const StreamPhase phase(timer_, Phase::kProducts, stream_);
    const DeviceSpan<const E> b = bias == nullptr ? DeviceSpan<const E>() : span_of<E>(bias->value);
    as_result(output, [&](auto result) {
      gemms_.forward(shape, span_of<E>(input.values), span_of<E>(weight.operand), b, result);
    });
  }
  void linear_backward_input(const ProductShape& shape, const Operand& grad_output, const Weight& weight,
                             Tensor grad_input) override {
    const StreamPhase phase(timer_, Phase::kProducts, stream_);
    as_result(grad_input, [&](auto result) {
      gemms_.backward_input(shape, span_of<E>(grad_output.values), span_of<E>(weight.operand),
                            static_cast<float>(grad_output.factor), result);
    });
  }
  void linear_backward_weight(const ProductShape& shape, const Operand& input, const Operand& grad_output,
                              GradientMode mode, const Weight& weight, const Weight* bias) override {
    const StreamPhase phase(timer_, Phase::kProducts, stream_);
    gemms_.backward_weight(shape, span_of<E>(input.values), span_of<E>(grad_output.values),
                           static_cast<float>(grad_output.factor), mode, span_of<float>(weight.gradient),
                           bias == nullptr ? DeviceSpan<float>() : span_of<float>(bias->gradient));
  }

  void gelu_forward(const ProductShape& shape, const Operand& input, const Weight& weight, const Weight& bias,
                    Tensor saved, Tensor output) override {
    const StreamPhase phase(timer_, Phase::kProducts, stream_);
    gemms_.forward_gelu(shape, span_of<E>(input.values), span_of<E>(weight.operand), span_of<E>(bias.value),
                        span_of<E>(saved), span_of<E>(output));
  }
  void gelu_of_projection(const ProductShape& /*shape*/, ConstTensor /*projection*/, const Weight& /*bias*/,
                          Tensor /*saved*/, Tensor /*output*/) override {
    DROPTEST_CHECK(false, "a device computes GELU in a GEMM");
  }
  void gelu_backward_input(const ProductShape& shape, const Operand& grad_output, const Weight& weight,
                           ConstTensor saved, GradientMode /*mode*/, const Weight& /*bias*/,
                           Tensor grad_input) override {
    const StreamPhase phase(timer_, Phase::kProducts, stream_);
    gemms_.backward_input_gelu(shape, span_of<E>(grad_output.values), span_of<E>(weight.operand),
                               static_cast<float>(grad_output.factor), span_of<E>(saved), span_of<E>(grad_input));
  }

  void attention_forward(ConstTensor qkv, const AttentionShape& shape, const DropoutMask& dropout, Tensor statistics,
                         Tensor output, Tensor scratch) override {
    const StreamPhase phase(timer_, Phase::kAttention, stream_);
    attention_->forward({qkv, statistics, output, scratch, dropout}, shape, {nullptr, &stream_});
  }
  void attention_backward(ConstTensor grad_output, ConstTensor qkv, ConstTensor output, ConstTensor statistics,
                          const AttentionShape& shape, const DropoutMask& dropout, Tensor grad_qkv,
                          Tensor scratch) override {
    const StreamPhase phase(timer_, Phase::kAttention, stream_);
    attention_->backward({grad_output, qkv, output, statistics, grad_qkv, scratch, dropout}, shape,
                         {nullptr, &stream_});
  }

  void drop_elements(ConstTensor from, const DropoutMask& mask, std::int64_t rows, std::int64_t width,
                     Tensor to) override {
    const StreamPhase phase(timer_, Phase::kBias, stream_);
    models::drop_elements<E>(span_of<E>(from), mask, rows, width, span_of<E>(to), stream_);
  }

  void merge_adapter(const AdapterShape& shape, ConstTensor weight, ConstTensor a, ConstTensor b,
                     Tensor merged) override {
    models::merge_adapter(shape, span_of<float>(weight), span_of<float>(a), span_of<float>(b), span_of<float>(merged),
                          stream_);
  }
  void adapter_gradients(const AdapterShape& shape, ConstTensor grad_merged, ConstTensor a, ConstTensor b,
                         Tensor grad_a, Tensor grad_b) override {
    models::adapter_gradients(shape, span_of<float>(grad_merged), span_of<float>(a), span_of<float>(b),
                              span_of<float>(grad_a), span_of<float>(grad_b), stream_);
  }
  void weigh_rows(const LogitBlock& b, std::span<const double> weights) override {
    const StreamPhase phase(timer_, Phase::kCrossEntropy, stream_);
    const std::vector<float> narrow(weights.begin(), weights.end());
    const auto* staged = static_cast<const float*>(stream_.stage(std::as_bytes(std::span(narrow))));
    models::weigh_rows<E>(b, {staged, narrow.size()}, stream_);
  }
  void row_maxima(const LogitBlock& b) override {
    const StreamPhase phase(timer_, Phase::kCrossEntropy, stream_);
    models::row_maxima<E>(b, stream_);
  }
  void exponential_sums(const LogitBlock& b) override {
    const StreamPhase phase(timer_, Phase::kCrossEntropy, stream_);
    models::exponential_sums<E>(b, stream_);
  }
  void losses_of_sums(const LogitBlock& b) override {
    const StreamPhase phase(timer_, Phase::kCrossEntropy, stream_);
    models::losses_of_sums(b, stream_);
  }
  void logits_to_gradient(const LogitBlock& b) override {
    const StreamPhase phase(timer_, Phase::kCrossEntropy, stream_);
    models::logits_to_gradient<E>(b, stream_);
  }
  void cross_entropy(const LogitBlock& b, Logits logits) override {
    const StreamPhase phase(timer_, Phase::kCrossEntropy, stream_);
    models::cross_entropy<E>(b, logits, stream_);
  }

  void begin_sum(Tensor sum, Tensor message, const comm::Message& about) override {
    if (message.bytes.empty()) return begin_all_reduce(sum, comm::ReduceOp::kSum, about);
    DROPTEST_CHECK(collectives_.has_value(), "a lone rank sends no messages");
    produced_.record(stream_);
    collectives_->wait(produced_);
    if (part_of(sum, message).bytes.data() == sum.bytes.data()) convert_on(sum, message, *collectives_);
    group_.all_reduce(on_stream(message, *collectives_), comm::ReduceOp::kSum, about);
    convert_on(message, sum, *collectives_);
    reduced_.record(*collectives_);
  }
  void begin_all_reduce(Tensor data, comm::ReduceOp op, const comm::Message& about) override {
    if (!collectives_) return group_.all_reduce(on_stream(data, stream_), op, about);
    produced_.record(stream_);
    collectives_->wait(produced_);
    group_.all_reduce(on_stream(data, *collectives_), op, about);
    reduced_.record(*collectives_);
  }
  void begin_scattered_sum(Tensor whole, Tensor message, std::span<const std::uint64_t> counts, Tensor own,
                           const comm::Message& about) override {
    comm::Stream& stream = begin_collective();
    if (message.bytes.empty()) {
      group_.reduce_scatter(on_stream(whole, stream), on_stream(own, stream), counts, comm::ReduceOp::kSum, about);
    } else {
      const Tensor sent = part_of_rank(message, counts, rank());
      if (part_of(whole, message).bytes.data() == whole.bytes.data()) convert_on(whole, message, stream);
      group_.reduce_scatter(on_stream(message, stream), on_stream(sent, stream), counts, comm::ReduceOp::kSum, about);
      convert_on(sent, own, stream);
    }
    end_collective();
  }
  void begin_gather(Tensor own, Tensor message, std::span<const std::uint64_t> counts, Tensor whole,
                    const comm::Message& about) override {
    comm::Stream& stream = begin_collective();
    if (message.bytes.empty()) {
      group_.all_gather(on_stream(own, stream), on_stream(whole, stream), counts, about);
    } else {
      const Tensor sent = part_of_rank(message, counts, rank());
      convert_on(own, sent, stream);
      group_.all_gather(on_stream(sent, stream), on_stream(message, stream), counts, about);
      convert_on(message, whole, stream);
    }
    end_collective();
  }
  void join() override {
    if (collectives_) stream_.wait(reduced_);
  }

  KeyedStorage& offload() override {
    if (!offload_) offload_.emplace(stream_);
    return *offload_;
  }
  std::uint64_t offload_bytes() const override { return offload_ ? offload_->buffer_bytes() : 0; }
  std::unique_ptr<KeyedStorage> make_keyed_storage() override { return std::make_unique<CudaOffload>(stream_); }
  std::unique_ptr<Storage> make_storage(std::uint64_t bytes, const std::string& /*purpose*/) override {
    return std::make_unique<CudaStorage>(stream_, bytes);
  }

  std::unique_ptr<Ranges> make_ranges(std::vector<ParameterRange> ranges) override {
    return std::make_unique<CudaRanges>(ranges, stream_);
  }
  void sum_squares(const Ranges& ranges, ConstTensor arena, Tensor sums) override {
    const StreamPhase phase(timer_, Phase::kGradientNorm, stream_);
    squares_of_chunks(static_cast<const CudaRanges&>(ranges).segments, span_of<float>(arena), span_of<double>(sums),
                      stream_);
  }
  void add_sums(ConstTensor sums, Number number) override {
    add_in_order(span_of<double>(sums), number_at(number), stream_);
  }
  void decide_update(const UpdateRule& rule, comm::Communicator* deciding, const comm::Message& message) override {
    comm::Communicator& ranks = deciding == nullptr ? group_ : *deciding;
    const auto count = static_cast<std::size_t>(ranks.world_size());
    if (numbers_of_ranks_.elems().size() != 2 * count) {
      numbers_of_ranks_ = comm::DeviceBuffer<double>(2 * count, "losses and norms of all ranks");
    }
    comm::Stream* const traffic = begin_traffic();
    const auto tensor = [traffic](DeviceSpan<double> span) {
      return Tensor(ElementType::kFloat64, {reinterpret_cast<std::byte*>(span.data()), span.size() * sizeof(double)},
                    traffic);
    };
    static_assert(static_cast<int>(Number::kGradientSquares) == static_cast<int>(Number::kLosses) + 1);
    ranks.all_gather(tensor(numbers_.elems().subspan(static_cast<std::size_t>(Number::kLosses), 2)),
                     tensor(numbers_of_ranks_.elems()), std::vector<std::uint64_t>(count, 2), message);
    end_traffic();
    models::decide_update(numbers_of_ranks_.elems(), ranks.rank(), rule,
                          numbers_.elems().subspan(static_cast<std::size_t>(Number::kLoss), 3), stream_);
  }
  void adamw(const Ranges& ranges, const UpdateArenas& a, const AdamWStep& step, GradientFactor factor) override {
    const StreamPhase phase(timer_, Phase::kOptimizer, stream_);
    adamw_update<E>(
        static_cast<const CudaRanges&>(ranges).segments, span_of<float>(a.values), span_of<float>(a.gradients),
        span_of<float>(a.first_moments), span_of<float>(a.second_moments), span_of<E>(a.rounded), step,
        factor == GradientFactor::kDecided ? number_at(Number::kGradientFactor) : DeviceSpan<double>(), stream_);
  }
  void sgd(const Ranges& ranges, const UpdateArenas& a, const SgdStep& step, GradientFactor factor) override {
    const StreamPhase phase(timer_, Phase::kOptimizer, stream_);
    sgd_update<E>(static_cast<const CudaRanges&>(ranges).segments, span_of<float>(a.values),
                  span_of<float>(a.gradients), span_of<float>(a.first_moments), span_of<E>(a.rounded), step,
                  factor == GradientFactor::kDecided ? number_at(Number::kGradientFactor) : DeviceSpan<double>(),
                  stream_);
  }
  void round_values(const Ranges& /*ranges*/, ConstTensor /*values*/, Tensor /*rounded*/) override {}

  void accumulate(ConstTensor from, Tensor to) override {
    const DeviceSpan<const float> values = span_of<float>(from);
    const auto count = static_cast<std::int64_t>(values.size());
    const RowShape row{1, count, count};
    if (accumulation_scratch_.elems().size() < column_sums_scratch_elems(row)) {
      stream_.synchronize();  // an earlier call may still use the old buffer
      accumulation_scratch_ = comm::DeviceBuffer<float>(column_sums_scratch_elems(row), "working memory of a sum");
    }
    column_sums<float>(values, row, GradientMode::kAdd, span_of<float>(to), accumulation_scratch_.elems(), stream_);
  }

  comm::Stream* begin_traffic() override {
    if (!traffic_) traffic_.emplace(stream_.device());
    before_traffic_.record(stream_);
    traffic_->wait(before_traffic_);
    return &*traffic_;
  }
  void end_traffic() override {
    if (!traffic_) return;
    after_traffic_.record(*traffic_);
    stream_.wait(after_traffic_);
  }

  void copy_to_host(ConstTensor from, std::span<std::byte> to) override {
    comm::copy_to_host(from.bytes.data(), to, stream_);
  }
  void copy_from_host(std::span<const std::byte> from, Tensor to) override {
    comm::copy_to_device(from, to.bytes.data(), stream_);
  }

  void sum_losses(ConstTensor losses, std::int64_t /*chunk*/, double divisor, GradientMode mode,
                  Number number) override {
    sum_of_values(span_of<float>(losses), divisor, mode, number_at(number), stream_);
  }
  Numbers numbers() override {
    comm::copy_to_host(DeviceSpan<const double>(numbers_.elems()), host_numbers_.elems(), stream_);
    stream_.synchronize();
    return Numbers(host_numbers_.elems());
  }

 private:
  /// The stream for a collective that must run after all operations so far.
  comm::Stream& begin_collective() {
    if (!collectives_) return stream_;
    produced_.record(stream_);
    collectives_->wait(produced_);
    return *collectives_;
  }
  void end_collective() {
    if (collectives_) reduced_.record(*collectives_);
  }

  DeviceSpan<double> number_at(Number number) { return numbers_.elems().subspan(static_cast<std::size_t>(number), 1); }

  /// Calls compute(output) with an output of type E, or of float for sums that are not rounded.
  template <class Compute>
  static void as_result(const Tensor& output, const Compute& compute) {
    if constexpr (!std::is_same_v<E, float>) {
      if (output.type == ElementType::kFloat32) return compute(span_of<float>(output));
    }
    compute(span_of<E>(output));
  }

  static void convert_on(const ConstTensor& from, const Tensor& to, comm::Stream& stream) {
    if (from.type == to.type) {
      comm::copy_on_device(from.bytes.data(), to.bytes.data(), to.bytes.size(), stream);
    } else if (from.type == ElementType::kFloat32) {
      convert_between<float>(from, to, stream);
    } else if (from.type == ElementType::kBfloat16) {
      convert_between<Bf16>(from, to, stream);
    } else {
      convert_between<Fp16>(from, to, stream);
    }
  }
  template <class From>
  static void convert_between(const ConstTensor& from, const Tensor& to, comm::Stream& stream) {
    if constexpr (!std::is_same_v<From, float>) {
      if (to.type == ElementType::kFloat32) {
        return models::convert<float, From>(span_of<From>(from), span_of<float>(to), stream);
      }
    }
    if constexpr (!std::is_same_v<From, Bf16>) {
      if (to.type == ElementType::kBfloat16) {
        return models::convert<Bf16, From>(span_of<From>(from), span_of<Bf16>(to), stream);
      }
    }
    if constexpr (!std::is_same_v<From, Fp16>) {
      models::convert<Fp16, From>(span_of<From>(from), span_of<Fp16>(to), stream);
    }
  }

  CudaForm form_;
  comm::Communicator& group_;
  comm::Stream stream_;
  std::unique_ptr<AttentionKernel> attention_;  ///< may have objects of a library that use the stream
  comm::StreamTimer* timer_;                    ///< null: no time is measured
  std::optional<comm::Stream> collectives_;     ///< absent on a single rank, which has nothing to overlap
  comm::Event produced_;
  comm::Event reduced_;
  std::optional<CudaOffload> offload_;
  std::optional<comm::Stream> traffic_;  ///< stream of other groups' collectives, made when it is first needed
  comm::Event before_traffic_;
  comm::Event after_traffic_;
  MatrixProducts<E> gemms_;
  comm::DeviceBuffer<double> numbers_;
  comm::DeviceBuffer<double> numbers_of_ranks_;
  comm::DeviceBuffer<float> accumulation_scratch_;
  comm::PinnedBuffer<double> host_numbers_;
  struct Groups {
    std::unique_ptr<TokenGroups> groups;
    std::size_t most_tokens = 0;
  };
  std::vector<Groups> groups_;  ///< the groups of each slot
};

}  // namespace

std::unique_ptr<OpsForm> cuda_ops_form(const CudaOpsOptions& options, int world_size) {
  return std::make_unique<CudaForm>(options, world_size);
}

std::unique_ptr<Ops> make_cuda_ops(const CudaOpsOptions& options, comm::Communicator& group, comm::StreamTimer* timer) {
  if (options.precision.compute == Precision::kBfloat16) return std::make_unique<CudaOps<Bf16>>(options, group, timer);
  if (options.precision.compute == Precision::kFloat16) return std::make_unique<CudaOps<Fp16>>(options, group, timer);
  return std::make_unique<CudaOps<float>>(options, group, timer);
}

}  // namespace droptest::models
