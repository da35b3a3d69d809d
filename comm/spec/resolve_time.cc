// SPDX-License-Identifier: Apache-2.0
#include "comm/spec/resolve_time.h"

#include <array>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "comm/json/json_text.h"
#include "comm/spec/parameters_from_json.h"
#include "sim/error.h"
#include "sim/recovery/retransmission.h"
#include "sim/traffic_class.h"

namespace droptest::comm {
namespace {

using nlohmann::json;

constexpr double kSecondsPerMicrosecond = 1e-6;
constexpr double kBytesPerGigabit = 1e9 / 8;

sim::LinkCost link_cost(const json& link) {
  return {link["latency_microseconds"].get<double>() * kSecondsPerMicrosecond,
          link["bandwidth_gbit_per_second"].get<double>() * kBytesPerGigabit};
}

using Report = std::function<void(const std::string& pointer, const std::string& message)>;

const std::array<std::pair<const char*, HalfNetwork ClassNetwork::*>, 2> kHalves = {
    {{"reduce", &ClassNetwork::reduce}, {"gather", &ClassNetwork::gather}}};

// The rules on the clock and the network together.
void check_network(const TimeModel& model, const Network& network, const Report& report) {
  for (const sim::TrafficClass traffic_class : sim::kAllTrafficClasses) {
    const auto& of_class = network.of(traffic_class);
    if (!of_class) continue;
    for (const auto& [name, member] : kHalves) {
      const HalfNetwork& half = (*of_class).*member;
      if (half.recovery == nullptr) continue;
      const std::string links =
          "links of " + std::string(sim::traffic_class_name(traffic_class)) + ", " + name + " half,";
      if (model.deadline_seconds) {
        return report("/time/deadline_microseconds",
                      "got a deadline, but " + links + " have the recovery " + half.recovery->describe() +
                          ", which does not know the late packets; want no deadline, or no recovery on links");
      }
      const bool repeats = half.recovery->sends_again() && !half.recovery->is_reliable();
      const bool independent = half.loss == nullptr || half.loss->is_independent();
      if (repeats && !independent && half.rule().scale == FillRule::Scale::kByRate) {
        return report("/time", "got a clock with the fill inverse_probability, but the loss rate after " +
                                   half.recovery->describe() + " on " + links + " has no closed form under " +
                                   half.loss->describe() +
                                   ", as a repetition may meet the burst that lost the packet; want another fill, or "
                                   "no clock");
      }
    }
  }
}

// Gives the section's protocol to all links; a network with a recovery of its own is a contradiction.
void repeat_losses(Network& network, const std::shared_ptr<const sim::Retransmission>& protocol, const std::string& got,
                   const Report& report) {
  for (const sim::TrafficClass traffic_class : sim::kAllTrafficClasses) {
    auto& of_class = network.of(traffic_class);
    if (!of_class) continue;
    const std::string name(sim::traffic_class_name(traffic_class));
    for (const HalfNetwork* half : {&of_class->reduce, &of_class->gather}) {
      if (half->recovery != nullptr) {
        return report("/time/retransmission", got + ", which sends again on all links, but those of " + name +
                                                  " have the recovery " + half->recovery->describe() +
                                                  " in the network section; want one of the two");
      }
      if (protocol->is_reliable() && can_lose_all(*half)) {
        return report("/time/retransmission",
                      got + ", but " + name +
                          " loses every packet of a link in some step, repeated ones too; want a "
                          "budget of rounds, or loss rates below 1");
      }
    }
    apply_recovery(*of_class, protocol);
  }
}

// The rate of late packets is not known beforehand, so it cannot scale the arrived contributions.
void check_fills(const TimeModel& model, const Network& network, const Report& report) {
  if (!model.deadline_seconds) return;
  for (const sim::TrafficClass traffic_class : sim::kAllTrafficClasses) {
    const auto& of_class = network.of(traffic_class);
    if (!of_class || of_class->reduce.rule().scale != FillRule::Scale::kByRate) continue;
    return report("/time/deadline_microseconds", "got a deadline with the fill inverse_probability of " +
                                                     std::string(sim::traffic_class_name(traffic_class)) + ", which " +
                                                     std::string(kLatenessHasNoRate));
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

ResolvedTime resolve_time(const json& time, Network& network, const std::string& where) {
  ResolvedTime result;
  TimeModel& model = result.model;
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

  if (!model.compute_seconds && keeps_time(network)) {
    report("/time/compute_milliseconds",
           "got \"measured\" with a loss process whose clock is time, so that fates would differ from run to run; want "
           "milliseconds");
  }
  if (!model.compute_seconds && model.deadline_seconds) {
    report("/time/compute_milliseconds",
           "got \"measured\" with /time/deadline_microseconds, so that which packets are late, and with them fates, "
           "would differ from run to run; want milliseconds, or no deadline");
  }
  check_fills(model, network, report);
  const json& retransmission = time["retransmission"];
  const std::string got = "got " + quote_json(retransmission["protocol"]);
  if (retransmission["protocol"] != "none" && model.deadline_seconds) {
    report("/time/deadline_microseconds", "got " + quote_json(time["deadline_microseconds"]) + ", but " +
                                              quote_json(retransmission["protocol"]) +
                                              " sends lost packets again, and does not know the late ones; want no "
                                              "deadline, or the protocol \"none\"");
  } else if (retransmission["protocol"] != "none") {
    try {
      const sim::Parameters protocol = parameters_from_json(retransmission, where + ": /time/retransmission");
      repeat_losses(network, sim::make_retransmission(protocol), got, report);
    } catch (const ConfigError& error) {
      result.errors.emplace_back(error.what());
    }
  }
  if (result.errors.empty()) check_network(model, network, report);
  return result;
}

std::vector<std::string> endless_repetitions(const Network& network, const AllReduceSize& largest, const json& time,
                                             const std::string& where) {
  std::vector<std::string> errors;
  const bool by_time = !time.is_null() && time["retransmission"]["protocol"] != "none";
  const std::string pointer = by_time ? "/time/retransmission" : "/network/recovery/retransmit";
  for (const sim::TrafficClass traffic_class : sim::kAllTrafficClasses) {
    const auto& of_class = network.of(traffic_class);
    if (!of_class) continue;
    const std::optional<std::string> endless = endless_repetition(*of_class, largest);
    if (!endless) continue;
    const std::string got = by_time ? quote_json(time["retransmission"]["protocol"]) : "no budget of rounds";
    errors.push_back(where + ": " + pointer + ": got " + got + ", which in " +
                     std::string(sim::traffic_class_name(traffic_class)) + " " + *endless);
  }
  return errors;
}

}  // namespace droptest::comm
