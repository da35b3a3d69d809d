// SPDX-License-Identifier: Apache-2.0
// The list of the operations' implementations that tests of models run on: a device's where there is one, or the fake
// one. A model on any of them, in doubles.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/device/device_info.h"
#include "models/gpt2/gpt2.h"
#include "models/kernels/bf16.h"
#include "models/ops/cuda_ops.h"
#include "models/ops/host_ops.h"
#include "tests/models/formula_model.h"

namespace droptest::models {

struct Implementation {
  std::string name;
  std::function<std::unique_ptr<Ops>(comm::Communicator&)> make;
  double tolerance;  ///< |difference| / |reference| of a case: rounding of the narrowest type, some operations deep
};

inline std::vector<Implementation> implementations() {
  constexpr ModelPrecision kBf16{Precision::kBfloat16, Precision::kFloat32};
  const auto host = [](comm::ElementType type, ModelPrecision precision, int threads) {
    return [=](comm::Communicator& group) {
      return make_host_ops({.type = type, .precision = precision, .threads = threads}, group);
    };
  };
  std::vector<Implementation> all = {{"host float64, three threads", host(comm::ElementType::kFloat64, {}, 3), 0},
                                     {"host float32", host(comm::ElementType::kFloat32, {}, 1), 1e-6}};
  if (has_bf16_products()) {
    all.push_back({"host bfloat16 GEMMs", host(comm::ElementType::kFloat32, kBf16, 1), 1e-2});
  }
  if (!comm::survey_devices().absence.empty()) return all;
  const auto cuda = [](ModelPrecision precision) {
    return [=](comm::Communicator& group) { return make_cuda_ops({.precision = precision}, group); };
  };
  all.push_back({"CUDA float32", cuda({}), 1e-6});
  all.push_back({"CUDA bfloat16", cuda(kBf16), 1e-2});
  return all;
}

/// Calls body(implementation, group) for each implementation on every rank of a group.
template <class Body>
void on_every_implementation(int ranks, const Body& body) {
  for (const Implementation& implementation : implementations()) {
    SCOPED_TRACE(implementation.name + " on " + std::to_string(ranks) + " ranks");
    comm::run_ranks(ranks, kTestTimeout, [&](comm::Communicator& group) {
      SCOPED_TRACE(implementation.name + " on rank " + std::to_string(group.rank()));
      body(implementation, group);
    });
  }
}

/// Calls use(parameters) with parameters of the model's type.
template <class Use>
void with_parameters(Gpt2& model, const Use& use) {
  if (model.parameter_type() == comm::ElementType::kFloat64) {
    use(model.parameters<double>());
  } else {
    use(model.parameters<float>());
  }
}

/// The model with formula weights.
inline std::unique_ptr<Gpt2> formula_model(const Gpt2Config& config, std::unique_ptr<Ops> ops,
                                           const comm::Communicator& group, const AdamWConfig& adamw = {}) {
  auto model = std::make_unique<Gpt2>(config, std::move(ops), adamw);
  with_parameters(*model, [&](auto parameters) { set_formula_weights(config, parameters, group); });
  model->upload_values();
  return model;
}

enum class Field : std::uint8_t { kValue, kGradient };
/// All values or gradients of this rank, one after another.
inline std::vector<double> numbers_of(Gpt2& model, Field field) {
  model.download(Gpt2::Fields::kValuesAndGradients);
  std::vector<double> all;
  with_parameters(model, [&](auto parameters) {
    for (const auto& parameter : parameters) {
      const auto numbers = field == Field::kValue ? parameter.value : parameter.gradient;
      all.insert(all.end(), numbers.begin(), numbers.end());
    }
  });
  return all;
}

}  // namespace droptest::models
