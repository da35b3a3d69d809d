// SPDX-License-Identifier: Apache-2.0
// Passes of models on a device, assembled from all ranks as in formula_model.h for the host.
#pragma once

#include <array>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>

#include "comm/device/device_info.h"
#include "models/ops/cuda_ops.h"
#include "tests/models/formula_model.h"
#include "tests/models/norm_over_ranks.h"

namespace droptest::models {

/// The reason why tests of a device cannot run here; empty if they can. With DROPTEST_REQUIRE_CUDA=1, a reason fails
/// the test.
inline std::string device_absence() {
  std::string absence = comm::survey_devices().absence;
  const char* required = std::getenv("DROPTEST_REQUIRE_CUDA");
  if (!absence.empty() && required != nullptr && std::string(required) == "1") {
    throw DeviceError("DROPTEST_REQUIRE_CUDA=1, but " + absence);
  }
  return absence;
}

/// The fixture of tests that need a device.
class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string absence = device_absence(); !absence.empty()) GTEST_SKIP() << absence;
  }
};

inline constexpr ModelPrecision kBf16Compute{Precision::kBfloat16, Precision::kFloat32};
inline constexpr ModelPrecision kBf16Messages{Precision::kFloat32, Precision::kBfloat16};
inline constexpr ModelPrecision kBf16Both{Precision::kBfloat16, Precision::kBfloat16};
inline constexpr ModelPrecision kFp16Compute{Precision::kFloat16, Precision::kFloat32};
inline constexpr ModelPrecision kFp16Both{Precision::kFloat16, Precision::kFloat16};
inline constexpr ModelPrecision kFp16WithBf16{Precision::kFloat16, Precision::kBfloat16};
inline constexpr std::array<ModelPrecision, 7> kPrecisions{ModelPrecision{}, kBf16Compute, kBf16Messages, kBf16Both,
                                                           kFp16Compute,     kFp16Both,    kFp16WithBf16};

struct DeviceRun {
  ModelPrecision precision{};
  int ranks = 1;
  int batch = 2;
  int length = 5;
  std::uint64_t logits_bytes = std::uint64_t{1} << 30U;
  std::uint64_t first_stream = 0;  ///< stream of the tokens; that of the targets follows
  SlotOptions slots{};
};

inline CudaOpsOptions options_of(const DeviceRun& run) {
  CudaOpsOptions options;
  options.precision = run.precision;
  options.logits_bytes = run.logits_bytes;
  return options;
}

/// The model with formula weights.
inline std::unique_ptr<Gpt2> formula_device_model(const Gpt2Config& config, comm::Communicator& group,
                                                  const CudaOpsOptions& options, const OptimizerConfig& adamw = {},
                                                  const SlotOptions& slots = {}) {
  auto model = std::make_unique<Gpt2>(config, make_cuda_ops(options, group), adamw, slots);
  set_formula_weights<float>(config, model->parameters<float>(), group);
  model->upload_values();
  return model;
}

/// Calls body(model, tokens, targets) on every rank. Returns the gradients after it, and the sums of the step.
template <class Body>
Pass device_pass(const Gpt2Config& config, const DeviceRun& run, const Body& body) {
  Pass pass;
  pass.replicated.resize(static_cast<std::size_t>(run.ranks));
  pass.losses.resize(static_cast<std::size_t>(run.ranks));
  std::mutex mutex;
  const auto tokens = formula_tokens(run.first_stream, run.batch * run.length, config.vocabulary);
  const auto targets = formula_tokens(run.first_stream + 1, run.batch * run.length, config.vocabulary);
  comm::run_ranks(run.ranks, kTestTimeout, [&](comm::Communicator& group) {
    const std::unique_ptr<Gpt2> model = formula_device_model(config, group, options_of(run), {}, run.slots);
    model->zero_gradients();
    body(*model, tokens, targets);
    const Gpt2::StepSums sums = model->step_sums();
    const double norm = norm_over_ranks(sums.gradient_squares, group);
    model->download(Gpt2::Fields::kValuesAndGradients);
    const std::lock_guard lock(mutex);
    const auto rank = static_cast<std::size_t>(group.rank());
    pass.losses[rank] = sums.losses;
    if (rank == 0) {
      pass.loss = sums.losses;
      pass.norm = norm;
    }
    add_to_whole<float>(config, model->parameters<float>(), group, &Parameter<float>::gradient, pass.gradients);
    for (const Parameter<float>& parameter : model->parameters<float>()) {
      if (parameter.placement != Placement::kReplicated) continue;
      for (const float value : parameter.gradient) pass.replicated[rank].push_back(static_cast<double>(value));
    }
  });
  return pass;
}

/// One pass with scale 1.
inline Pass device_pass(const Gpt2Config& config, const DeviceRun& run) {
  return device_pass(config, run, [&run](Gpt2& model, const auto& tokens, const auto& targets) {
    model.forward_backward(tokens, targets, {run.batch, run.length}, 1.0);
  });
}

/// The largest relative difference of a tensor's gradient, with the tensor's name if it exceeds the bound.
inline double worst_difference(const Tensors& got, const Tensors& want, double bound) {
  double worst = 0;
  for (const auto& [name, reference] : want) {
    const double difference = relative_difference(got.at(name), reference);
    EXPECT_LE(difference, bound) << name;
    worst = std::max(worst, difference);
  }
  return worst;
}

}  // namespace droptest::models
