// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/timed_programs.h"

#include <memory>
#include <optional>

#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/timed_gilbert_elliott.h"
#include "tests/comm/timed_network.h"

namespace droptest::comm {

TimedOutcome run_timed_programs(Communicator& inner, const LossyOptions& options, Calls calls, std::uint64_t first,
                                std::uint64_t end) {
  LossyCommunicator lossy(inner, options);
  const ProgramGroups groups(lossy);
  TimedOutcome outcome;
  std::uint64_t step = 0;
  for (std::uint64_t number = first; number < end; ++number) {
    std::optional<LossyCommunicator::ProtectedScope> scope;
    const auto before = [&](std::uint64_t call) {
      scope.reset();
      if ((number + call) % 3 == 0) lossy.begin_step(step++);
      if ((number + call) % 7 == 0) scope.emplace(lossy);
      lossy.pass_compute_share(1e-6 * static_cast<double>((number + 3 * call) % 50));
    };
    const auto bytes = run_program_with_common_waits(groups, number, kTimedClass, calls, before);
    outcome.bytes.insert(outcome.bytes.end(), bytes.begin(), bytes.end());
  }
  lossy.verify_fates();
  const ClassStatistics statistics = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit).at(0);
  outcome.digest = statistics.digest;
  outcome.packets = statistics.total().packets;
  outcome.lost = statistics.total().lost_packets;
  outcome.residual = statistics.total().residual_packets;
  outcome.untouched = statistics.untouched;
  for (const LayerStatistics& layer : statistics.layers) outcome.untouched_steps += layer.untouched_steps;
  if (options.time) outcome.seconds = lossy.collect_time()->seconds;
  return outcome;
}

namespace {

LossyOptions lossy_options(std::string_view path, const std::shared_ptr<const sim::LossProcess>& loss) {
  LossyOptions options;
  options.network.seed = 5;
  options.sample_every_steps = 0;
  options.time = computing_model(2e-6);
  ClassNetwork network;
  network.path = path;
  network.payload_bytes = 64;
  network.reduce.loss = network.gather.loss = loss;
  network.gather.fill = Fill::kStale;
  options.network.of(kTimedClass) = network;
  return options;
}

}  // namespace

LossyOptions bursts_with_repetitions(std::string_view path) {
  LossyOptions options = lossy_options(path, std::make_shared<sim::GilbertElliott>(sim::rates_of_burst(0.15, 4)));
  apply_recovery(*options.network.of(kTimedClass), protocol("selective_repeat", 1));
  return options;
}

LossyOptions episodes(std::string_view path) {
  return lossy_options(path,
                       std::make_shared<sim::TimedGilbertElliott>(sim::TimedRates{80, 20, 0.064, 0, 0.01, 0.8, 0.5}));
}

}  // namespace droptest::comm
