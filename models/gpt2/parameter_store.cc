// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/parameter_store.h"

#include <algorithm>
#include <string>
#include <utility>

#include "sim/error.h"

namespace droptest::models {
namespace {

using comm::ElementType;
using Holds = ParameterArena::Holds;

/// Whether GEMMs read tensor number i: all matrices except the position embedding.
bool is_operand(const ParameterTable& table, std::size_t i) {
  return table.tensors[i].slice.full_shape.size() == 2 && table.tensors[i].name != "wpe.weight";
}

Holds holds_values(const ShardOptions& options) {
  if (options.offloads_values) return Holds::kUnits;
  return options.shards_values() ? Holds::kOwnAndUnits : Holds::kAll;
}
Holds holds_gradients(const ShardOptions& options) {
  return options.shards_gradients() ? Holds::kOwnAndUnits : Holds::kAll;
}
Holds holds_rounded(const ShardOptions& options) {
  return options.shards_values() || options.offloads_values ? Holds::kUnits : Holds::kAll;
}

}  // namespace

ParameterStore::ParameterStore(std::vector<Gpt2Tensor> tensors, Ops& ops, const DataParallel& data, int moments,
                               ReplicatedGradients replicated)
    : table_(std::move(tensors)),
      plan_(table_, comm::element_bytes(ops.form().types().parameters), data.sharding, data.ranks(), data.rank()),
      ops_(ops),
      types_(ops.form().types()),
      values_(table_, plan_, holds_values(data.sharding), types_.parameters, "values of the parameters",
              Ops::Content::kUnspecified, ops),
      gradients_(table_, plan_, holds_gradients(data.sharding), types_.parameters, "gradients", Ops::Content::kZeros,
                 ops) {
  if (types_.operands != types_.parameters) {
    rounded_ = ParameterArena(table_, plan_, holds_rounded(data.sharding), types_.operands,
                              "rounded copy of the parameters", Ops::Content::kUnspecified, ops);
    std::vector<ParameterRange> ranges;
    for (std::size_t i = 0; i < table_.tensors.size(); ++i) {
      if (is_operand(table_, i)) ranges.push_back(table_.ranges[i]);
    }
    rounded_ranges_ = ops.make_ranges(std::move(ranges));
  }
  place_adapters();
  if (replicated == ReplicatedGradients::kOfOwnTokens && ops.world_size() > 1) partial_ = table_.replicated_runs();
  if (data.sharding.offloads_values || (data.sharding.offloads_moments && moments > 0)) {
    offloaded_ = std::make_unique<OffloadedState>(table_, plan_, ops_, types_.parameters, moments, values_, rounded_);
  }
  if (data.ranks() > 1) {
    traffic_.emplace(*data.group, table_, plan_, ops_, values_, rounded_, gradients_, offloaded_.get());
  }
}

void ParameterStore::place_adapters() {
  std::uint64_t elems = 0;
  for (std::size_t a = 0; a < table_.tensors.size(); ++a) {
    const Gpt2Tensor& tensor = table_.tensors[a];
    if (!tensor.name.ends_with(".lora_A.weight")) continue;
    const std::string name = tensor.name.substr(0, tensor.name.size() - std::string("A.weight").size());
    Adapter adapter{table_.number_of(tensor.adapts), a, table_.number_of(name + "B.weight"), {}, {}, {}};
    const std::vector<std::uint64_t> shape = table_.tensors[adapter.base].slice.local_shape();
    adapter.shape = {static_cast<std::int64_t>(shape[0]), static_cast<std::int64_t>(shape[1]),
                     static_cast<std::int64_t>(tensor.slice.full_shape[0]), tensor.adapter_scale};
    const std::size_t whole = tensor.placement == Placement::kReplicated ? adapter.a : adapter.b;
    adapter.sum = table_.tensors[whole].name + ".gradient";
    elems += table_.ranges[adapter.base].count;
    adapters_.push_back(std::move(adapter));
  }
  if (adapters_.empty()) return;
  if (types_.operands != types_.parameters) {
    throw ConfigError("GPT-2: LoRA: got operations with weights in 16 bits, want float32");
  }
  const std::size_t size = comm::element_bytes(types_.parameters);
  merged_ = ops_.allocate(elems * size, "weights with their adapters", Ops::Content::kUnspecified);
  std::byte* at = merged_->data();
  for (Adapter& adapter : adapters_) {
    const std::size_t bytes = table_.ranges[adapter.base].count * size;
    adapter.merged = {types_.parameters, {at, bytes}, ops_.stream()};
    at += bytes;
  }
}

void ParameterStore::adapter_gradients(int layer) {
  for (const Adapter& adapter : adapters_) {
    if (table_.tensors[adapter.base].layer != layer) continue;
    const auto gradient = [&](std::size_t i) { return gradients_.part(table_.ranges[i]); };
    ops_.adapter_gradients(adapter.shape, gradient(adapter.base), values_.part(table_.ranges[adapter.a]),
                           values_.part(table_.ranges[adapter.b]), gradient(adapter.a), gradient(adapter.b));
    if (ops_.world_size() == 1) continue;
    const bool of_a = table_.tensors[adapter.a].placement == Placement::kReplicated;
    ops_.begin_all_reduce(gradient(of_a ? adapter.a : adapter.b), comm::ReduceOp::kSum,
                          {sim::TrafficClass::kControl, adapter.sum, layer});
    ops_.join();
  }
}

void ParameterStore::set_group(comm::Communicator* group) {
  DROPTEST_CHECK(!plan_.options().shards_state(), "another group of replicas that share out the optimizer's state");
  const DataParallel data{group, plan_.options()};
  traffic_.reset();
  plan_ = ShardPlan(table_, comm::element_bytes(types_.parameters), data.sharding, data.ranks(), data.rank());
  if (data.ranks() > 1) {
    traffic_.emplace(*group, table_, plan_, ops_, values_, rounded_, gradients_, offloaded_.get());
  }
}

Weight ParameterStore::weight(std::size_t i) const {
  const ParameterRange& range = table_.ranges[i];
  const comm::Tensor gradient = gradients_.is_empty() ? comm::Tensor() : gradients_.part(range);
  const auto adapter = std::ranges::find(adapters_, i, &Adapter::base);
  if (adapter != adapters_.end()) return {adapter->merged, adapter->merged, gradient};
  const comm::Tensor value = values_.part(range);
  if (rounded_.is_empty()) return {value, value, gradient};
  const comm::Tensor rounded = rounded_.part(range);
  if (types_.activations == types_.operands) return {rounded, rounded, gradient};
  return {value, is_operand(table_, i) ? rounded : comm::Tensor(), gradient};
}

std::size_t ParameterStore::unit_of(int layer) const {
  for (std::size_t unit = 0; unit < table_.units.size(); ++unit) {
    if (table_.units[unit].layer == layer) return unit;
  }
  return table_.units.size();  // a range of blocks without embedding and head
}

void ParameterStore::expect(int layer) {
  const std::size_t unit = unit_of(layer);
  if (unit == table_.units.size()) return;
  if (plan_.options().shards_values()) {
    traffic_->start_values(unit);
  } else if (has_offloaded_values()) {
    offloaded_->start(unit);
  }
}

void ParameterStore::acquire(int layer) {
  const std::size_t unit = unit_of(layer);
  if (unit == table_.units.size()) return;
  if (traffic_) traffic_->make_room_for_gradients(unit);
  if (plan_.options().shards_values()) {
    traffic_->finish_values(unit);
  } else if (has_offloaded_values()) {
    offloaded_->finish(unit);
    if (layer == kOutsideOfBlocks && !rounded_.is_empty()) {
      for (const std::size_t i : untrained()) round_value(i);
    }
  }
}

std::vector<std::size_t> ParameterStore::untrained() const {
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < tensors().size(); ++i) {
    if (!tensors()[i].is_trained()) numbers.push_back(i);
  }
  return numbers;
}

void ParameterStore::release(int layer) {
  const std::size_t unit = unit_of(layer);
  if (plan_.options().shards_values() && unit < table_.units.size()) traffic_->release_values(unit);
}

void ParameterStore::on_gradient_ready(int layer) {
  const std::size_t unit = unit_of(layer);
  if (is_last_pass_) adapter_gradients(layer);
  if (is_last_pass_ || plan_.options().reduces_each()) sum_replicated_gradients(unit);
  if (traffic_ && unit < table_.units.size()) traffic_->gradients_ready(unit);
  if (gradient_ready_) gradient_ready_(layer);
}

void ParameterStore::sum_replicated_gradients(std::size_t unit) {
  for (const ReplicatedRun& run : partial_) {
    if (run.unit != unit) continue;
    ops_.begin_all_reduce(gradients_.part(run.offset, run.count), comm::ReduceOp::kSum,
                          {sim::TrafficClass::kSequenceBackward, run.name, table_.units[unit].layer});
  }
  ops_.join();
}

GradientMode ParameterStore::gradient_mode(GradientMode of_sum) const {
  return plan_.options().reduces_each() ? GradientMode::kSet : of_sum;
}

void ParameterStore::expect_gradients(int so_far, bool last) {
  is_last_pass_ = last;
  if (!traffic_) return;
  if (plan_.options().reduces_each()) {
    finish_gradients();
    traffic_->expect_gradients(so_far == 0 ? ParameterTraffic::MicroBatch::kFirst
                                           : ParameterTraffic::MicroBatch::kLater);
  } else if (last) {
    DROPTEST_CHECK(so_far == 0 || !plan_.options().shards_gradients(), "more micro-batches than the options say");
    traffic_->expect_gradients(ParameterTraffic::MicroBatch::kFirst);
  }
}

void ParameterStore::finish_gradients() {
  if (traffic_) traffic_->finish_gradients();
}

void ParameterStore::spread_values() {
  if (plan_.options().shards_state() && !plan_.options().shards_values()) gather_values();
}

void ParameterStore::gather_values() {
  if (traffic_ && plan_.options().shards_state()) traffic_->gather_values();
}

comm::Tensor ParameterStore::without_padding(const ParameterArena& arena, std::size_t i) const {
  return arena.part(table_.ranges[i].offset, table_.ranges[i].count - padding_of(table_.tensors[i]));
}

void ParameterStore::round_value(std::size_t i) {
  if (!rounded_.is_empty()) ops_.convert(without_padding(values_, i), without_padding(rounded_, i));
}

void ParameterStore::round_values() {
  for (const Adapter& adapter : adapters_) {
    ops_.merge_adapter(adapter.shape, values_.part(table_.ranges[adapter.base]), values_.part(table_.ranges[adapter.a]),
                       values_.part(table_.ranges[adapter.b]), adapter.merged);
  }
  if (rounded_ranges_ != nullptr && rounded_.holds() == Holds::kAll) {
    ops_.round_values(*rounded_ranges_, values_.all(), rounded_.all());
  }
}

comm::Tensor ParameterStore::own_rounded(const OwnPart& part) const {
  return rounded_.is_empty() || rounded_.holds() != Holds::kAll ? comm::Tensor() : rounded_.own(part);
}

void ParameterStore::visit_state(StateVisitor& visitor) {
  if (has_offloaded_values()) {
    offloaded_->visit_values(visitor, "values");
    for (const std::size_t i : untrained()) {
      const comm::Tensor values = values_of(i);
      const std::uint64_t elems = values.bytes.size() / comm::element_bytes(values.type);
      visitor.tensor("values", values, std::array{TensorPiece{i, 0, 0, elems}}, Sharding::kWhole);
    }
  } else {
    values_.visit_state(visitor, "values");
  }
  if (!rounded_.is_empty() && rounded_.holds() == Holds::kAll) {
    rounded_.visit_state(visitor, "rounded values");
  }
}

std::span<std::byte> ParameterStore::copy_of(Copied arena) {
  const std::size_t bytes = table_.elems * comm::element_bytes(types_.parameters);
  if (copies_[arena].data() == nullptr) copies_[arena] = ZeroedMemory(bytes);
  return {copies_[arena].data(), bytes};
}

std::span<std::byte> ParameterStore::value_copy(std::size_t i) {
  const std::size_t size = comm::element_bytes(types_.parameters);
  return copy_of(kValueCopies).subspan(table_.ranges[i].offset * size, table_.ranges[i].count * size);
}

template <class T>
void ParameterStore::make_host_parameters() {
  const comm::Tensor values(types_.parameters, copies_are_apart() ? copy_of(kValueCopies) : values_.all().bytes);
  const bool shows_gradients = !gradients_.is_empty() && gradients_.holds() == Holds::kAll;
  const comm::Tensor gradients(types_.parameters, shows_gradients && ops_.stream() != nullptr ? copy_of(kGradientCopies)
                                                                                              : gradients_.all().bytes);
  std::vector<Parameter<T>> parameters;
  for (std::size_t i = 0; i < tensors().size(); ++i) {
    const Gpt2Tensor& tensor = tensors()[i];
    const auto part = [&](const comm::Tensor& of_arena) {
      return elements(of_arena, static_cast<std::int64_t>(table_.ranges[i].offset),
                      static_cast<std::int64_t>(table_.ranges[i].count))
          .template as<T>();
    };
    parameters.push_back({tensor.name, tensor.group, tensor.slice.local_shape(), tensor.placement, tensor.decay,
                          part(values), shows_gradients ? part(gradients) : std::span<T>()});
  }
  host_ = std::move(parameters);
}

template <class T>
std::span<Parameter<T>> ParameterStore::host() {
  DROPTEST_CHECK(types_.parameters == comm::element_type_of<T>(), "parameters as another type than theirs");
  auto* parameters = std::get_if<std::vector<Parameter<T>>>(&host_);
  if (parameters == nullptr || parameters->empty()) make_host_parameters<T>();
  return std::get<std::vector<Parameter<T>>>(host_);
}

void ParameterStore::download(Fields fields) {
  if (!copies_are_apart()) return;
  const std::size_t size = comm::element_bytes(types_.parameters);
  if (plan_.options().shards_values()) {
    for (std::size_t unit = 0; unit < table_.units.size(); ++unit) {
      const ParameterUnit& of = table_.units[unit];
      traffic_->gather_values_exactly(unit);
      ops_.copy_to_host(values_.part(of.offset, of.count),
                        copy_of(kValueCopies).subspan(of.offset * size, of.count * size));
    }
  } else if (has_offloaded_values()) {
    for (std::size_t unit = 0; unit < table_.units.size(); ++unit) {
      const ParameterUnit& of = table_.units[unit];
      offloaded_->finish(unit);
      ops_.copy_to_host(values_.part(of.offset, of.count),
                        copy_of(kValueCopies).subspan(of.offset * size, of.count * size));
    }
    for (const std::size_t i : untrained()) ops_.copy_to_host(values_.part(table_.ranges[i]), value_copy(i));
  } else {
    ops_.copy_to_host(values_.all(), copy_of(kValueCopies));
  }
  if (fields == Fields::kValuesAndGradients && ops_.stream() != nullptr && !gradients_.is_empty() &&
      gradients_.holds() == Holds::kAll) {
    ops_.copy_to_host(gradients_.all(), copy_of(kGradientCopies));
  }
  ops_.synchronize();
}

void ParameterStore::upload_values() {
  if (!copies_are_apart()) return;
  const std::size_t size = comm::element_bytes(types_.parameters);
  if (has_offloaded_values()) {
    offloaded_->upload_values(copy_of(kValueCopies));
    for (const std::size_t i : untrained()) ops_.copy_from_host(value_copy(i), values_.part(table_.ranges[i]));
    ops_.synchronize();
    return release_copies();
  }
  if (plan_.options().shards_values()) {
    for (const OwnPart& part : plan_.own()) {
      ops_.copy_from_host(copy_of(kValueCopies).subspan(part.offset * size, part.count * size), values_.own(part));
    }
  } else {
    ops_.copy_from_host(copy_of(kValueCopies), values_.all());
    if (!rounded_.is_empty()) ops_.convert(values_.all(), rounded_.all());
  }
  ops_.synchronize();
}

void ParameterStore::release_gradients() {
  ops_.synchronize();
  gradients_ = {};
  copies_[kGradientCopies] = {};
  host_ = {};
}

void ParameterStore::release_copies() {
  if (!has_offloaded_values()) return;
  copies_ = {};
  host_ = {};
}

MemoryUse ParameterStore::memory_use() const {
  MemoryUse use;
  use.parameters = values_.bytes() + rounded_.bytes();
  for (const Adapter& adapter : adapters_) use.parameters += adapter.merged.bytes.size();
  use.gradients = gradients_.bytes();
  if (offloaded_ != nullptr) {
    use.offload = offloaded_->memory_bytes();
    use.offloaded = offloaded_->storage_bytes();
  }
  return use;
}

template std::span<Parameter<float>> ParameterStore::host<float>();
template std::span<Parameter<double>> ParameterStore::host<double>();

}  // namespace droptest::models
