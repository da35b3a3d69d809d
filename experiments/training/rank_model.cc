// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/rank_model.h"

#include <algorithm>
#include <boost/random/uniform_01.hpp>
#include <cmath>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "experiments/spec/kernels_in_use.h"
#include "experiments/spec/pipeline_plan.h"
#include "experiments/spec/rank_groups.h"
#include "experiments/training/run_device.h"
#include "experiments/training/trainer_parts.h"
#include "experiments/training/training_model.h"
#include "models/gpt2/gpt2_weights.h"
#include "models/kernels/cross_entropy.h"
#include "sim/error.h"
#include "sim/random/philox.h"

namespace droptest::experiments {
namespace {

/// One rank's part, with the objects that it borrows.
class RankModel {
 public:
  RankModel(const RunConfig& config, comm::Communicator& group, const models::StoredTensors& weights,
            const std::string& where)
      : network_(group, lossy_options(config, 1)),
        groups_(config, pipeline_plan(config), network_),
        model_(config, groups_.tensor(), groups_.model_ranks()) {
    models::load_gpt2_weights(config.model, model_.parameters(), groups_.tensor(), weights, where);
    model_.set_values();
  }

  TrainingModel& model() { return model_; }
  const comm::ParallelGroups& groups() { return groups_.layout(); }
  comm::LossyCommunicator& network() { return network_; }

 private:
  comm::LossyCommunicator network_;
  RankGroups groups_;
  TrainingModel model_;
};

/// The config without the parts that only training has: shards of the state, outer steps.
RunConfig without_training(const RunConfig& config) {
  RunConfig result = config;
  result.sharding = {};
  result.outer = {};
  result.time.reset();
  // Evaluations and generation have passes of any number of sequences and tokens, each of which would need a plan.
  if (uses_cudnn(result)) result.kernels["attention"] = {"flash"};
  return result;
}

/// The logits of the last token, the same on all ranks.
std::vector<double> next_logits(RankModel& rank, const Batch& batch) {
  constexpr comm::Message kOfLogits{sim::TrafficClass::kControl, "logits", -1};
  (void)rank.model().evaluate(batch, models::EvaluationDetail::kLogits);
  std::vector<double> logits = rank.model().detail();
  if (comm::Communicator* const tensor = rank.groups().group(comm::ParallelDimension::kTensor)) {
    tensor->all_reduce(comm::Tensor(std::span<double>(logits)), comm::ReduceOp::kSum, kOfLogits);
  }
  if (const auto plan = rank.model().pipeline()) {
    rank.groups()
        .group(comm::ParallelDimension::kPipeline)
        ->broadcast(comm::Tensor(std::span<double>(logits)), plan->rank_of(static_cast<int>(plan->stages.size()) - 1),
                    kOfLogits);
  }
  if (!std::all_of(logits.begin(), logits.end(), [](double logit) { return std::isfinite(logit); })) {
    throw std::runtime_error(
        "got logits that are not finite, from finite weights: no token is the likeliest; want weights "
        "whose activations stay in range, or a network without losses to compare with");
  }
  return logits;
}

}  // namespace

NetworkEvaluation evaluate_over_network(const RunConfig& config, const models::StoredTensors& weights,
                                        const std::string& where, const EvaluationData& data,
                                        models::EvaluationDetail detail) {
  require_run_device(config);
  const RunConfig plain = without_training(config);
  NetworkEvaluation evaluation;
  comm::run_ranks(plain.parallel.world_size(), plain.backend.timeout, [&](comm::Communicator& group) {
    RankModel rank(plain, group, weights, where);
    rank.network().begin_step(1);
    Evaluated result = evaluate(rank.model(), data, &rank.groups(), detail);
    auto statistics = rank.network().collect_statistics(comm::LossyCommunicator::LinkDetail::kOmit);
    if (group.rank() == 0) evaluation = {std::move(result), std::move(statistics)};
  });
  return evaluation;
}

std::int32_t choose_token(std::span<const double> logits, const GenerationOptions& options, std::uint64_t number) {
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto is_better = [&](std::int32_t a, std::int32_t b) {
    const double of_a = logits[static_cast<std::size_t>(a)];
    const double of_b = logits[static_cast<std::size_t>(b)];
    return of_a > of_b || (of_a == of_b && a < b);
  };
  if (options.temperature == 0) return *std::min_element(order.begin(), order.end(), is_better);
  const std::size_t count =
      options.top_k == 0 ? order.size() : std::min(order.size(), static_cast<std::size_t>(options.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(), is_better);
  std::vector<double> sums;
  double sum = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const double below = logits[static_cast<std::size_t>(order[i])] - logits[static_cast<std::size_t>(order[0])];
    sums.push_back(sum += std::exp(below / options.temperature));
  }
  sim::PhiloxEngine engine(options.seed, sim::Purpose::kGeneration, 0);
  engine.seek(number);
  const double draw = boost::random::uniform_01<double>()(engine) * sum;
  const auto chosen = std::upper_bound(sums.begin(), sums.end() - 1, draw);
  return order[static_cast<std::size_t>(chosen - sums.begin())];
}

Generation generate(const RunConfig& config, const models::StoredTensors& weights, const std::string& where,
                    std::span<const std::int32_t> prompt, const GenerationOptions& options) {
  if (config.model.classifies()) throw ConfigError(where + ": has a classification head, want one with an LM head");
  if (config.parallel.data > 1 || config.parallel.sequence > 1) {
    throw ConfigError("generation: got " + std::to_string(config.parallel.data) + " replicas and " +
                      std::to_string(config.parallel.sequence) + " sequence ranks, want 1 of each");
  }
  if (prompt.empty() || prompt.size() >= static_cast<std::size_t>(config.model.context)) {
    throw ConfigError("generation: got a prompt of " + std::to_string(prompt.size()) + " tokens, want 1 to " +
                      std::to_string(config.model.context - 1) + ", fewer than the model's context");
  }
  require_run_device(config);
  RunConfig plain = without_training(config);
  const bool caches = options.cache == GenerationOptions::Cache::kUsed;
  if (caches) plain.model.attention.past = models::AttentionOptions::Past::kCached;
  Generation generation;
  comm::run_ranks(plain.parallel.world_size(), plain.backend.timeout, [&](comm::Communicator& group) {
    RankModel rank(plain, group, weights, where);
    std::vector<std::int32_t> text(prompt.begin(), prompt.end());
    std::size_t computed = 0;  // tokens with keys and values in the cache
    for (int number = 0; number < options.tokens && text.size() < static_cast<std::size_t>(plain.model.context);
         ++number) {
      rank.network().begin_step(static_cast<std::uint64_t>(number) + 1);
      Batch batch;
      batch.sequences = 1;
      batch.tokens.assign(text.begin() + static_cast<std::ptrdiff_t>(computed), text.end());
      batch.length = static_cast<int>(batch.tokens.size());
      batch.first_position = static_cast<std::int64_t>(computed);
      batch.targets.assign(batch.tokens.size(), models::kIgnoredTarget);
      batch.targets.back() = 0;  // any token: only its place counts
      const std::vector<double> logits = next_logits(rank, batch);
      if (caches) computed = text.size();
      text.push_back(choose_token(logits, options, static_cast<std::uint64_t>(number)));
      if (text.back() == options.end) break;
    }
    auto statistics = rank.network().collect_statistics(comm::LossyCommunicator::LinkDetail::kOmit);
    if (group.rank() != 0) return;
    generation = {{text.begin() + static_cast<std::ptrdiff_t>(prompt.size()), text.end()}, std::move(statistics)};
  });
  return generation;
}

}  // namespace droptest::experiments
