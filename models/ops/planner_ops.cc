// SPDX-License-Identifier: Apache-2.0
#include "models/ops/planner_ops.h"

#include <utility>

#include "sim/error.h"

namespace droptest::models {
namespace {

using comm::ConstTensor;
using comm::Tensor;

// Addresses that no memory has.
constexpr std::uint64_t kFirstAddress = std::uint64_t{1} << 46U;

class PlannedMemory final : public Ops::Memory {
 public:
  explicit PlannedMemory(std::byte* data) : data_(data) {}
  std::byte* data() const override { return data_; }

 private:
  std::byte* data_;
};

struct PlannedRanges final : Ops::Ranges {};

std::int64_t stride_of(const ProductShape& shape) {
  return shape.output_stride == 0 ? shape.outputs : shape.output_stride;
}

}  // namespace

PlannerOps::PlannerOps(const OpsForm& form, int world_size, int rank)
    : form_(form), world_size_(world_size), rank_(rank), next_address_(kFirstAddress) {}

std::byte* PlannerOps::reserve(std::uint64_t bytes) {
  auto* const at = reinterpret_cast<std::byte*>(next_address_);  // NOLINT(performance-no-int-to-ptr)
  next_address_ += bytes + MemoryPlan::kAlignmentBytes;
  return at;
}

void PlannerOps::add(std::string name, std::uint64_t bytes, const std::byte* at) {
  by_address_.emplace(at, buffers_.size());
  buffers_.push_back({std::move(name), bytes, -1, -1});
}

Tensor PlannerOps::buffer(std::string name, comm::ElementType type, std::uint64_t elems) {
  const std::uint64_t bytes = elems * comm::element_bytes(type);
  std::byte* const at = reserve(bytes);
  add(std::move(name), bytes, at);
  return {type, {at, static_cast<std::size_t>(bytes)}};
}

TokenIds PlannerOps::token_buffer(std::string name, std::uint64_t count) {
  std::byte* const at = reserve(count * sizeof(std::int32_t));
  add(std::move(name), count * sizeof(std::int32_t), at);
  return {reinterpret_cast<std::int32_t*>(at), static_cast<std::size_t>(count)};
}

void PlannerOps::mark(const void* data) {
  const auto* const at = static_cast<const std::byte*>(data);
  const auto behind = by_address_.upper_bound(at);
  if (behind == by_address_.begin()) return;
  const auto& [begin, index] = *std::prev(behind);
  PlannedBuffer& buffer = buffers_[index];
  if (static_cast<std::uint64_t>(at - begin) >= buffer.bytes) return;  // a parameter, or nothing
  if (buffer.first_time < 0) buffer.first_time = time_;
  buffer.last_time = time_;
}

void PlannerOps::use(std::initializer_list<ConstTensor> tensors) {
  ++time_;
  for (const ConstTensor& tensor : tensors) mark(tensor.bytes.data());
}

void PlannerOps::want(const char* what, std::uint64_t got, std::int64_t elems) {
  DROPTEST_CHECK(got >= static_cast<std::uint64_t>(elems),
                 std::string(what) + ": got " + std::to_string(got) + " elements, want " + std::to_string(elems));
}

std::unique_ptr<Ops::Memory> PlannerOps::allocate(std::uint64_t bytes, const std::string& /*purpose*/,
                                                  Content /*content*/) {
  return std::make_unique<PlannedMemory>(reserve(bytes));
}

void PlannerOps::take_tokens(std::span<const std::int32_t> /*from*/, TokenIds to) {
  use({});
  mark(to.data);
}

void PlannerOps::zero(Tensor values) { use({values}); }

void PlannerOps::convert(ConstTensor from, Tensor to) {
  want("conversion", to.count_elems(), static_cast<std::int64_t>(from.count_elems()));
  use({from, to});
}

void PlannerOps::embedding_forward(TokenIds tokens, TokenRange range, ConstTensor table, std::int64_t width,
                                   Tensor output) {
  want("embedding's table", table.count_elems(), range.count * width);
  want("embedding's output", output.count_elems(), static_cast<std::int64_t>(tokens.count) * width);
  use({table, output});
  mark(tokens.data);
}

void PlannerOps::embedding_backward(TokenIds tokens, TokenRange range, int /*slot*/, ConstTensor grad_output,
                                    std::int64_t width, Tensor grad_table) {
  want("embedding's gradient", grad_table.count_elems(), range.count * width);
  want("gradient of the embedding's output", grad_output.count_elems(),
       static_cast<std::int64_t>(tokens.count) * width);
  use({grad_output, grad_table});
  mark(tokens.data);
}

void PlannerOps::add_positions(ConstTensor table, std::int64_t batch, std::int64_t length, std::int64_t width,
                               Tensor values) {
  want("position table", table.count_elems(), length * width);
  want("values with positions", values.count_elems(), batch * length * width);
  use({table, values});
}

void PlannerOps::positions_backward(ConstTensor grad_values, std::int64_t batch, std::int64_t length,
                                    std::int64_t width, GradientMode /*mode*/, Tensor grad_table) {
  want("gradient of positions", grad_table.count_elems(), length * width);
  want("gradient of values with positions", grad_values.count_elems(), batch * length * width);
  use({grad_values, grad_table});
}

void PlannerOps::residual_forward(ConstTensor residual, ConstTensor branch, ConstTensor branch_bias, std::int64_t rows,
                                  std::int64_t width, Tensor stream) {
  want("residual", residual.count_elems(), rows * width);
  want("branch", branch.count_elems(), rows * width);
  want("branch's bias", branch_bias.count_elems(), width);
  want("residual stream", stream.count_elems(), rows * width);
  use({residual, branch, stream});
}

void PlannerOps::residual_backward(ConstTensor grad_stream, std::int64_t rows, std::int64_t width,
                                   GradientMode /*mode*/, Tensor grad_branch_bias) {
  want("gradient of the residual stream", grad_stream.count_elems(), rows * width);
  want("gradient of the branch's bias", grad_branch_bias.count_elems(), width);
  use({grad_stream});
}

void PlannerOps::norm_forward(const NormForward& n) {
  const std::int64_t elems = n.rows * n.width;
  want("residual", n.residual.count_elems(), elems);
  want("residual stream", n.stream.count_elems(), elems);
  want("norm's output", n.output.count_elems(), elems);
  want("norm's means", n.mean.count_elems(), n.rows);
  want("norm's deviations", n.inverse_deviation.count_elems(), n.rows);
  want("norm's gain", n.gain.value.count_elems(), n.width);
  want("norm's bias", n.bias.value.count_elems(), n.width);
  if (!n.branch.bytes.empty()) {
    want("branch", n.branch.count_elems(), elems);
    want("branch's bias", n.branch_bias.count_elems(), n.width);
  }
  use({n.residual, n.branch, n.stream, n.output, n.mean, n.inverse_deviation});
}

void PlannerOps::norm_backward(const NormBackward& n) {
  const std::int64_t elems = n.rows * n.width;
  want("gradient of norm's output", n.grad_output.count_elems(), elems);
  want("residual stream", n.stream.count_elems(), elems);
  want("gradient of the residual stream", n.grad_stream.count_elems(), elems);
  want("norm's scratch", n.scratch.count_elems(), static_cast<std::int64_t>(form_.norm_scratch_elems(n.rows, n.width)));
  use({n.grad_output, n.stream, n.mean, n.inverse_deviation, n.grad_residual, n.grad_stream, n.scratch});
}

Operand PlannerOps::operand(ConstTensor values, double factor, Tensor room) {
  if (form_.types().operands == form_.types().activations) return {values, factor, values};
  want("rounded operand", room.count_elems(), static_cast<std::int64_t>(values.count_elems()));
  use({values, room});
  return {elements(room, 0, static_cast<std::int64_t>(values.count_elems())), 1, values};
}

void PlannerOps::linear_forward(const ProductShape& shape, const Operand& input, const Weight& weight,
                                const Weight* bias, Tensor output) {
  want("linear layer's input", input.values.count_elems(), shape.rows * shape.inputs);
  want("linear layer's weight", weight.operand.count_elems(), shape.inputs * shape.outputs);
  want("linear layer's output", output.count_elems(), shape.rows * stride_of(shape));
  if (bias != nullptr) want("linear layer's bias", bias->value.count_elems(), shape.outputs);
  use({input.values, output});
}

void PlannerOps::linear_backward_input(const ProductShape& shape, const Operand& grad_output, const Weight& weight,
                                       Tensor grad_input) {
  want("gradient of a linear layer's output", grad_output.values.count_elems(), shape.rows * stride_of(shape));
  want("linear layer's weight", weight.operand.count_elems(), shape.inputs * shape.outputs);
  want("gradient of a linear layer's input", grad_input.count_elems(), shape.rows * shape.inputs);
  use({grad_output.values, grad_input});
}

void PlannerOps::linear_backward_weight(const ProductShape& shape, const Operand& input, const Operand& grad_output,
                                        GradientMode /*mode*/, const Weight& weight, const Weight* bias) {
  want("linear layer's input", input.values.count_elems(), shape.rows * shape.inputs);
  want("gradient of a linear layer's output", grad_output.values.count_elems(), shape.rows * stride_of(shape));
  want("gradient of a linear layer's weight", weight.gradient.count_elems(), shape.inputs * shape.outputs);
  if (bias != nullptr) want("gradient of a linear layer's bias", bias->gradient.count_elems(), shape.outputs);
  use({input.values, grad_output.values, grad_output.unrounded});
}

void PlannerOps::gelu_forward(const ProductShape& shape, const Operand& input, const Weight& weight, const Weight& bias,
                              Tensor saved, Tensor output) {
  linear_forward(shape, input, weight, &bias, output);
  mark(saved.bytes.data());
}

void PlannerOps::gelu_backward_input(const ProductShape& shape, const Operand& grad_output, const Weight& weight,
                                     ConstTensor saved, GradientMode /*mode*/, const Weight& /*bias*/,
                                     Tensor grad_input) {
  want("saved input of GELU", saved.count_elems(), shape.rows * shape.inputs);
  linear_backward_input(shape, grad_output, weight, grad_input);
  mark(saved.bytes.data());
}

void PlannerOps::gelu_backward_weight(const ProductShape& shape, const Operand& input, const Operand& grad_output,
                                      GradientMode mode, const Weight& weight, const Weight& bias) {
  linear_backward_weight(shape, input, grad_output, mode, weight, &bias);
}

void PlannerOps::attention_forward(ConstTensor qkv, const AttentionShape& shape, Tensor statistics, Tensor output,
                                   Tensor scratch) {
  const std::int64_t elems = shape.batch * shape.length * shape.heads * shape.head_width;
  want("queries, keys and values", qkv.count_elems(), 3 * elems);
  want("attention's output", output.count_elems(), elems);
  want("attention's statistics", statistics.count_elems(),
       static_cast<std::int64_t>(form_.attention_statistics_elems(shape)));
  want("attention's scratch", scratch.count_elems(),
       static_cast<std::int64_t>(form_.attention_forward_scratch_elems(shape)));
  use({qkv, statistics, output, scratch});
}

void PlannerOps::attention_backward(ConstTensor grad_output, ConstTensor qkv, ConstTensor output,
                                    ConstTensor statistics, const AttentionShape& shape, Tensor grad_qkv,
                                    Tensor scratch) {
  const std::int64_t elems = shape.batch * shape.length * shape.heads * shape.head_width;
  want("gradient of attention's output", grad_output.count_elems(), elems);
  want("gradient of queries, keys and values", grad_qkv.count_elems(), 3 * elems);
  want("attention's scratch", scratch.count_elems(),
       static_cast<std::int64_t>(form_.attention_backward_scratch_elems(shape)));
  use({grad_output, qkv, output, statistics, grad_qkv, scratch});
}

void PlannerOps::use_rows(const LogitBlock& b) {
  want("logits", b.logits.count_elems(), b.rows * b.stride);
  want("losses", b.losses.count_elems(), b.rows);
  use({b.logits, b.largest, b.sums, b.predicted, b.losses});
  mark(b.targets.data);
}

void PlannerOps::begin_sum(Tensor sum, Tensor message, const comm::Message& /*about*/) {
  use({sum, message});
  in_flight_.push_back(sum.bytes.data());
  in_flight_.push_back(message.bytes.data());
}

void PlannerOps::begin_all_reduce(Tensor data, comm::ReduceOp /*op*/, const comm::Message& /*about*/) {
  use({data});
  in_flight_.push_back(data.bytes.data());
}

void PlannerOps::join() {
  use({});
  for (const std::byte* data : in_flight_) mark(data);
  in_flight_.clear();
}

std::unique_ptr<Ops::Ranges> PlannerOps::make_ranges(std::vector<ParameterRange> /*ranges*/) {
  return std::make_unique<PlannedRanges>();
}

void PlannerOps::sum_losses(ConstTensor losses, std::int64_t /*chunk*/, double /*divisor*/, GradientMode /*mode*/,
                            Number /*number*/) {
  use({losses});
}

}  // namespace droptest::models
