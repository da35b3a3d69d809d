// SPDX-License-Identifier: Apache-2.0
#include "comm/lab/drift_experiment.h"

#include <boost/random/normal_distribution.hpp>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/random/philox.h"

namespace droptest::comm {
namespace {

constexpr sim::TrafficClass kClass = sim::TrafficClass::kParameterGather;
const Message kGradient{kClass, "gradient"};
const Message kParameters{kClass, "parameters"};
const Message kControl{sim::TrafficClass::kControl, "drift"};

// Sums over elements at the end of one trial.
struct Trial {
  double between_replicas = 0;
  double from_owner = 0;
  double step = 0;
};

bool is_one_hop(const ClassNetwork& network) { return path_entry(network.path).route == Route::kOneHop; }

bool is_independent(const HalfNetwork& half) { return half.loss == nullptr || half.loss->is_independent(); }

double loss_rate(const HalfNetwork& half) { return half.loss == nullptr ? 0 : half.loss->loss_rate(); }

bool has_gather_theory(const ClassNetwork& network) {
  return is_one_hop(network) && network.consistency == Consistency::kPerReceiver && is_independent(network.gather) &&
         (network.gather.rule().remembers() || network.gather.loss == nullptr);
}

// Mean square of a step x ranks. The owner's own contribution always arrives.
std::optional<double> expected_step(const ClassNetwork& network, int ranks) {
  if (!is_one_hop(network)) return std::nullopt;
  const double p = loss_rate(network.reduce);
  const double others = ranks - 1;
  if (p == 0) return 1;
  if (network.reduce.rule() == FillRule{}) return (1 + others * (1 - p)) / ranks;
  if (network.reduce.rule().scale == FillRule::Scale::kByRate && p < 1) return (1 + others / (1 - p)) / ranks;
  return std::nullopt;
}

/// One rank's view of the walk.
class Walk {
 public:
  Walk(const DriftExperiment& experiment, Communicator& inner, std::uint64_t trial)
      : experiment_(experiment),
        inner_(inner),
        lossy_(inner, options_of(experiment, trial)),
        trial_(trial),
        counts_(even_counts(experiment.elements, inner.world_size())),
        gradient_(experiment.elements),
        replica_(experiment.elements),
        step_(counts_[inner.rank()]),
        part_(counts_[inner.rank()]) {}

  void run() {
    for (std::uint64_t step = 0; step < experiment_.steps; ++step) {
      draw_gradient(step);
      lossy_.reduce_scatter(ConstTensor(std::span<const float>(gradient_)), Tensor(std::span(step_)), counts_,
                            ReduceOp::kSum, kGradient);
      for (std::size_t i = 0; i < part_.size(); ++i) {
        step_[i] /= static_cast<float>(inner_.world_size());
        part_[i] += step_[i];
      }
      lossy_.all_gather(ConstTensor(std::span<const float>(part_)), Tensor(std::span(replica_)), counts_, kParameters);
    }
    lossy_.verify_fates();
  }

  /// Sums of the deviations, equal on every rank. Ranks: all.
  Trial measure() {
    std::vector<float> owned(experiment_.elements);
    inner_.all_gather(ConstTensor(std::span<const float>(part_)), Tensor(std::span(owned)), counts_, kControl);
    // For the deviations d of the M receivers from the owner's value: the sum of d and of d^2.
    const std::size_t n = owned.size();
    std::vector<double> sums(2 * n);
    std::size_t own_begin = 0;
    for (int rank = 0; rank < inner_.rank(); ++rank) own_begin += counts_[rank];
    for (std::size_t i = 0; i < n; ++i) {
      if (i >= own_begin && i < own_begin + part_.size()) continue;  // this rank received nothing here
      const double d = static_cast<double>(replica_[i]) - owned[i];
      sums[i] = d;
      sums[n + i] = d * d;
    }
    inner_.all_reduce(Tensor(std::span(sums)), ReduceOp::kSum, kControl);
    double squared_step = 0;
    for (const float s : step_) squared_step += static_cast<double>(s) * s;
    inner_.all_reduce(Tensor(std::span(&squared_step, 1)), ReduceOp::kSum, kControl);

    Trial trial;
    const double receivers = inner_.world_size() - 1;
    for (std::size_t i = 0; i < n; ++i) {
      // The mean of (d_j - d_k)^2 over ordered pairs j != k is 2 (M sum d^2 - (sum d)^2) / (M (M - 1)).
      trial.between_replicas += 2 * (receivers * sums[n + i] - sums[i] * sums[i]) / (receivers * (receivers - 1));
      trial.from_owner += sums[n + i] / receivers;
    }
    trial.step = squared_step;
    return trial;
  }

 private:
  // Trials are independent: each has a seed of its own.
  static LossyOptions options_of(const DriftExperiment& experiment, std::uint64_t trial) {
    LossyOptions options;
    sim::PhiloxEngine seeds(experiment.seed, sim::Purpose::kSyntheticInput, trial << 32);
    options.network.seed = (static_cast<std::uint64_t>(seeds()) << 32) | seeds();
    options.network.of(kClass) = experiment.network;
    return options;
  }

  void draw_gradient(std::uint64_t step) {
    const auto ranks = static_cast<std::uint64_t>(inner_.world_size());
    const std::uint64_t stream =
        1 + (trial_ * experiment_.steps + step) * ranks + static_cast<std::uint64_t>(inner_.rank());
    sim::PhiloxEngine engine(experiment_.seed ^ 1, sim::Purpose::kSyntheticInput, stream);
    boost::random::normal_distribution<double> normal;
    for (float& g : gradient_) g = static_cast<float>(normal(engine));
  }

  const DriftExperiment& experiment_;
  Communicator& inner_;
  LossyCommunicator lossy_;
  std::uint64_t trial_;
  std::vector<std::uint64_t> counts_;
  std::vector<float> gradient_;
  std::vector<float> replica_;
  std::vector<float> step_;  // step of the own part
  std::vector<float> part_;
};

void require(bool good, const char* name, std::uint64_t got, const char* want) {
  if (!good) throw ConfigError(std::string("drift: ") + name + ": got " + std::to_string(got) + ", want " + want);
}

}  // namespace

double expected_drift_between_replicas(double loss_rate) {
  return loss_rate < 1 ? 2 * loss_rate / (1 - loss_rate * loss_rate) : std::numeric_limits<double>::infinity();
}

double expected_drift_from_owner(double loss_rate) {
  return loss_rate < 1 ? loss_rate / (1 - loss_rate) : std::numeric_limits<double>::infinity();
}

DriftExperimentResult run_drift_experiment(const DriftExperiment& experiment) {
  require(experiment.ranks >= 3, "ranks", static_cast<std::uint64_t>(std::max(experiment.ranks, 0)), "at least 3");
  require(experiment.elements > 0, "elements", experiment.elements, "at least 1");
  require(experiment.steps > 0, "steps", experiment.steps, "at least 1");
  require(experiment.trials > 0, "trials", experiment.trials, "at least 1");
  validate(experiment.network);

  std::vector<Trial> trials(experiment.trials);
  run_ranks(experiment.ranks, experiment.timeout, [&](Communicator& inner) {
    for (std::uint64_t t = 0; t < experiment.trials; ++t) {
      Walk walk(experiment, inner, t);
      walk.run();
      const Trial trial = walk.measure();
      if (inner.rank() == 0) trials[t] = trial;
    }
  });

  std::vector<double> between;
  std::vector<double> from_owner;
  std::vector<double> steps;
  std::vector<double> scaled_steps;
  for (const Trial& trial : trials) {
    between.push_back(trial.between_replicas);
    from_owner.push_back(trial.from_owner);
    steps.push_back(trial.step);
    scaled_steps.push_back(trial.step * experiment.ranks / static_cast<double>(experiment.elements));
  }
  std::optional<double> expected_between;
  std::optional<double> expected_from_owner;
  if (has_gather_theory(experiment.network)) {
    expected_between = expected_drift_between_replicas(loss_rate(experiment.network.gather));
    expected_from_owner = expected_drift_from_owner(loss_rate(experiment.network.gather));
  }
  return {ratio_of(between, steps, expected_between), ratio_of(from_owner, steps, expected_from_owner),
          mean_of(scaled_steps, expected_step(experiment.network, experiment.ranks))};
}

}  // namespace droptest::comm
