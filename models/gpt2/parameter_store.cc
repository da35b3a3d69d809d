// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/parameter_store.h"

#include <utility>

#include "sim/error.h"

namespace droptest::models {

using comm::ElementType;

ParameterStore::ParameterStore(std::vector<Gpt2Tensor> tensors, Ops& ops)
    : tensors_(std::move(tensors)), arena_(parameter_arena(tensors_)), ops_(ops), types_(ops.form().types()) {
  values_ = make_arena(types_.parameters, "values of the parameters", Ops::Content::kUnspecified);
  gradients_ = make_arena(types_.parameters, "gradients", Ops::Content::kZeros);
  if (types_.operands == types_.parameters) return;
  rounded_ = make_arena(types_.operands, "rounded copy of the parameters", Ops::Content::kUnspecified);
  std::vector<ParameterRange> ranges;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (is_rounded_for_gemms(i)) ranges.push_back({arena_.offsets[i], tensors_[i].slice.local_elems()});
  }
  gemm_ranges_ = ops_.make_ranges(std::move(ranges));
}

std::size_t ParameterStore::number_of(std::string_view name) const {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    if (tensors_[i].name == name) return i;
  }
  throw CheckError("no tensor is called " + std::string(name));
}

/// Matrices other than the positions.
bool ParameterStore::is_rounded_for_gemms(std::size_t i) const {
  return tensors_[i].slice.full_shape.size() == 2 && tensors_[i].name != "wpe.weight";
}

ParameterStore::Arena ParameterStore::make_arena(ElementType type, const std::string& purpose,
                                                 Ops::Content content) const {
  const std::uint64_t bytes = arena_.elems * comm::element_bytes(type);
  std::unique_ptr<Ops::Memory> memory = ops_.allocate(bytes, purpose, content);
  const comm::Tensor tensor(type, {memory->data(), static_cast<std::size_t>(bytes)}, ops_.stream());
  return {std::move(memory), tensor};
}

Weight ParameterStore::weight(std::size_t i) const {
  const auto part = [&](const comm::Tensor& arena) {
    return elements(arena, static_cast<std::int64_t>(arena_.offsets[i]),
                    static_cast<std::int64_t>(tensors_[i].slice.local_elems()));
  };
  const comm::Tensor gradient = part(gradients_.tensor);
  if (types_.operands == types_.parameters) return {part(values_.tensor), part(values_.tensor), gradient};
  const comm::Tensor rounded = part(rounded_.tensor);
  if (types_.activations == types_.operands) return {rounded, rounded, gradient};
  return {part(values_.tensor), is_rounded_for_gemms(i) ? rounded : comm::Tensor(), gradient};
}

void ParameterStore::round_values() {
  if (gemm_ranges_ != nullptr) ops_.round_values(*gemm_ranges_, values_.tensor, rounded_.tensor);
}

std::span<std::byte> ParameterStore::copy_of(std::size_t arena) {
  const std::size_t bytes = values_.tensor.bytes.size();
  if (copies_.data() == nullptr) copies_ = ZeroedMemory(2 * bytes);
  return {copies_.data() + arena * bytes, bytes};
}

template <class T>
void ParameterStore::make_host_parameters() {
  const bool on_host = ops_.stream() == nullptr;
  const auto elems = [](std::span<std::byte> bytes) {
    return std::span<T>(reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T));
  };
  host_ = parameters_in<T>(arena_, tensors_, elems(on_host ? values_.tensor.bytes : copy_of(0)),
                           elems(on_host ? gradients_.tensor.bytes : copy_of(1)));
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
  if (!rounded_.tensor.bytes.empty()) ops_.convert(values_.tensor, rounded_.tensor);
  ops_.synchronize();
}

std::uint64_t ParameterStore::device_bytes(std::span<const Gpt2Tensor> tensors, const OpsForm& form) {
  const OpsTypes types = form.types();
  const std::uint64_t rounded = types.operands == types.parameters ? 0 : comm::element_bytes(types.operands);
  // Values, gradients and two moments.
  return parameter_arena(tensors).elems * (4 * comm::element_bytes(types.parameters) + rounded);
}

template std::span<Parameter<float>> ParameterStore::host<float>();
template std::span<Parameter<double>> ParameterStore::host<double>();

}  // namespace droptest::models
