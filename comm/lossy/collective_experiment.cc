// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/collective_experiment.h"

#include <boost/random/normal_distribution.hpp>
#include <cmath>
#include <span>
#include <string>

#include "comm/lossy/lossy_communicator.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/random/philox.h"

namespace droptest::comm {
namespace {

constexpr sim::TrafficClass kClass = sim::TrafficClass::kTpForward;
const Message kTrial{kClass, "trial"};
const Message kExact{sim::TrafficClass::kControl, "exact result"};

// What one trial showed.
struct Trial {
  std::vector<double> error_energy;  // by rank
  double exact_energy = 0;           // of one rank's result
  double survival_reduce = 1;
  double survival_gather = 1;
};

void require_positive(const char* name, std::uint64_t value) {
  if (value == 0) throw ConfigError(std::string("collective: ") + name + ": got 0, want at least 1");
}

void draw_inputs(const CollectiveExperiment& experiment, std::uint64_t trial, int rank, std::vector<float>& input) {
  const auto stream_of_rank = experiment.inputs == Inputs::kIdentical ? 0 : static_cast<std::uint64_t>(rank);
  const std::uint64_t stream = trial * static_cast<std::uint64_t>(experiment.ranks) + stream_of_rank;
  sim::PhiloxEngine engine(experiment.seed, sim::Purpose::kSyntheticInput, stream);
  boost::random::normal_distribution<double> normal;
  for (float& x : input) x = static_cast<float>(normal(engine));
}

std::uint64_t lost_elems(const LossCounts& counts) { return counts.lost_bytes / sizeof(float); }

// Fraction of (result, contribution) pairs that arrived, from the elements lost so far on all reduce links. On `direct`
// a lost element is one pair of N; on `contribution` a contribution that all results miss.
double survival_of_reduce(const CollectiveExperiment& experiment, double lost) {
  return 1 - lost / (static_cast<double>(experiment.elements) * experiment.ranks);
}

// Fraction of (element, receiver) pairs that arrived. A packet to every destination is lost by all ranks, except that
// an owner under `own` keeps its value.
double survival_of_gather(const CollectiveExperiment& experiment, double lost) {
  const double ranks = experiment.ranks;
  double losers = 1;
  if (experiment.network.consistency == Consistency::kShared) {
    const bool owner_keeps = experiment.network.path == "direct" && experiment.network.gather.fill == Fill::kOwn;
    losers = owner_keeps ? ranks - 1 : ranks;
  }
  return 1 - lost * losers / (static_cast<double>(experiment.elements) * ranks);
}

// The halves draw from different links, so their means are independent.
Estimate product_of(const Estimate& a, const Estimate& b) {
  Estimate product;
  product.measured = a.measured * b.measured;
  product.standard_error = std::hypot(b.measured * a.standard_error, a.measured * b.standard_error);
  if (a.expected.has_value() && b.expected.has_value()) product.expected = *a.expected * *b.expected;
  return product;
}

void run_trials(const CollectiveExperiment& experiment, Communicator& inner, std::vector<Trial>& trials,
                ClassStatistics& statistics) {
  LossyOptions options;
  options.network.seed = experiment.seed;
  options.network.of(kClass) = experiment.network;
  LossyCommunicator lossy(inner, options);

  std::vector<float> input(experiment.elements);
  std::vector<float> result(experiment.elements);
  std::vector<double> exact(experiment.elements);
  double lost_reduce = 0;
  double lost_gather = 0;
  for (std::uint64_t t = 0; t < experiment.trials; ++t) {
    draw_inputs(experiment, t, inner.rank(), input);
    exact.assign(input.begin(), input.end());
    inner.all_reduce(Tensor(std::span(exact)), ReduceOp::kSum, kExact);
    lossy.all_reduce(ConstTensor(std::span<const float>(input)), Tensor(std::span(result)), ReduceOp::kSum, kTrial);

    double error_energy = 0;
    double exact_energy = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double error = static_cast<double>(result[i]) - exact[i];
      error_energy += error * error;
      exact_energy += exact[i] * exact[i];
    }
    Trial& trial = trials[t];
    trial.error_energy[inner.rank()] = error_energy;  // each rank writes its own element
    const std::vector<ClassStatistics> so_far = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit);
    if (inner.rank() != 0) continue;
    trial.exact_energy = exact_energy;
    if (so_far.empty()) continue;  // a group of one loses nothing
    const auto reduce = static_cast<double>(lost_elems(so_far[0].halves[0]));
    const auto gather = static_cast<double>(lost_elems(so_far[0].halves[1]));
    trial.survival_reduce = survival_of_reduce(experiment, reduce - lost_reduce);
    trial.survival_gather = survival_of_gather(experiment, gather - lost_gather);
    lost_reduce = reduce;
    lost_gather = gather;
    statistics = so_far[0];
  }
  lossy.verify_fates();
}

}  // namespace

CollectiveExperimentResult run_collective_experiment(const CollectiveExperiment& experiment) {
  require_positive("ranks", experiment.ranks > 0 ? 1 : 0);
  require_positive("elements", experiment.elements);
  require_positive("trials", experiment.trials);
  validate(experiment.network);

  Trial empty;
  empty.error_energy.resize(static_cast<std::size_t>(experiment.ranks));
  std::vector<Trial> trials(experiment.trials, empty);
  CollectiveExperimentResult result;
  run_ranks(experiment.ranks, experiment.timeout,
            [&](Communicator& inner) { run_trials(experiment, inner, trials, result.statistics); });

  std::vector<double> errors;
  std::vector<double> energies;
  std::vector<double> reduce;
  std::vector<double> gather;
  for (const Trial& trial : trials) {
    double error = 0;
    for (const double e : trial.error_energy) error += e;
    errors.push_back(error);
    energies.push_back(trial.exact_energy * experiment.ranks);
    reduce.push_back(trial.survival_reduce);
    gather.push_back(trial.survival_gather);
    result.nmse_by_trial.push_back(errors.back() / energies.back());
  }
  const LossyAllReduce theory = all_reduce_case(experiment.network, experiment.ranks, experiment.inputs);
  const std::optional<Survival> survival = expected_survival(theory);
  const auto expected = [&](double Survival::*half) {
    return survival.has_value() ? std::optional<double>((*survival).*half) : std::nullopt;
  };
  result.nmse = ratio_of(errors, energies, expected_nmse(theory));
  result.survival_reduce = mean_of(reduce, expected(&Survival::reduce));
  result.survival_gather = mean_of(gather, expected(&Survival::gather));
  result.survival = product_of(result.survival_reduce, result.survival_gather);
  return result;
}

}  // namespace droptest::comm
