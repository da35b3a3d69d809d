// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/parameter_store.h"

#include <utility>

#include "sim/error.h"

namespace droptest::models {

using comm::ElementType;

ParameterTable::ParameterTable(std::vector<Gpt2Tensor> list) : tensors(std::move(list)) {
  constexpr std::uint64_t kAlignmentElems = 16;
  for (const Gpt2Tensor& tensor : tensors) {
    const std::uint64_t count = tensor.slice.local_elems();
    ranges.push_back({elems, count, tensor.decay});
    elems += (count + kAlignmentElems - 1) / kAlignmentElems * kAlignmentElems;
  }
}

std::size_t ParameterTable::number_of(std::string_view name) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == name) return i;
  }
  throw CheckError("no tensor is called " + std::string(name));
}

ParameterStorage parameter_storage(const ParameterTable& table, ElementType type, const std::string& purpose,
                                   Ops::Content content, Ops& ops) {
  const std::uint64_t bytes = table.elems * comm::element_bytes(type);
  std::unique_ptr<Ops::Memory> memory = ops.allocate(bytes, purpose, content);
  const comm::Tensor tensor(type, {memory->data(), static_cast<std::size_t>(bytes)}, ops.stream());
  return {std::move(memory), tensor};
}

RoundedCopy::RoundedCopy(const ParameterTable& table, Ops& ops) : ops_(ops) {
  const OpsTypes types = ops.form().types();
  if (types.operands == types.parameters) return;
  storage_ =
      parameter_storage(table, types.operands, "rounded copy of the parameters", Ops::Content::kUnspecified, ops);
  std::vector<ParameterRange> ranges;
  for (std::size_t i = 0; i < table.tensors.size(); ++i) {
    if (has(table, i)) ranges.push_back(table.ranges[i]);
  }
  ranges_ = ops.make_ranges(std::move(ranges));
}

bool RoundedCopy::has(const ParameterTable& table, std::size_t i) {
  return table.tensors[i].slice.full_shape.size() == 2 && table.tensors[i].name != "wpe.weight";
}

void RoundedCopy::follow(const comm::Tensor& values) {
  if (ranges_ != nullptr) ops_.round_values(*ranges_, values, storage_.tensor);
}

ParameterStore::ParameterStore(std::vector<Gpt2Tensor> tensors, Ops& ops)
    : table_(std::move(tensors)),
      ops_(ops),
      types_(ops.form().types()),
      values_(
          parameter_storage(table_, types_.parameters, "values of the parameters", Ops::Content::kUnspecified, ops)),
      gradients_(parameter_storage(table_, types_.parameters, "gradients", Ops::Content::kZeros, ops)),
      rounded_(table_, ops) {}

Weight ParameterStore::weight(std::size_t i) const {
  const comm::Tensor value = table_.part(values_.tensor, i);
  const comm::Tensor gradient = table_.part(gradients_.tensor, i);
  if (rounded_.is_empty()) return {value, value, gradient};
  const comm::Tensor rounded = table_.part(rounded_.tensor(), i);
  if (types_.activations == types_.operands) return {rounded, rounded, gradient};
  return {value, RoundedCopy::has(table_, i) ? rounded : comm::Tensor(), gradient};
}

void ParameterStore::visit_state(StateVisitor& visitor) {
  visitor.tensor("values", values_.tensor);
  if (!rounded_.is_empty()) visitor.tensor("rounded values", rounded_.tensor());
}

std::span<std::byte> ParameterStore::copy_of(std::size_t arena) {
  const std::size_t bytes = values_.tensor.bytes.size();
  if (copies_.data() == nullptr) copies_ = ZeroedMemory(2 * bytes);
  return {copies_.data() + arena * bytes, bytes};
}

template <class T>
void ParameterStore::make_host_parameters() {
  const bool on_host = ops_.stream() == nullptr;
  const comm::Tensor values(types_.parameters, on_host ? values_.tensor.bytes : copy_of(0));
  const comm::Tensor gradients(types_.parameters, on_host ? gradients_.tensor.bytes : copy_of(1));
  std::vector<Parameter<T>> parameters;
  for (std::size_t i = 0; i < tensors().size(); ++i) {
    const Gpt2Tensor& tensor = tensors()[i];
    parameters.push_back({tensor.name, tensor.group, tensor.slice.local_shape(), tensor.placement, tensor.decay,
                          table_.part(values, i).template as<T>(), table_.part(gradients, i).template as<T>()});
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
  if (ops_.stream() == nullptr) return;
  ops_.copy_to_host(values_.tensor, copy_of(0));
  if (fields == Fields::kValuesAndGradients) ops_.copy_to_host(gradients_.tensor, copy_of(1));
  ops_.synchronize();
}

void ParameterStore::upload_values() {
  if (ops_.stream() == nullptr) return;
  ops_.copy_from_host(copy_of(0), values_.tensor);
  if (!rounded_.is_empty()) ops_.convert(values_.tensor, rounded_.tensor());
  ops_.synchronize();
}

std::uint64_t ParameterStore::device_bytes(std::vector<Gpt2Tensor> tensors, const OpsForm& form) {
  const OpsTypes types = form.types();
  const std::uint64_t rounded = types.operands == types.parameters ? 0 : comm::element_bytes(types.operands);
  // Values, gradients and two moments.
  return ParameterTable(std::move(tensors)).elems * (4 * comm::element_bytes(types.parameters) + rounded);
}

template std::span<Parameter<float>> ParameterStore::host<float>();
template std::span<Parameter<double>> ParameterStore::host<double>();

}  // namespace droptest::models
