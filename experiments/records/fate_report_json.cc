// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/fate_report_json.h"

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "comm/json/json_text.h"
#include "sim/traffic_class.h"

namespace droptest::experiments {

nlohmann::ordered_json fate_report_json(const sim::LossProcess& process, std::uint64_t seed, const sim::Link& link,
                                        const sim::FateReport& report) {
  std::array<char, 17> digest{};
  std::snprintf(digest.data(), digest.size(), "%016llx", static_cast<unsigned long long>(report.digest));
  return {{"loss", process.describe()},
          {"seed", seed},
          {"class", sim::traffic_class_name(link.traffic_class)},
          {"half", link.half == sim::Half::kReduce ? "reduce" : "gather"},
          {"source", link.source},
          {"destination", link.destination},
          {"first", report.first_packet},
          {"packets", report.packets},
          {"lost", report.lost},
          {"bursts", report.bursts},
          {"loss_rate", report.configured_rate},
          {"realised_rate", report.realised_rate},
          {"configured_mean_burst_packets", comm::finite_or_null(report.configured_mean_burst_packets)},
          {"mean_burst_packets", report.mean_burst_packets},
          {"z", comm::finite_or_null(report.z)},
          {"digest", digest.data()}};
}

}  // namespace droptest::experiments
