// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/parameter_arena.h"

#include "sim/error.h"

namespace droptest::models {
namespace {

constexpr std::uint64_t kAlignmentElems = 16;

}  // namespace

ParameterArena parameter_arena(std::span<const Gpt2Tensor> tensors) {
  ParameterArena arena;
  for (const Gpt2Tensor& tensor : tensors) {
    arena.offsets.push_back(arena.elems);
    arena.elems += (tensor.slice.local_elems() + kAlignmentElems - 1) / kAlignmentElems * kAlignmentElems;
  }
  return arena;
}

template <class T>
std::vector<Parameter<T>> parameters_in(const ParameterArena& arena, std::span<const Gpt2Tensor> tensors,
                                        std::span<T> values, std::span<T> gradients) {
  DROPTEST_CHECK(values.size() == arena.elems && gradients.size() == arena.elems, "parameters outside of their arena");
  std::vector<Parameter<T>> parameters;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const Gpt2Tensor& tensor = tensors[i];
    const std::uint64_t count = tensor.slice.local_elems();
    parameters.push_back({tensor.name, tensor.group, tensor.slice.local_shape(), tensor.placement, tensor.decay,
                          values.subspan(arena.offsets[i], count), gradients.subspan(arena.offsets[i], count)});
  }
  return parameters;
}

template std::vector<Parameter<float>> parameters_in(const ParameterArena&, std::span<const Gpt2Tensor>,
                                                     std::span<float>, std::span<float>);
template std::vector<Parameter<double>> parameters_in(const ParameterArena&, std::span<const Gpt2Tensor>,
                                                      std::span<double>, std::span<double>);

}  // namespace droptest::models
