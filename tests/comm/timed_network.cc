// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/timed_network.h"

#include <utility>

#include "sim/loss/bernoulli.h"
#include "sim/parameters.h"

namespace droptest::comm {

TimeModel model_of(double compute_seconds) {
  TimeModel model;
  model.links = {kLink, kLink, 0};
  model.compute_seconds = compute_seconds;
  return model;
}

TimeModel computing_model(double seconds_at_begin) {
  TimeModel model = model_of(1);
  model.later_share = 1 - seconds_at_begin;
  return model;
}

LossyOptions options_of(std::string_view path, double p, const TimeModel& model) {
  LossyOptions options;
  options.network.seed = 11;
  ClassNetwork network;
  network.path = path;
  network.payload_bytes = 256;
  apply_loss(network, std::make_shared<sim::Bernoulli>(p));
  options.network.of(kClass) = network;
  options.time = model;
  return options;
}

std::shared_ptr<const sim::Retransmission> protocol(const std::string& name, std::int64_t rounds) {
  sim::Parameters::Members members;
  members.emplace("protocol", sim::Parameters(name, "test"));
  if (rounds > 0) members.emplace("rounds", sim::Parameters(rounds, "test"));
  return sim::make_retransmission(sim::Parameters(std::move(members), "test"));
}

}  // namespace droptest::comm
