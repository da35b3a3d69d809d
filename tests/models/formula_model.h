// SPDX-License-Identifier: Apache-2.0
// Small models with weights and tokens from a formula, on the ranks of a group, and their results.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/run_ranks.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/optimizer.h"
#include "tests/models/host_gpt2.h"

namespace droptest::models {

/// Tensors as arguments of kernels.
template <class T>
comm::Tensor host(std::vector<T>& values) {
  return std::span<T>(values);
}
template <class T>
comm::ConstTensor host(const std::vector<T>& values) {
  return std::span<const T>(values);
}

inline constexpr std::chrono::milliseconds kTestTimeout{60000};

/// A fraction in [-1/2, 1/2) with 16 bits; scripts/make_gpt2_vectors.py has the same function.
inline double mixed(std::uint64_t tensor, std::uint64_t index) {
  auto x = static_cast<std::uint32_t>(index * 2654435761U + tensor * 40503U * 65537U + 12345U);
  x ^= x >> 15U;
  x *= 2246822519U;
  x ^= x >> 13U;
  return (x >> 16U) / 65536.0 - 0.5;
}

/// Sets weights that do not depend on the number of ranks; no bias is 0 and no gain 1.
template <class T>
void set_formula_weights(const Gpt2Config& config, std::span<Parameter<T>> parameters,
                         const comm::Communicator& group) {
  const std::vector<Gpt2Tensor> tensors = gpt2_tensors(config, group.world_size(), group.rank());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool is_gain = tensors[i].group == "layer_norm" && tensors[i].name.ends_with("weight");
    const auto parameter = std::ranges::find(parameters, tensors[i].name, &Parameter<T>::name);
    if (parameter == parameters.end()) continue;  // a tensor of another stage
    const std::span<T> value = parameter->value;
    tensors[i].slice.for_each_run([&](std::uint64_t full, std::uint64_t local, std::uint64_t count) {
      for (std::uint64_t k = 0; k < count; ++k) {
        value[local + k] = static_cast<T>((is_gain ? 1.0 : 0.0) + 0.5 * mixed(i, full + k));
      }
    });
  }
}

/// A direction in weight space. Calls f(parameter, element, number of the direction at the element) for all elements of
/// this rank except those of the tied embedding, because both ends of a pipeline have one.
template <class T, class F>
void for_each_along(const Gpt2Config& config, std::span<Parameter<T>> parameters, const comm::Communicator& group,
                    const F& f) {
  constexpr std::uint64_t kDirection = 500;
  const std::vector<Gpt2Tensor> tensors = gpt2_tensors(config, group.world_size(), group.rank());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto parameter = std::ranges::find(parameters, tensors[i].name, &Parameter<T>::name);
    if (parameter == parameters.end() || tensors[i].name == "wte.weight") continue;
    tensors[i].slice.for_each_run([&](std::uint64_t full, std::uint64_t local, std::uint64_t count) {
      for (std::uint64_t k = 0; k < count; ++k) f(*parameter, local + k, mixed(kDirection + i, full + k));
    });
  }
}

template <class T>
void set_formula_weights(HostGpt2<T>& model, const comm::Communicator& group) {
  set_formula_weights<T>(model.config(), model.parameters(), group);
}

inline std::vector<std::int32_t> formula_tokens(std::uint64_t stream, int count, int vocabulary) {
  std::vector<std::int32_t> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back(
        static_cast<std::int32_t>((mixed(1000 + stream, static_cast<std::uint64_t>(i)) + 0.5) * vocabulary));
  }
  return tokens;
}

using Tensors = std::map<std::string, std::vector<double>>;

/// Copies a rank's part of every tensor into whole tensors. Replicated tensors are those of rank 0.
template <class T>
void add_to_whole(const Gpt2Config& config, std::span<Parameter<T>> parameters, const comm::Communicator& group,
                  std::span<T> Parameter<T>::*field, Tensors& whole) {
  const std::vector<Gpt2Tensor> tensors = gpt2_tensors(config, group.world_size(), group.rank());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].placement == Placement::kReplicated && group.rank() != 0) continue;
    const auto parameter = std::ranges::find(parameters, tensors[i].name, &Parameter<T>::name);
    if (parameter == parameters.end()) continue;  // of another stage
    std::vector<double>& full = whole[tensors[i].name];
    full.resize(tensors[i].slice.full_elems());
    const std::span<T> part = (*parameter).*field;
    tensors[i].slice.for_each_run([&](std::uint64_t to, std::uint64_t from, std::uint64_t count) {
      for (std::uint64_t k = 0; k < count; ++k) full[to + k] = static_cast<double>(part[from + k]);
    });
  }
}

template <class T>
void add_to_whole(HostGpt2<T>& model, const comm::Communicator& group, std::span<T> Parameter<T>::*field,
                  Tensors& whole) {
  add_to_whole<T>(model.config(), model.parameters(), group, field, whole);
}

/// |a - b| / |b| over all elements; |a| if b is all zeros.
inline double relative_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0;
  double reference = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    difference += (a.at(i) - b[i]) * (a.at(i) - b[i]);
    reference += b[i] * b[i];
  }
  return std::sqrt(difference) / (reference > 0 ? std::sqrt(reference) : 1.0);
}

/// The results of one forward and backward pass, assembled from all ranks.
struct Pass {
  double loss = 0;
  double norm = 0;
  Tensors gradients;
  std::vector<std::vector<double>> replicated;  ///< the replicated gradients of each rank, one after the other
  std::vector<double> losses;                   ///< losses of each rank
};

/// One pass and the gradient norm with formula weights and tokens.
template <class T>
Pass formula_pass(const Gpt2Config& config, int ranks, int threads, int batch, int length) {
  Pass pass;
  pass.replicated.resize(static_cast<std::size_t>(ranks));
  pass.losses.resize(static_cast<std::size_t>(ranks));
  std::mutex mutex;
  const auto tokens = formula_tokens(0, batch * length, config.vocabulary);
  const auto targets = formula_tokens(1, batch * length, config.vocabulary);
  comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
    HostGpt2<T> model(config, group, threads);
    set_formula_weights(model, group);
    const double loss = model.forward_backward(tokens, targets, batch, length, 1.0);
    const double norm = model.gradient_norm();
    const std::lock_guard lock(mutex);
    const auto rank = static_cast<std::size_t>(group.rank());
    pass.losses[rank] = loss;
    if (rank == 0) {
      pass.loss = loss;
      pass.norm = norm;
    }
    add_to_whole(model, group, &Parameter<T>::gradient, pass.gradients);
    for (const Parameter<T>& parameter : model.parameters()) {
      if (parameter.placement != Placement::kReplicated) continue;
      for (const T value : parameter.gradient) pass.replicated[rank].push_back(static_cast<double>(value));
    }
  });
  return pass;
}

}  // namespace droptest::models
