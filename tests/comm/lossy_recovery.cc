// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/lossy_recovery.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>

#include "comm/run_ranks.h"
#include "sim/loss/bernoulli.h"

namespace droptest::comm {

std::shared_ptr<const sim::LossProcess> bernoulli(double p) { return std::make_shared<sim::Bernoulli>(p); }

ClassNetwork recovery_network(std::string_view path, double p_reduce, double p_gather) {
  ClassNetwork network;
  network.path = path;
  network.payload_bytes = 64;
  network.reduce.loss = bernoulli(p_reduce);
  network.gather.loss = bernoulli(p_gather);
  return network;
}

LossyOptions recovery_options(const ClassNetwork& network) {
  LossyOptions options;
  options.network.seed = 4711;
  options.network.of(kRecoveryClass) = network;
  return options;
}

ClassStatistics run_lossy(int ranks, const ClassNetwork& network,
                          const std::function<void(LossyCommunicator&, Communicator&)>& body) {
  ClassStatistics statistics;
  run_ranks(ranks, kRecoveryTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, recovery_options(network));
    body(lossy, inner);
    lossy.verify_fates();
    const auto collected = lossy.collect_statistics(LossyCommunicator::LinkDetail::kOmit);
    if (inner.rank() == 0 && !collected.empty()) statistics = collected[0];
  });
  return statistics;
}

Floats recovery_values(int call, int rank, std::size_t count) {
  Floats result(count);
  for (std::size_t i = 0; i < count; ++i) {
    result[i] = std::sin(static_cast<float>(i) * 0.7F + static_cast<float>(rank) * 1.3F + static_cast<float>(call));
  }
  return result;
}

Floats all_reduce(Communicator& group, Floats data, const Message& message) {
  group.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, message);
  return data;
}

Damage damage_of(const ClassNetwork& network, std::size_t elems) {
  Damage damage;
  run_lossy(2, network, [&](LossyCommunicator& lossy, Communicator& inner) {
    const Floats input = recovery_values(1, inner.rank(), elems);
    const Floats want = all_reduce(inner, input, {sim::TrafficClass::kControl, "exact", -1});
    const Floats got = all_reduce(lossy, input);
    if (inner.rank() != 0) return;
    for (std::size_t i = 0; i < elems; ++i) {
      const double error = std::abs(static_cast<double>(got[i]) - want[i]);
      damage.energy += error * error;
      damage.worst = std::max(damage.worst, error);
      damage.wrong += error > 1e-5 ? 1 : 0;
    }
  });
  return damage;
}

}  // namespace droptest::comm
