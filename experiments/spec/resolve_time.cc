// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/resolve_time.h"

#include <functional>
#include <string>

#include "experiments/spec/json_text.h"
#include "experiments/spec/parameters_from_json.h"
#include "sim/error.h"
#include "sim/time/retransmission.h"
#include "sim/traffic_class.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

constexpr double kSecondsPerMicrosecond = 1e-6;
constexpr double kBytesPerGigabit = 1e9 / 8;

sim::LinkCost link_cost(const json& link) {
  return {link["latency_microseconds"].get<double>() * kSecondsPerMicrosecond,
          link["bandwidth_gbit_per_second"].get<double>() * kBytesPerGigabit};
}

using Report = std::function<void(const std::string& pointer, const std::string& message)>;

// The clock knows what a link sends at first, parity packets too, and repetitions of its own protocols.
void check_recovery(const comm::TimeModel& model, const comm::Network& network, const Report& report) {
  for (const sim::TrafficClass traffic_class : sim::kAllTrafficClasses) {
    const auto& of_class = network.of(traffic_class);
    if (!of_class) continue;
    for (const comm::HalfNetwork* half : {&of_class->reduce, &of_class->gather}) {
      if (half->recovery == nullptr) continue;
      const std::string got = "got a clock, but links of " + std::string(sim::traffic_class_name(traffic_class)) +
                              " have the recovery " + half->recovery->describe();
      if (half->recovery->sends_again()) {
        return report("/time", got +
                                   ", whose repetitions it does not count; want parity alone in recovery, or a "
                                   "protocol in /time/retransmission, which repeats until all has arrived");
      }
      if (model.reliable != nullptr) {
        return report("/time/retransmission",
                      got + ", and a protocol that repeats whatever is lost; want one of the two");
      }
      if (model.deadline_seconds) {
        return report("/time/deadline_microseconds",
                      got + ", which does not know what is late; want no deadline, or no recovery on links");
      }
    }
  }
}

}  // namespace

sim::LinkClasses link_classes(const json& time) {
  sim::LinkClasses links;
  links.within = links.between = link_cost(time["link"]);
  if (!time.contains("groups")) return links;
  links.group_ranks = time["groups"]["ranks"].get<int>();
  links.within = link_cost(time["groups"]["link"]);
  return links;
}

ResolvedTime resolve_time(const json& time, const comm::Network& network, const comm::AllReduceSize& largest,
                          const std::string& where) {
  ResolvedTime result;
  comm::TimeModel& model = result.model;
  const auto report = [&](const std::string& pointer, const std::string& message) {
    result.errors.push_back(where + ": " + pointer + ": " + message);
  };
  model.links = link_classes(time);
  model.header_bytes = time["header_bytes"].get<std::uint64_t>();
  const json& compute = time["compute_milliseconds"];
  if (compute.is_number()) model.compute_seconds = compute.get<double>() * 1e-3;
  model.compute_p99_over_p50 = time["stragglers"]["compute_p99_over_p50"].get<double>();
  model.transfer_p99_over_p50 = time["stragglers"]["transfer_p99_over_p50"].get<double>();
  if (time.contains("deadline_microseconds")) {
    model.deadline_seconds = time["deadline_microseconds"].get<double>() * kSecondsPerMicrosecond;
  }

  if (!model.compute_seconds && comm::keeps_time(network)) {
    report(
        "/time/compute_milliseconds",
        "got \"measured\" beside a loss process whose clock is time, so that fates would differ from run to run; want "
        "milliseconds");
  }
  const json& retransmission = time["retransmission"];
  if (retransmission["protocol"] == "none") {
    check_recovery(model, network, report);
    return result;
  }
  try {
    model.reliable = sim::make_retransmission(parameters_from_json(retransmission, where + ": /time/retransmission"));
  } catch (const ConfigError& error) {
    result.errors.emplace_back(error.what());
  }
  if (model.deadline_seconds) {
    report("/time/deadline_microseconds",
           "got " + quote_json(time["deadline_microseconds"]) + ", but " + quote_json(retransmission["protocol"]) +
               " repeats what is lost until all has arrived; want no deadline, or the protocol \"none\"");
  }
  for (const sim::TrafficClass traffic_class : sim::kAllTrafficClasses) {
    const auto& of_class = network.of(traffic_class);
    if (!of_class) continue;
    const std::string got = "got " + quote_json(retransmission["protocol"]) + ", ";
    const std::string name(sim::traffic_class_name(traffic_class));
    if (comm::can_lose_all(of_class->reduce) || comm::can_lose_all(of_class->gather)) {
      report("/time/retransmission", got + "but " + name +
                                         " loses every packet of a link in some step, repeated ones too; want loss "
                                         "rates below 1");
    } else if (const auto endless = comm::endless_repetition(model, *of_class, largest)) {
      report("/time/retransmission", got + "which in " + name + " " + *endless);
    }
  }
  check_recovery(model, network, report);
  return result;
}

}  // namespace droptest::experiments
