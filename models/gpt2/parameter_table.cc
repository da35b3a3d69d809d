// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/parameter_table.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "sim/error.h"

namespace droptest::models {

std::uint64_t padding_of(const Gpt2Tensor& tensor) {
  return tensor.slice.padding * (tensor.slice.full_shape.size() > 1 ? tensor.slice.full_shape[1] : 1);
}

ParameterTable::ParameterTable(std::vector<Gpt2Tensor> list)
    : tensors(std::move(list)), ranges(tensors.size()), trained(tensors.size()), unit_of(tensors.size()) {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [this](std::size_t a, std::size_t b) {
    if (tensors[a].layer != tensors[b].layer) return tensors[a].layer > tensors[b].layer;
    return padding_of(tensors[a]) < padding_of(tensors[b]);
  });
  const auto place = [this](std::size_t i) {
    ranges[i] = {elems, tensors[i].slice.local_elems(), tensors[i].decay, tensors[i].learning_rate_factor};
    elems += ranges[i].count;
  };
  for (const std::size_t i : order) {
    if (units.empty() || units.back().layer != tensors[i].layer) units.push_back({tensors[i].layer, elems, 0});
    unit_of[i] = units.size() - 1;
    if (!tensors[i].is_trained()) continue;
    DROPTEST_CHECK(elems == trained_elems, "two tensors with padding");
    place(i);
    trained[i] = ranges[i].count - padding_of(tensors[i]);
    units.back().count += trained[i];
    trained_elems += trained[i];
  }
  for (const std::size_t i : order) {
    if (!tensors[i].is_trained()) place(i);
  }
}

std::size_t ParameterTable::number_of(std::string_view name) const {
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name == name) return i;
  }
  throw CheckError("no tensor is called " + std::string(name));
}

std::vector<std::size_t> ParameterTable::in_order() const {
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [this](std::size_t a, std::size_t b) { return ranges[a].offset < ranges[b].offset; });
  return order;
}

std::vector<std::uint64_t> ParameterTable::chunk_ends() const {
  std::vector<std::uint64_t> ends;
  for (const std::size_t i : in_order()) {
    for (std::uint64_t done = 0; done < trained[i];) {
      done = std::min(done + kNormChunkElems, trained[i]);
      ends.push_back(ranges[i].offset + done);
    }
  }
  return ends;
}

std::vector<ReplicatedRun> ParameterTable::replicated_runs() const {
  std::vector<ReplicatedRun> runs;
  for (const std::size_t i : in_order()) {
    if (tensors[i].placement != Placement::kReplicated || !tensors[i].is_trained()) continue;
    if (!tensors[i].adapts.empty()) continue;  // adapters have separate sums
    const bool continues =
        !runs.empty() && runs.back().unit == unit_of[i] && runs.back().offset + runs.back().count == ranges[i].offset;
    if (!continues) runs.push_back({unit_of[i], ranges[i].offset, 0, tensors[i].name + ".gradient"});
    runs.back().count += trained[i];
  }
  return runs;
}

}  // namespace droptest::models
