// SPDX-License-Identifier: Apache-2.0
// The implementations of the operations on which tests of models run, including a real or fake device, and a model on
// any of them, in doubles.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/device/device_info.h"
#include "models/gpt2/gpt2.h"
#include "models/kernels/narrow_floats.h"
#include "models/ops/cuda_ops.h"
#include "models/ops/host_ops.h"
#include "models/ops/kernel_registry.h"
#include "tests/models/formula_model.h"

namespace droptest::models {

struct Implementation {
  std::string name;
  std::function<std::unique_ptr<Ops>(comm::Communicator&)> make;
  std::function<std::unique_ptr<OpsForm>(int world_size)> form;
  KernelDevice device;
  double tolerance;  ///< bound for |difference| / |reference|: rounding of the narrowest type through some operations
  /// On the slow fake device, tests with many cases run only some of them for each CUDA implementation. Those differ,
  /// by its turn from 1; 0: all cases.
  int turn = 0;

  /// Whether a test runs its case `number` if one in `period` is enough.
  bool takes(int number, int period) const { return turn == 0 || (turn + number) % period == 0; }
};

/// The last kernel of each operation in the registry.
inline KernelChoices last_kernels(KernelDevice device) {
  KernelChoices kernels;
  for (const KernelEntry& entry : kernel_entries()) {
    if (entry.device == device) kernels[std::string(entry.operation)] = {std::string(entry.name)};
  }
  return kernels;
}

inline std::vector<Implementation> implementations() {
  constexpr ModelPrecision kBf16{Precision::kBfloat16, Precision::kFloat32};
  constexpr ModelPrecision kFp16{Precision::kFloat16, Precision::kFloat32};
  std::vector<Implementation> all;
  const auto add_host = [&](std::string name, comm::ElementType type, ModelPrecision precision, int threads,
                            double tolerance) {
    using NarrowProducts = HostOpsOptions::NarrowProducts;
    const bool in_float = name.find("in float") != std::string::npos;
    const HostOpsOptions options{.type = type,
                                 .precision = precision,
                                 .threads = threads,
                                 .narrow_products = in_float ? NarrowProducts::kInFloat : NarrowProducts::kFastest};
    all.push_back({std::move(name), [=](comm::Communicator& group) { return make_host_ops(options, group); },
                   [=](int world_size) { return host_ops_form(options, world_size); }, KernelDevice::kHost, tolerance});
  };
  add_host("host float64, three threads", comm::ElementType::kFloat64, {}, 3, 0);
  add_host("host float32", comm::ElementType::kFloat32, {}, 1, 1e-6);
  if (has_bf16_products()) add_host("host bfloat16 GEMMs", comm::ElementType::kFloat32, kBf16, 1, 1e-2);
  add_host("host bfloat16 GEMMs in float", comm::ElementType::kFloat32, kBf16, 1, 1e-2);
  add_host("host float16 GEMMs", comm::ElementType::kFloat32, kFp16, 3, 2e-3);
  const auto add_reference_kernels = [&](std::string name, comm::ElementType type, double tolerance) {
    const HostOpsOptions options{.type = type, .threads = 2, .kernels = last_kernels(KernelDevice::kHost)};
    all.push_back({std::move(name), [=](comm::Communicator& group) { return make_host_ops(options, group); },
                   [=](int world_size) { return host_ops_form(options, world_size); }, KernelDevice::kHost, tolerance});
  };
  add_reference_kernels("host float64, reference kernels", comm::ElementType::kFloat64, 1e-13);
  add_reference_kernels("host float32, reference kernels", comm::ElementType::kFloat32, 1e-6);
  if (!comm::survey_devices().absence.empty()) return all;
  const bool is_fake = std::getenv("DROPTEST_FAKE_CUDA_ORDER") != nullptr;
  int turn = 0;
  const auto add_cuda = [&](std::string name, ModelPrecision precision, double tolerance, KernelChoices kernels = {}) {
    const CudaOpsOptions options{.precision = precision, .kernels = std::move(kernels)};
    all.push_back({std::move(name), [=](comm::Communicator& group) { return make_cuda_ops(options, group); },
                   [=](int world_size) { return cuda_ops_form(options, world_size); }, KernelDevice::kCuda, tolerance,
                   is_fake ? ++turn : 0});
  };
  add_cuda("CUDA float32", {}, 1e-6);
  add_cuda("CUDA bfloat16", kBf16, 1e-2);
  add_cuda("CUDA bfloat16, other kernels", kBf16, 1e-2, last_kernels(KernelDevice::kCuda));
  add_cuda("CUDA float16", kFp16, 2e-3);
  add_cuda("CUDA TF32", {Precision::kTf32, Precision::kFloat32}, 2e-3);
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

/// Calls use(parameters) with the parameters in the model's type.
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
                                           const comm::Communicator& group, const OptimizerConfig& adamw = {}) {
  auto model = std::make_unique<Gpt2>(config, std::move(ops), adamw);
  with_parameters(*model, [&](auto parameters) { set_formula_weights(config, parameters, group); });
  model->upload_values();
  return model;
}

/// Fails the test with the first difference.
inline void expect_equal(const std::vector<double>& got, const std::vector<double>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (std::size_t i = 0; i < want.size(); ++i) ASSERT_EQ(got[i], want[i]) << what << " " << i << " of " << want.size();
}

enum class Field : std::uint8_t { kValue, kGradient };
/// All values or gradients of this rank, one after the other.
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
