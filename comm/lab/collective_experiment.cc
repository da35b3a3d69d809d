// SPDX-License-Identifier: Apache-2.0
#include "comm/lab/collective_experiment.h"

#include <algorithm>
#include <boost/random/normal_distribution.hpp>
#include <cmath>
#include <span>
#include <string>
#include <utility>

#include "comm/lab/fate_simulation.h"
#include "comm/lab/residual_theory.h"
#include "comm/lab/time_simulation.h"
#include "comm/lossy/clock/virtual_clock.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/lossy/paths/path_registry.h"
#include "comm/lossy/recovery_rules.h"
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

// Collecting statistics gives each rank the counts of all links. Larger groups verify their fates link by link, and
// take the counts of the simulation, which are the same.
constexpr int kMostRanksThatCollect = 128;

// The results of one trial.
struct Trial {
  std::vector<double> error_energy;  // squared errors by rank
  std::vector<double> peak_error;    // peak errors by rank
  double exact_energy = 0;           // energy of one rank's result
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

double time_of(const std::optional<VirtualTime>& time) { return time ? time->seconds : 0; }

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
  const ClassNetwork& network = experiment.network;
  const bool coded = network.reduce.recovery != nullptr || network.gather.recovery != nullptr;
  const bool computes = model.compute_seconds != 0.0;
  const bool plain = !coded && !computes && !model.deadline_seconds && model.transfer_p99_over_p50 == 1 &&
                     model.links.group_ranks == 0 &&
                     experiment.elements % static_cast<std::uint64_t>(experiment.ranks) == 0;
  if (!plain) return std::nullopt;
  if (experiment.ranks == 1) return 0;
  const auto bytes_of = [&](std::uint64_t elements) {
    const sim::Packetizer cut(elements, sizeof(float), experiment.network.payload_bytes);
    return static_cast<double>(elements * sizeof(float) + cut.packets() * model.header_bytes);
  };
  const sim::LinkCost& link = model.links.between;
  const PathEntry& path = path_entry(experiment.network.path);
  if (path.seconds == nullptr) return std::nullopt;
  const std::uint64_t parts = path.route == Route::kAggregated ? 1 : static_cast<std::uint64_t>(experiment.ranks);
  return path.seconds(experiment.ranks, static_cast<double>(parts) * bytes_of(experiment.elements / parts), link);
}

// The data that the ranks, threads of one process, share.
struct Shared {
  std::vector<std::span<const float>> inputs;  // inputs by rank
  std::vector<double> exact;
};

void run_trials(const CollectiveExperiment& experiment, Communicator& inner, Shared& shared, std::vector<Trial>& trials,
                ClassStatistics& statistics, std::optional<VirtualTime>& time) {
  LossyOptions options;
  options.network.seed = experiment.seed;
  options.network.of(kClass) = experiment.network;
  options.time = experiment.time;
  const bool collects = experiment.ranks <= kMostRanksThatCollect;
  options.counting = collects ? Counting::kOn : Counting::kOff;
  LossyCommunicator lossy(inner, options);

  const auto rank = static_cast<std::size_t>(inner.rank());
  std::vector<float> input(experiment.elements);
  std::vector<float> result(experiment.elements);
  shared.inputs[rank] = input;
  std::uint64_t begin = 0;
  const std::vector<std::uint64_t> counts = even_counts(experiment.elements, inner.world_size());
  for (std::size_t r = 0; r < rank; ++r) begin += counts[r];
  for (std::uint64_t t = 0; t < experiment.trials; ++t) {
    draw_inputs(experiment, t, inner.rank(), input);
    inner.barrier(kExact);
    for (std::uint64_t i = begin; i < begin + counts[rank]; ++i) {
      double sum = 0;
      for (const std::span<const float> of_rank : shared.inputs) sum += of_rank[i];
      shared.exact[i] = experiment.op == ReduceOp::kMean ? sum / experiment.ranks : sum;
    }
    inner.barrier(kExact);
    lossy.begin_step(t);  // losses may change over steps
    lossy.all_reduce(ConstTensor(std::span<const float>(input)), Tensor(std::span(result)), experiment.op, kTrial);

    double error_energy = 0;
    double exact_energy = 0;
    double peak_error = 0;
    for (std::size_t i = 0; i < shared.exact.size(); ++i) {
      const double error = static_cast<double>(result[i]) - shared.exact[i];
      error_energy += error * error;
      peak_error = larger_or_nan(peak_error, std::abs(error));
      exact_energy += shared.exact[i] * shared.exact[i];
    }
    trials[t].error_energy[rank] = error_energy;  // each rank writes its own element
    trials[t].peak_error[rank] = peak_error;
    const std::optional<VirtualTime> now = lossy.collect_time();
    if (inner.rank() != 0) continue;
    trials[t].exact_energy = exact_energy;
    trials[t].seconds = time_of(now) - time_of(time);
    time = now;
  }
  lossy.verify_fates();
  if (!collects) return;
  const std::vector<ClassStatistics> collected = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit);
  if (inner.rank() == 0 && !collected.empty()) statistics = collected[0];  // a group of one loses nothing
}

// The network of a path: late packets are lost if there is a deadline.
ClassNetwork seen_network(const CollectiveExperiment& experiment) {
  if (!experiment.time) return experiment.network;
  Network network;
  network.of(kClass) = experiment.network;
  return *with_deadlines(network, *experiment.time).of(kClass);
}

FateSimulation simulation_of(const CollectiveExperiment& experiment, const ClassNetwork& network) {
  return {network,
          kClass,
          experiment.ranks,
          experiment.elements,
          experiment.trials,
          experiment.seed,
          experiment.time ? &*experiment.time : nullptr};
}

// In the slots of a clock, repetitions meet the burst that lost the packet. The number of repetitions that are lost
// again has a closed form only for independent loss.
bool has_known_residual(const CollectiveExperiment& experiment, const HalfNetwork& half) {
  return !experiment.time || half.loss == nullptr || half.recovery == nullptr || !half.recovery->sends_again() ||
         half.recovery->is_reliable() || half.loss->is_independent();
}

// Computes the losses of the trials only from the fates and clocks.
void simulate_losses(const CollectiveExperiment& experiment, CollectiveExperimentResult& result) {
  const ClassNetwork network = seen_network(experiment);
  SimulatedFates fates = simulate_fates(simulation_of(experiment, network));
  // The closed forms are for equal links, in all steps, without a deadline.
  const bool may_be_late = experiment.time && experiment.time->deadline_seconds;
  ExpectedAllReduce theory;
  if (!may_be_late && has_one_process(network.reduce) && has_one_process(network.gather) &&
      network.recovery.protect.empty() && has_known_residual(experiment, network.reduce) &&
      has_known_residual(experiment, network.gather)) {
    theory = expected_all_reduce(network, experiment.ranks, experiment.inputs, experiment.elements,
                                 ElementType::kFloat32, experiment.op);
  }
  const auto expected = [&](double Survival::*half) {
    return theory.survival.has_value() ? std::optional<double>((*theory.survival).*half) : std::nullopt;
  };
  result.nmse.expected = theory.nmse;
  result.survival_reduce = mean_of(fates.survival_reduce, expected(&Survival::reduce));
  result.survival_gather = mean_of(fates.survival_gather, expected(&Survival::gather));
  result.survival = product_of(result.survival_reduce, result.survival_gather);
  result.statistics = std::move(fates.statistics);
}

void check(const CollectiveExperiment& experiment) {
  require_positive("ranks", experiment.ranks > 0 ? 1 : 0);
  require_positive("elements", experiment.elements);
  require_positive("trials", experiment.trials);
  const PathEntry& path = path_entry(experiment.network.path);
  if (experiment.op == ReduceOp::kMax) throw ConfigError("collective: got a maximum, want a sum or a mean");
  if (experiment.op == ReduceOp::kSum && experiment.network.reduce.rule().keeps_own()) {
    throw ConfigError("collective: got the fill own in the reduce half of a sum, want a mean");
  }
  if (experiment.time) {
    Network network;
    network.of(kClass) = experiment.network;
    validate(*experiment.time, network);
  }
  if (const auto endless =
          endless_repetition(experiment.network, {experiment.ranks, experiment.elements, ElementType::kFloat32})) {
    throw ConfigError("collective: retransmission: " + *endless);
  }
  validate(experiment.network);
  validate(seen_network(experiment));
  if (!experiment.time || path.schedule == nullptr) return;
  const int groups = experiment.network.group_ranks;
  const int rounds = path.schedule({sim::Collective::kAllReduce, experiment.ranks, 0, groups})->rounds();
  if (rounds >= CollectiveTiming::kMostRounds) {
    throw ConfigError("collective: got " + std::to_string(experiment.ranks) + " ranks, whose " +
                      std::to_string(rounds) + " rounds the clock cannot tell apart; want fewer than " +
                      std::to_string(CollectiveTiming::kMostRounds) + " rounds, or no clock");
  }
}

}  // namespace

CollectiveExperimentResult run_collective_experiment(const CollectiveExperiment& experiment) {
  check(experiment);
  Trial empty;
  empty.error_energy.resize(static_cast<std::size_t>(experiment.ranks));
  empty.peak_error.resize(empty.error_energy.size());
  std::vector<Trial> trials(experiment.trials, empty);
  Shared shared;
  shared.inputs.resize(static_cast<std::size_t>(experiment.ranks));
  shared.exact.resize(experiment.elements);
  ClassStatistics counted;
  CollectiveExperimentResult result;
  run_ranks(experiment.ranks, experiment.timeout,
            [&](Communicator& inner) { run_trials(experiment, inner, shared, trials, counted, result.time); });

  simulate_losses(experiment, result);
  if (experiment.ranks <= kMostRanksThatCollect) {
    DROPTEST_CHECK(result.statistics.digest == counted.digest, "the ranks had other fates than the simulation");
    result.statistics = counted;
  }
  std::vector<double> errors;
  std::vector<double> energies;
  std::vector<double> peaks;
  std::vector<double> seconds;
  for (const Trial& trial : trials) {
    double error = 0;
    for (const double e : trial.error_energy) error += e;
    errors.push_back(error);
    energies.push_back(trial.exact_energy * experiment.ranks);
    const double exact_rms = std::sqrt(trial.exact_energy / static_cast<double>(experiment.elements));
    double peak_error = 0;
    for (const double of_rank : trial.peak_error) peak_error = larger_or_nan(peak_error, of_rank);
    peaks.push_back(peak_error / exact_rms);
    seconds.push_back(trial.seconds);
    result.nmse_by_trial.push_back(errors.back() / energies.back());
  }
  result.nmse = ratio_of(errors, energies, result.nmse.expected);
  result.peak_error = mean_of(peaks, std::nullopt);
  if (experiment.time) result.seconds = mean_of(seconds, expected_seconds(experiment));
  return result;
}

CollectiveExperimentResult simulate_collective_experiment(const CollectiveExperiment& experiment) {
  check(experiment);
  CollectiveExperimentResult result;
  simulate_losses(experiment, result);
  if (experiment.time) {
    SimulatedTime times = simulate_time(simulation_of(experiment, experiment.network), *experiment.time);
    result.seconds = mean_of(times.seconds, expected_seconds(experiment));
    result.time = times.total;
  }
  for (Estimate* unknown : {&result.nmse, &result.peak_error}) {
    unknown->measured = std::numeric_limits<double>::quiet_NaN();
    unknown->standard_error = std::numeric_limits<double>::quiet_NaN();
  }
  return result;
}

}  // namespace droptest::comm
