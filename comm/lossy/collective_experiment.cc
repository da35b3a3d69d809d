// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/collective_experiment.h"

#include <boost/random/normal_distribution.hpp>
#include <cmath>
#include <limits>
#include <span>
#include <string>

#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/residual_theory.h"
#include "comm/run_ranks.h"
#include "sim/error.h"
#include "sim/packets/packetizer.h"
#include "sim/random/philox.h"
#include "sim/time/timing_theory.h"

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
  double seconds = 0;
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

std::uint64_t lost_elems(const LossCounts& counts) { return counts.residual_bytes / sizeof(float); }

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

double time_of(const std::optional<VirtualTime>& time) { return time ? time->seconds : 0; }

// Mean of `values` with its standard error.
Estimate mean_of(const std::vector<double>& values, std::optional<double> expected) {
  const auto n = static_cast<double>(values.size());
  double sum = 0;
  for (const double v : values) sum += v;
  const double mean = sum / n;
  double squares = 0;
  for (const double v : values) squares += (v - mean) * (v - mean);
  const double error = n > 1 ? std::sqrt(squares / (n * (n - 1))) : std::numeric_limits<double>::quiet_NaN();
  return {mean, error, expected};
}

// Ratio of sums R = sum a / sum b; by the delta method its variance is that of the mean of (a - R b) / mean(b).
Estimate ratio_of(const std::vector<double>& a, const std::vector<double>& b, std::optional<double> expected) {
  const auto n = static_cast<double>(a.size());
  double sum_a = 0;
  double sum_b = 0;
  for (std::size_t t = 0; t < a.size(); ++t) {
    sum_a += a[t];
    sum_b += b[t];
  }
  const double ratio = sum_a / sum_b;
  double squares = 0;
  for (std::size_t t = 0; t < a.size(); ++t) squares += (a[t] - ratio * b[t]) * (a[t] - ratio * b[t]);
  const double error =
      n > 1 ? std::sqrt(squares / (n * (n - 1))) / (sum_b / n) : std::numeric_limits<double>::quiet_NaN();
  return {ratio, error, expected};
}

// The halves draw from different links, so their means are independent.
Estimate product_of(const Estimate& a, const Estimate& b) {
  Estimate product;
  product.measured = a.measured * b.measured;
  product.standard_error = std::hypot(b.measured * a.standard_error, a.measured * b.standard_error);
  if (a.expected.has_value() && b.expected.has_value()) product.expected = *a.expected * *b.expected;
  return product;
}

std::optional<double> expected_seconds(const CollectiveExperiment& experiment) {
  const TimeModel& model = *experiment.time;
  const bool plain = model.reliable == nullptr && !model.deadline_seconds && model.transfer_p99_over_p50 == 1 &&
                     model.links.group_ranks == 0 &&
                     experiment.elements % static_cast<std::uint64_t>(experiment.ranks) == 0;
  if (!plain) return std::nullopt;
  if (experiment.ranks == 1) return 0;
  const auto bytes_of = [&](std::uint64_t elements) {
    const sim::Packetizer cut(elements, sizeof(float), experiment.network.payload_bytes);
    return static_cast<double>(elements * sizeof(float) + cut.packets() * model.header_bytes);
  };
  const sim::LinkCost& link = model.links.between;
  if (experiment.network.path == "contribution") return sim::aggregation_seconds(bytes_of(experiment.elements), link);
  if (experiment.network.path != "direct") return std::nullopt;
  const auto ranks = static_cast<std::uint64_t>(experiment.ranks);
  const double all_parts = static_cast<double>(ranks) * bytes_of(experiment.elements / ranks);
  return sim::direct_all_reduce_seconds(experiment.ranks, all_parts, link);
}

void run_trials(const CollectiveExperiment& experiment, Communicator& inner, std::vector<Trial>& trials,
                ClassStatistics& statistics, std::optional<VirtualTime>& time) {
  LossyOptions options;
  options.network.seed = experiment.seed;
  options.network.of(kClass) = experiment.network;
  options.time = experiment.time;
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
    const std::optional<VirtualTime> now = lossy.collect_time();
    Trial& trial = trials[t];
    trial.error_energy[inner.rank()] = error_energy;  // each rank writes its own element
    const std::vector<ClassStatistics> so_far = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit);
    if (inner.rank() != 0) continue;
    trial.exact_energy = exact_energy;
    trial.seconds = time_of(now) - time_of(time);
    time = now;
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
            [&](Communicator& inner) { run_trials(experiment, inner, trials, result.statistics, result.time); });

  std::vector<double> errors;
  std::vector<double> energies;
  std::vector<double> reduce;
  std::vector<double> gather;
  std::vector<double> seconds;
  for (const Trial& trial : trials) {
    double error = 0;
    for (const double e : trial.error_energy) error += e;
    errors.push_back(error);
    energies.push_back(trial.exact_energy * experiment.ranks);
    reduce.push_back(trial.survival_reduce);
    gather.push_back(trial.survival_gather);
    seconds.push_back(trial.seconds);
    result.nmse_by_trial.push_back(errors.back() / energies.back());
  }
  const ExpectedAllReduce theory =
      expected_all_reduce(experiment.network, experiment.ranks, experiment.inputs, experiment.elements, sizeof(float));
  const std::optional<Survival>& survival = theory.survival;
  const auto expected = [&](double Survival::*half) {
    return survival.has_value() ? std::optional<double>((*survival).*half) : std::nullopt;
  };
  if (experiment.time) result.seconds = mean_of(seconds, expected_seconds(experiment));
  result.nmse = ratio_of(errors, energies, theory.nmse);
  result.survival_reduce = mean_of(reduce, expected(&Survival::reduce));
  result.survival_gather = mean_of(gather, expected(&Survival::gather));
  result.survival = product_of(result.survival_reduce, result.survival_gather);
  return result;
}

}  // namespace droptest::comm
