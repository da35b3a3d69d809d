// SPDX-License-Identifier: Apache-2.0
// Whole training steps of GPT-2 on random tokens: forward, backward, gradient norm, clipping and AdamW; ranks are
// threads of this process. Prints one JSON object. peers/pytorch_gpt2.py is the same benchmark for PyTorch;
// compare_peers.py runs both in turns.
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "comm/device/device_info.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/parallel_layout.h"
#include "comm/run_ranks.h"
#include "models/gpt2/gpt2.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/initial_weights.h"
#include "models/ops/cuda_ops.h"
#include "models/ops/host_ops.h"
#include "models/process_settings.h"
#include "models/training_step.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/random/philox.h"

namespace droptest {
namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  models::Gpt2Config model{12, 768, 12, 64, 50257};
  int batch = 4;
  int length = 64;
  int ranks = 1;
  int data = 1;
  int zero = 0;
  int threads = 2;
  int steps = 5;
  std::string precision = "float32";
  std::string device = "cpu";
  std::string attention;
  int accumulation = 1;
  bool profile = false;
  std::optional<double> loss_rate;
};

Options parsed(int argc, char** argv) {
  Options o;
  CLI::App app("Whole training steps of GPT-2 on random tokens");
  app.add_option("--layers", o.model.layers)->capture_default_str();
  app.add_option("--width", o.model.width)->capture_default_str();
  app.add_option("--heads", o.model.heads)->capture_default_str();
  app.add_option("--vocabulary", o.model.vocabulary)->capture_default_str();
  app.add_option("--batch", o.batch)->capture_default_str();
  app.add_option("--length", o.length)->capture_default_str();
  app.add_option("--ranks", o.ranks, "tensor-parallel ranks")->capture_default_str();
  app.add_option("--data", o.data, "data-parallel replicas of these ranks, on the CPU")->capture_default_str();
  app.add_option("--zero", o.zero, "ZeRO stage of the replicas")->capture_default_str();
  app.add_option("--threads", o.threads, "threads of each rank")->capture_default_str();
  app.add_option("--steps", o.steps, "measured, after one that is not")->capture_default_str();
  app.add_option("--loss-rate", o.loss_rate, "Bernoulli loss in both directions of tensor parallelism, count_rescale");
  app.add_option("--precision", o.precision, "of products with weights")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  app.add_option("--device", o.device, "what ranks compute with; ranks of cuda share the first device")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--attention", o.attention,
                 "on CUDA: the kernel of attention (flash, the default here, cudnn or plain)");
  app.add_option("--accumulation", o.accumulation, "micro-batches of a step")->capture_default_str();
  app.add_flag("--profile", o.profile, "on the CPU: adds the seconds that rank 0 spends in each phase of a step");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  o.model.context = o.length;
  return o;
}

comm::LossyOptions network(double loss_rate) {
  comm::LossyOptions options;
  options.network.seed = 1;
  comm::ClassNetwork network;
  comm::apply_loss(network, std::make_shared<sim::Bernoulli>(loss_rate));
  comm::apply_fill(network, comm::Fill::kCountRescale);
  options.network.of(sim::TrafficClass::kTpForward) = network;
  options.network.of(sim::TrafficClass::kTpBackward) = network;
  return options;
}

std::vector<std::int32_t> random_tokens(const Options& o) {
  sim::PhiloxEngine engine(1, sim::Purpose::kWeights, 0);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(o.batch * o.length + 1));
  for (std::int32_t& token : tokens)
    token = static_cast<std::int32_t>(engine() % static_cast<unsigned>(o.model.vocabulary));
  return tokens;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Result {
  double step_seconds = 0;
  double device_mebibytes = 0;  ///< device memory of all ranks
  double final_loss = 0;
  std::map<std::string, double> phases;  ///< mean seconds per step
};

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

models::ModelPrecision precision_of(const Options& o) {
  models::ModelPrecision precision;
  if (o.precision == "bfloat16") precision.compute = models::Precision::kBfloat16;
  return precision;
}

/// The rank's communicator; without losses it is the group itself.
comm::Communicator& network_of(const Options& o, comm::Communicator& group,
                               std::optional<comm::LossyCommunicator>& lossy) {
  if (!o.loss_rate) return group;
  return lossy.emplace(group, network(*o.loss_rate));
}

// The host waits for the device once in a step, at its end. The time of a step is that from one such wait to the next.
Result train_on_device(const Options& o) {
  if (o.data > 1) throw ConfigError("--data: got " + std::to_string(o.data) + " with --device cuda, want 1");
  comm::require_device(0);
  constexpr int kWarmUpSteps = 3;
  const std::vector<std::int32_t> tokens = random_tokens(o);
  const auto inputs = std::span(tokens).first(tokens.size() - 1);
  const auto targets = std::span(tokens).last(tokens.size() - 1);
  const std::vector<models::MicroBatch> micro_batches(static_cast<std::size_t>(o.accumulation),
                                                      {inputs, targets, {o.batch, o.length}});
  Result result;
  std::vector<double> mebibytes(static_cast<std::size_t>(o.ranks));
  comm::run_ranks(o.ranks, std::chrono::minutes(10), [&](comm::Communicator& inner) {
    std::optional<comm::LossyCommunicator> lossy;
    comm::Communicator& group = network_of(o, inner, lossy);
    models::CudaOpsOptions options{.precision = precision_of(o)};
    if (!o.attention.empty()) options.kernels["attention"] = {o.attention};
    models::Gpt2 model(o.model, models::make_cuda_ops(options, group));
    models::set_initial_weights<float>(models::gpt2_tensors(o.model, inner.world_size(), inner.rank()), 1,
                                       model.parameters<float>());
    model.upload_values();
    models::TrainingStep training(model, 1.0);
    std::vector<double> seconds;
    double loss = 0;
    Clock::time_point before;
    for (int step = 0; step < kWarmUpSteps + o.steps; ++step) {
      group.begin_step(static_cast<std::uint64_t>(step) + 1);
      loss = training.take(micro_batches, 1e-3).loss;
      const Clock::time_point now = Clock::now();
      if (step >= kWarmUpSteps) seconds.push_back(seconds_between(before, now));
      before = now;
    }
    mebibytes[static_cast<std::size_t>(inner.rank())] = static_cast<double>(model.memory_bytes()) / (1 << 20);
    if (inner.rank() != 0) return;
    result.step_seconds = median(seconds);
    result.final_loss = loss;
  });
  for (const double of_rank : mebibytes) result.device_mebibytes += of_rank;
  return result;
}

Result train_on_host(const Options& o) {
  const std::vector<std::int32_t> tokens = random_tokens(o);
  const auto inputs = std::span(tokens).first(tokens.size() - 1);
  const auto targets = std::span(tokens).last(tokens.size() - 1);
  const std::vector<models::MicroBatch> micro_batches(static_cast<std::size_t>(o.accumulation),
                                                      {inputs, targets, {o.batch, o.length}});
  Result result;
  comm::ParallelLayout layout;
  layout.tensor = o.ranks;
  layout.data = o.data;
  comm::run_ranks(layout.world_size(), std::chrono::minutes(10), [&](comm::Communicator& inner) {
    std::optional<comm::LossyCommunicator> lossy;
    const comm::ParallelGroups groups(layout, network_of(o, inner, lossy));
    const std::unique_ptr<comm::Communicator> alone = groups.world().split(inner.rank(), 0);
    comm::Communicator* const shared = groups.group(comm::ParallelDimension::kTensor);
    comm::Communicator& group = shared == nullptr ? *alone : *shared;
    models::ModelRanks ranks;
    ranks.data = {groups.group(comm::ParallelDimension::kData), {.zero = o.zero, .micro_batches = o.accumulation}};
    ranks.all = &groups.world();
    ranks.data_stride = layout.stride(comm::ParallelDimension::kData);
    models::PhaseTimes times(models::kPhasesAndRest, models::kPhaseNames.size());
    models::HostOpsOptions options;
    options.precision = precision_of(o);
    options.threads = o.threads;
    models::Gpt2 model(o.model, models::make_host_ops(options, group, o.profile ? &times : nullptr), {}, {}, ranks);
    models::set_initial_weights<float>(models::gpt2_tensors(o.model, group.world_size(), group.rank()), 1,
                                       model.parameters<float>());
    model.upload_values();
    models::TrainingStep training(model, 1.0);
    std::vector<double> seconds;
    double loss = 0;
    for (int step = 0; step <= o.steps; ++step) {
      inner.barrier({});
      const auto start = Clock::now();
      groups.world().begin_step(static_cast<std::uint64_t>(step) + 1);
      loss = training.take(micro_batches, 1e-3).loss;
      if (step == 0) (void)times.take();
      inner.barrier({});
      if (step > 0) seconds.push_back(seconds_between(start, Clock::now()));
    }
    if (inner.rank() != 0) return;
    result.step_seconds = median(seconds);
    result.final_loss = loss;
    if (!o.profile) return;
    const std::vector<double> seconds_of_phases = times.take();
    for (std::size_t phase = 0; phase < models::kPhaseNames.size(); ++phase) {
      result.phases[std::string(models::kPhaseNames[phase])] = seconds_of_phases[phase] / o.steps;
    }
  });
  return result;
}

double peak_mebibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

}  // namespace
}  // namespace droptest

int main(int argc, char** argv) {
  droptest::models::keep_freed_memory();
  const droptest::Options o = droptest::parsed(argc, argv);
  droptest::Result result;
  try {
    if (o.device == "cpu" && !o.attention.empty()) {
      throw droptest::ConfigError("--attention: got " + o.attention + " with --device cpu, want it absent");
    }
    result = o.device == "cuda" ? droptest::train_on_device(o) : droptest::train_on_host(o);
  } catch (const std::exception& error) {
    std::cerr << "train_step: error: " << error.what() << "\n";
    return 1;
  }
  nlohmann::json report = {{"program", "droptest"},
                           {"step_seconds", result.step_seconds},
                           {"tokens_per_second", o.data * o.accumulation * o.batch * o.length / result.step_seconds},
                           {"peak_mebibytes", droptest::peak_mebibytes()},
                           {"final_loss", result.final_loss}};
  if (o.device == "cuda") {
    report["device_mebibytes"] = result.device_mebibytes;
    report["attention"] = o.attention.empty() ? "flash" : o.attention;
  }
  if (o.profile) report["phase_seconds"] = result.phases;
  std::cout << report.dump() << "\n";
}
