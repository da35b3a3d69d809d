// SPDX-License-Identifier: Apache-2.0
#include "models/ops/planner_ops.h"

#include <array>
#include <map>
#include <numeric>
#include <utility>

#include "sim/error.h"

namespace droptest::models {
namespace {

using comm::ConstTensor;
using comm::Tensor;

// The first address for tensors; no memory has such addresses.
constexpr std::uint64_t kFirstAddress = std::uint64_t{1} << 46U;

class PlannedMemory final : public Ops::Memory {
 public:
  explicit PlannedMemory(std::byte* data) : data_(data) {}
  std::byte* data() const override { return data_; }

 private:
  std::byte* data_;
};

struct PlannedRanges final : Ops::Ranges {};

/// Storage that completes each copy when it begins.
class PlannedStorage final : public Storage {
 public:
  Ticket write(std::uint64_t /*offset*/, ConstTensor /*from*/) override { return 0; }
  Ticket read(std::uint64_t /*offset*/, Tensor /*to*/) override { return 0; }
  void wait(Ticket /*ticket*/) override {}
};

/// Numbers that each rank gives to a decision about an update.
constexpr std::size_t kNumbersOfRank = std::tuple_size_v<RankNumbers>;

/// A tensor of an operation, and the number of elements that the operation's extents require.
struct Use {
  Use(const char* name, const ConstTensor& tensor, std::int64_t elems)
      : what(name), data(tensor.bytes.data()), got(tensor.count_elems()), want(static_cast<std::uint64_t>(elems)) {}
  Use(const char* name, const TokenIds& tokens, std::int64_t count)
      : what(name),
        data(reinterpret_cast<const std::byte*>(tokens.data)),
        got(tokens.count),
        want(static_cast<std::uint64_t>(count)) {}

  const char* what;
  const std::byte* data;
  std::uint64_t got;
  std::uint64_t want;
};

std::int64_t stored_outputs(const ProductShape& shape) {
  return shape.rows * (shape.output_stride == 0 ? shape.outputs : shape.output_stride);
}
std::int64_t elems_of(const AttentionShape& s) { return s.batch * s.length * s.heads * s.head_width; }
std::int64_t elems_of(const ConstTensor& tensor) { return static_cast<std::int64_t>(tensor.count_elems()); }
std::int64_t count_of(TokenIds tokens) { return static_cast<std::int64_t>(tokens.count); }

class Planner final : public PlannerOps {
 public:
  Planner(const OpsForm& form, comm::Communicator& group) : form_(form), group_(group) {}

  Tensor buffer(std::string name, comm::ElementType type, std::uint64_t elems) override {
    const std::uint64_t bytes = elems * comm::element_bytes(type);
    return {type, {add(std::move(name), bytes), static_cast<std::size_t>(bytes)}};
  }
  TokenIds token_buffer(std::string name, std::uint64_t count) override {
    std::byte* const at = add(std::move(name), count * sizeof(std::int32_t));
    return {reinterpret_cast<std::int32_t*>(at), static_cast<std::size_t>(count)};
  }
  void begin_pass() override {
    for (PlannedBuffer& buffer : buffers_) {
      if (buffer.first_time >= 0) buffer.earlier.emplace_back(buffer.first_time, buffer.last_time);
      buffer.first_time = buffer.last_time = -1;
    }
  }
  const std::vector<PlannedBuffer>& buffers() const override { return buffers_; }

  void name_tensor(ConstTensor tensor, std::string name) override {
    if (!tensor.bytes.empty()) names_[tensor.bytes.data()] = std::move(name);
  }

  const OpsForm& form() const override { return form_; }
  int world_size() const override { return group_.world_size(); }
  int rank() const override { return group_.rank(); }
  std::unique_ptr<Memory> allocate(std::uint64_t bytes, const std::string& /*purpose*/, Content /*content*/) override {
    return std::make_unique<PlannedMemory>(reserve(bytes));
  }
  void synchronize() override {}

  void take_tokens(std::span<const std::int32_t> /*from*/, TokenIds to) override {
    use({{"tokens", to, count_of(to)}});
  }
  void group_tokens(std::span<const std::int32_t> /*tokens*/, TokenRange /*range*/, int /*slot*/) override {}
  void zero(Tensor values) override { use({{"zeros", values, 0}}); }
  void convert(ConstTensor from, Tensor to) override {
    use({{"conversion's input", from, 0}, {"conversion", to, elems_of(from)}});
  }

  void embedding_forward(TokenIds tokens, TokenRange range, ConstTensor table, std::int64_t width,
                         Tensor output) override {
    use({{"tokens", tokens, 0},
         {"embedding's table", table, range.count * width},
         {"embedding's output", output, count_of(tokens) * width}});
  }
  void embedding_backward(TokenIds tokens, TokenRange range, int /*slot*/, ConstTensor grad_output, std::int64_t width,
                          Tensor grad_table) override {
    use({{"tokens", tokens, 0},
         {"gradient of the embedding's output", grad_output, count_of(tokens) * width},
         {"embedding's gradient", grad_table, range.count * width}});
  }
  void add_positions(ConstTensor table, std::int64_t batch, std::int64_t length, std::int64_t width,
                     Tensor values) override {
    use({{"position table", table, length * width}, {"values with positions", values, batch * length * width}});
  }
  void positions_backward(ConstTensor grad_values, std::int64_t batch, std::int64_t length, std::int64_t width,
                          Tensor grad_table) override {
    use({{"gradient of values with positions", grad_values, batch * length * width},
         {"gradient of positions", grad_table, length * width}});
  }

  void residual_forward(const NormForward& n) override {
    use({{"residual", n.residual, n.rows * n.width},
         {"branch", n.branch, n.rows * n.width},
         {"branch's bias", n.branch_bias, n.width},
         {"residual stream", n.residual_after, n.rows * n.width}});
  }
  void residual_backward(const NormBackward& n) override {
    use({{"gradient of the residual stream", n.grad_residual, n.rows * n.width},
         {"gradient of the branch's bias", n.grad_branch_bias, n.width}});
  }
  void norm_forward(const NormForward& n) override {
    const std::int64_t elems = n.rows * n.width;
    const bool branch = !n.branch.bytes.empty();
    use({{"residual", n.residual, elems},
         {"branch", n.branch, branch ? elems : 0},
         {"branch's bias", n.branch_bias, branch ? n.width : 0},
         {"norm's gain", n.gain, n.width},
         {"norm's bias", n.bias, n.width},
         {"residual stream", n.residual_after, elems},
         {"norm's output", n.output, elems},
         {"norm's means", n.mean, n.rows},
         {"norm's deviations", n.inverse_deviation, n.rows}});
  }
  void norm_backward(const NormBackward& n) override {
    const std::int64_t elems = n.rows * n.width;
    const auto scratch = static_cast<std::int64_t>(form_.norm_scratch_elems(n.rows, n.width));
    use({{"gradient of norm's output", n.grad_output, elems},
         {"residual stream", n.residual_after, elems},
         {"norm's means", n.mean, n.rows},
         {"norm's deviations", n.inverse_deviation, n.rows},
         {"norm's gain", n.gain, n.width},
         {"gradient of norm's gain", n.grad_gain, n.width},
         {"gradient of norm's bias", n.grad_bias, n.width},
         {"gradient of the residual", n.grad_before, n.grad_before.bytes.empty() ? 0 : elems},
         {"gradient of the residual stream", n.grad_residual, elems},
         {"gradient of the branch's bias", n.grad_branch_bias, n.grad_branch_bias.bytes.empty() ? 0 : n.width},
         {"norm's scratch", n.scratch, scratch}});
  }

  Operand operand(ConstTensor values, double factor, Tensor room) override {
    if (form_.types().operands == form_.types().activations) return {values, factor, values};
    use({{"operand", values, 0}, {"rounded operand", room, elems_of(values)}});
    return {elements(room, 0, elems_of(values)), 1, values};
  }
  void linear_forward(const ProductShape& shape, const Operand& input, const Weight& weight, const Weight* bias,
                      Tensor output) override {
    use({{"linear layer's input", input.values, shape.rows * shape.inputs},
         {"linear layer's weight", weight.operand, shape.inputs * shape.outputs},
         {"linear layer's bias", value_of(bias), bias == nullptr ? 0 : shape.outputs},
         {"linear layer's output", output, stored_outputs(shape)}});
  }
  void linear_backward_input(const ProductShape& shape, const Operand& grad_output, const Weight& weight,
                             Tensor grad_input) override {
    use({{"gradient of a linear layer's output", grad_output.values, stored_outputs(shape)},
         {"linear layer's weight", weight.operand, shape.inputs * shape.outputs},
         {"gradient of a linear layer's input", grad_input, shape.rows * shape.inputs}});
  }
  void linear_backward_weight(const ProductShape& shape, const Operand& input, const Operand& grad_output,
                              GradientMode /*mode*/, const Weight& weight, const Weight* bias) override {
    use({{"linear layer's input", input.values, shape.rows * shape.inputs},
         {"gradient of a linear layer's output", grad_output.values, stored_outputs(shape)},
         {"gradient before its rounding", grad_output.unrounded, stored_outputs(shape)},
         {"gradient of a linear layer's weight", weight.gradient, shape.inputs * shape.outputs},
         {"gradient of a linear layer's bias", bias == nullptr ? Tensor() : bias->gradient,
          bias == nullptr ? 0 : shape.outputs}});
  }

  void gelu_forward(const ProductShape& shape, const Operand& input, const Weight& weight, const Weight& bias,
                    Tensor saved, Tensor output) override {
    linear_forward(shape, input, weight, &bias, output);
    const bool room = form_.gelu_needs_room() || !saved.bytes.empty();
    use_too({"saved input of GELU", saved, room ? shape.rows * shape.outputs : 0});
  }
  void gelu_of_projection(const ProductShape& shape, ConstTensor projection, const Weight& bias, Tensor saved,
                          Tensor output) override {
    const std::int64_t elems = shape.rows * shape.outputs;
    use({{"projection before GELU", projection, elems},
         {"bias before GELU", bias.value, shape.outputs},
         {"saved input of GELU", saved, elems},
         {"output of GELU", output, elems}});
  }
  void gelu_backward_input(const ProductShape& shape, const Operand& grad_output, const Weight& weight,
                           ConstTensor saved, GradientMode /*mode*/, const Weight& bias, Tensor grad_input) override {
    linear_backward_input(shape, grad_output, weight, grad_input);
    use_too({"saved input of GELU", saved, shape.rows * shape.inputs});
    use_too({"gradient of the bias before GELU", bias.gradient, shape.inputs});
  }

  void attention_forward(ConstTensor qkv, const AttentionShape& shape, const DropoutMask& /*dropout*/,
                         Tensor statistics, Tensor output, Tensor scratch) override {
    use({{"queries, keys and values", qkv, 3 * elems_of(shape)},
         {"attention's statistics", statistics, static_cast<std::int64_t>(form_.attention_statistics_elems(shape))},
         {"attention's output", output, elems_of(shape)},
         {"attention's scratch", scratch, static_cast<std::int64_t>(form_.attention_forward_scratch_elems(shape))}});
  }
  void attention_backward(ConstTensor grad_output, ConstTensor qkv, ConstTensor output, ConstTensor statistics,
                          const AttentionShape& shape, const DropoutMask& /*dropout*/, Tensor grad_qkv,
                          Tensor scratch) override {
    use({{"gradient of attention's output", grad_output, elems_of(shape)},
         {"queries, keys and values", qkv, 3 * elems_of(shape)},
         {"attention's output", output, elems_of(shape)},
         {"attention's statistics", statistics, static_cast<std::int64_t>(form_.attention_statistics_elems(shape))},
         {"gradient of queries, keys and values", grad_qkv, 3 * elems_of(shape)},
         {"attention's scratch", scratch, static_cast<std::int64_t>(form_.attention_backward_scratch_elems(shape))}});
  }

  void drop_elements(ConstTensor from, const DropoutMask& /*mask*/, std::int64_t rows, std::int64_t width,
                     Tensor to) override {
    use({{"values before dropout", from, rows * width}, {"values after dropout", to, rows * width}});
  }

  void row_maxima(const LogitBlock& rows) override { use_rows(rows); }
  void exponential_sums(const LogitBlock& rows) override { use_rows(rows); }
  void losses_of_sums(const LogitBlock& rows) override { use_rows(rows); }
  void logits_to_gradient(const LogitBlock& rows) override { use_rows(rows); }
  void merge_adapter(const AdapterShape& /*shape*/, ConstTensor weight, ConstTensor /*a*/, ConstTensor /*b*/,
                     Tensor merged) override {
    use({{"weight", weight, 0}, {"weight with its adapter", merged, elems_of(weight)}});
  }
  void adapter_gradients(const AdapterShape& /*shape*/, ConstTensor grad_merged, ConstTensor /*a*/, ConstTensor /*b*/,
                         Tensor grad_a, Tensor grad_b) override {
    use({{"gradient of a weight", grad_merged, 0}, {"gradients of an adapter", grad_a, 0}, {"and", grad_b, 0}});
  }
  void weigh_rows(const LogitBlock& rows, std::span<const double> /*weights*/) override { use_rows(rows); }
  void cross_entropy(const LogitBlock& rows, Logits /*logits*/) override { use_rows(rows); }

  void begin_sum(Tensor sum, Tensor message, const comm::Message& about) override {
    use({{"sum over ranks", sum, 0}, {"message", message, message.bytes.empty() ? 0 : elems_of(sum)}});
    group_.all_reduce(message.bytes.empty() ? sum : message, comm::ReduceOp::kSum, about);
    in_flight_.insert(in_flight_.end(), {sum.bytes.data(), message.bytes.data()});
  }
  void begin_all_reduce(Tensor data, comm::ReduceOp op, const comm::Message& about) override {
    use({{"reduction over ranks", data, 0}});
    group_.all_reduce(data, op, about);
    in_flight_.push_back(data.bytes.data());
  }
  void begin_scattered_sum(Tensor whole, Tensor message, std::span<const std::uint64_t> counts, Tensor own,
                           const comm::Message& about) override {
    use_parts(whole, message, counts, own);
    const bool is_sent_as_it_is = message.bytes.empty();
    group_.reduce_scatter(is_sent_as_it_is ? whole : message,
                          is_sent_as_it_is ? own : part_of_rank(message, counts, rank()), counts, comm::ReduceOp::kSum,
                          about);
  }
  void begin_gather(Tensor own, Tensor message, std::span<const std::uint64_t> counts, Tensor whole,
                    const comm::Message& about) override {
    use_parts(whole, message, counts, own);
    const bool is_sent_as_it_is = message.bytes.empty();
    group_.all_gather(is_sent_as_it_is ? own : part_of_rank(message, counts, rank()),
                      is_sent_as_it_is ? whole : message, counts, about);
  }
  KeyedStorage& offload() override { return offload_; }
  std::uint64_t offload_bytes() const override { return offload_.buffer_bytes(); }
  std::uint64_t stored_bytes() const override { return stored_bytes_; }
  std::unique_ptr<KeyedStorage> make_keyed_storage() override { return std::make_unique<Offload>(*this); }
  std::unique_ptr<Storage> make_storage(std::uint64_t /*bytes*/, const std::string& /*purpose*/) override {
    return std::make_unique<PlannedStorage>();
  }
  void join() override {
    use({});
    for (const std::byte* data : in_flight_) mark(data);
    in_flight_.clear();
  }

  std::unique_ptr<Ranges> make_ranges(std::vector<ParameterRange> /*ranges*/) override {
    return std::make_unique<PlannedRanges>();
  }
  void sum_squares(const Ranges& /*ranges*/, ConstTensor /*arena*/, Tensor /*sums*/) override {}
  void add_sums(ConstTensor /*sums*/, Number /*number*/) override {}
  void decide_update(const UpdateRule& /*rule*/, comm::Communicator* deciding, const comm::Message& message) override {
    comm::Communicator& ranks = deciding == nullptr ? group_ : *deciding;
    const std::vector<std::uint64_t> counts(static_cast<std::size_t>(ranks.world_size()), kNumbersOfRank);
    const std::vector<double> own(kNumbersOfRank);
    std::vector<double> all(kNumbersOfRank * counts.size());
    ranks.all_gather(std::span<const double>(own), std::span<double>(all), counts, message);
  }
  void accumulate(ConstTensor /*from*/, Tensor /*to*/) override {}
  void adamw(const Ranges& /*ranges*/, const UpdateArenas& /*arenas*/, const AdamWStep& /*step*/,
             GradientFactor /*factor*/) override {}
  void sgd(const Ranges& /*ranges*/, const UpdateArenas& /*arenas*/, const SgdStep& /*step*/,
           GradientFactor /*factor*/) override {}
  void round_values(const Ranges& /*ranges*/, ConstTensor /*values*/, Tensor /*rounded*/) override {}
  void copy_to_host(ConstTensor /*from*/, std::span<std::byte> /*to*/) override {}
  void copy_from_host(std::span<const std::byte> /*from*/, Tensor /*to*/) override {}
  void sum_losses(ConstTensor losses, std::int64_t /*chunk*/, double /*divisor*/, GradientMode /*mode*/,
                  Number /*number*/) override {
    use({{"losses", losses, 0}});
  }
  Numbers numbers() override {
    static constexpr std::array<double, kNumbers> kFinite{};
    return Numbers(kFinite);
  }
  std::byte* reserve(std::uint64_t bytes) override {
    auto* const at = reinterpret_cast<std::byte*>(next_address_);  // NOLINT(performance-no-int-to-ptr)
    const std::uint64_t units = bytes / MemoryPlan::kAlignmentBytes + 1;
    next_address_ += units * MemoryPlan::kAlignmentBytes;
    return at;
  }

 private:
  static ConstTensor value_of(const Weight* weight) { return weight == nullptr ? ConstTensor() : weight->value; }

  std::byte* add(std::string name, std::uint64_t bytes) {
    std::byte* const at = reserve(bytes);
    by_address_.emplace(at, buffers_.size());
    buffers_.push_back({std::move(name), bytes, -1, -1, {}});
    return at;
  }

  void use_parts(const Tensor& whole, const Tensor& message, std::span<const std::uint64_t> counts, const Tensor& own) {
    const auto elems = static_cast<std::int64_t>(std::accumulate(counts.begin(), counts.end(), std::uint64_t{0}));
    use({{"parts of all ranks", whole, elems},
         {"message", message, message.bytes.empty() ? 0 : elems},
         {"own part", own, static_cast<std::int64_t>(counts[static_cast<std::size_t>(rank())])}});
    in_flight_.insert(in_flight_.end(), {whole.bytes.data(), message.bytes.data(), own.bytes.data()});
  }

  /// The tensors of the next operation.
  void use(std::initializer_list<Use> uses) {
    ++time_;
    for (const Use& one : uses) use_too(one);
  }
  /// One more tensor of the same operation.
  void use_too(const Use& one) {
    if (one.got < one.want) {
      const auto name = names_.find(one.data);
      throw CheckError(std::string(one.what) + (name == names_.end() ? "" : " \"" + name->second + "\"") + ": got " +
                       std::to_string(one.got) + " elements, want " + std::to_string(one.want));
    }
    mark(one.data);
  }
  void use_rows(const LogitBlock& b) {
    use({{"logits", b.logits, b.rows * b.stride},
         {"targets", b.targets, b.rows},
         {"largest logits", b.largest, b.rows},
         {"sums of exponentials", b.sums, b.rows},
         {"logits of targets", b.predicted, b.rows},
         {"losses", b.losses, b.rows}});
  }
  void mark(const std::byte* at) {
    const auto behind = by_address_.upper_bound(at);
    if (behind == by_address_.begin()) return;
    const auto& [begin, index] = *std::prev(behind);
    PlannedBuffer& buffer = buffers_[index];
    if (static_cast<std::uint64_t>(at - begin) >= buffer.bytes) return;  // the tensor is a parameter or empty
    if (buffer.first_time < 0) buffer.first_time = time_;
    buffer.last_time = time_;
  }

  /// Records the use of the values and their sizes.
  class Offload final : public KeyedStorage {
   public:
    explicit Offload(Planner& run) : run_(run) {}
    void put(std::uint64_t key, ConstTensor values) override {
      run_.use({{"offloaded values", values, 0}});
      std::uint64_t& stored = bytes_[key];
      run_.stored_bytes_ += values.bytes.size() - stored;
      stored = values.bytes.size();
      largest_ = std::max(largest_, stored);
    }
    void expect(std::uint64_t /*key*/) override {}
    void take(std::uint64_t /*key*/, Tensor values) override { run_.use({{"values brought back", values, 0}}); }
    std::uint64_t buffer_bytes() const override { return kMostBuffers * largest_; }

   private:
    Planner& run_;
    std::map<std::uint64_t, std::uint64_t> bytes_;  ///< the bytes of each key
    std::uint64_t largest_ = 0;
  };

  const OpsForm& form_;
  comm::Communicator& group_;
  std::uint64_t stored_bytes_ = 0;
  Offload offload_{*this};
  std::uint64_t next_address_ = kFirstAddress;
  int time_ = 0;
  std::vector<PlannedBuffer> buffers_;
  std::map<const std::byte*, std::size_t> by_address_;
  std::vector<const std::byte*> in_flight_;
  std::map<const std::byte*, std::string> names_;
};

}  // namespace

std::unique_ptr<PlannerOps> make_planner_ops(const OpsForm& form, comm::Communicator& group) {
  return std::make_unique<Planner>(form, group);
}

}  // namespace droptest::models
