// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/loss_statistics_record.h"

#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/json/json_text.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::finite_or_null;
using nlohmann::json;

constexpr int kSchemaVersion = 1;

std::string hex16(std::uint64_t value) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = text.size(); i-- > 0; value >>= 4U) text[i] = kDigits[value & 15U];
  return text;
}

double burst_share(const comm::HalfNetwork& half, std::uint64_t length) {
  if (!comm::has_one_process(half)) return std::numeric_limits<double>::quiet_NaN();
  return half.loss ? half.loss->burst_at_least(length) - half.loss->burst_at_least(length + 1) : 0;
}

std::string loss_text(const comm::HalfNetwork& half) {
  const std::string loss = half.loss ? half.loss->describe() : "none";
  return half.links.empty() ? loss : loss + ", with " + std::to_string(half.links.size()) + " overrides of links";
}

json counts_json(const comm::LossCounts& counts) {
  return {{"messages", counts.messages},
          {"packets", counts.packets},
          {"bytes", counts.bytes},
          {"lost", counts.lost_packets},
          {"lost_bytes", counts.lost_bytes},
          {"configured_rate", finite_or_null(counts.configured_rate())},
          {"realised_rate", finite_or_null(counts.realised_rate())},
          {"z", finite_or_null(counts.z())},
          {"mean_burst_packets", finite_or_null(counts.mean_burst_packets())}};
}

/// Each length that occurred, with the number that theory expects among as many bursts: P(length = n) is
/// P(length >= n) - P(length >= n + 1).
json burst_histogram(const comm::LossCounts& counts, const comm::HalfNetwork& half) {
  double bursts = 0;
  for (const auto& [length, count] : counts.bursts) bursts += static_cast<double>(count);
  json histogram = json::array();
  for (const auto& [length, count] : counts.bursts) {
    const double share = burst_share(half, length);
    histogram.push_back({{"length", length}, {"count", count}, {"expected", finite_or_null(bursts * share)}});
  }
  return histogram;
}

json half_json(const comm::LossCounts& counts, const comm::HalfNetwork& half) {
  json out = counts_json(counts);
  out["configured_mean_burst_packets"] = finite_or_null(mean_burst_packets(half));
  out["loss"] = loss_text(half);
  out["fill"] = comm::fill_entry(half.fill).name;
  if (half.recovery != nullptr) {
    out["recovery"] = {{"policy", half.recovery->describe()}, {"repaired", counts.repaired_packets},
                       {"residual", counts.residual_packets}, {"residual_bytes", counts.residual_bytes},
                       {"resent", counts.resent_packets},     {"resend_rounds", counts.resend_rounds}};
  }
  out["burst_histogram"] = burst_histogram(counts, half);
  return out;
}

/// Mean burst over both halves in theory: a half has expected_lost / mean burst bursts.
double configured_mean_burst(const comm::ClassStatistics& statistics, const comm::ClassNetwork& network) {
  double lost = 0;
  double bursts = 0;
  for (std::size_t half = 0; half < kHalfNames.size(); ++half) {
    const double expected = statistics.halves[half].expected_lost;
    const double mean = mean_burst_packets(half_of(network, half));
    if (expected <= 0 || mean <= 0) continue;
    lost += expected;
    bursts += expected / mean;
  }
  return lost > 0 ? lost / bursts : 0;
}

json class_json(const comm::ClassStatistics& statistics, const comm::ClassNetwork& network) {
  json out = counts_json(statistics.total());
  out["configured_mean_burst_packets"] = finite_or_null(configured_mean_burst(statistics, network));
  out["collectives"] = statistics.collectives;
  out["untouched_share"] = finite_or_null(statistics.untouched_share());
  out["sampled_calls"] = statistics.sampled_calls;
  out["nmse"] = finite_or_null(statistics.nmse());
  out["cosine"] = finite_or_null(statistics.cosine());
  out["divergence_max"] = finite_or_null(statistics.divergence_max);
  out["divergence_rms"] = finite_or_null(statistics.divergence_rms);
  out["digest"] = hex16(statistics.digest);
  out["path"] = network.path;
  if (network.compression.kind != comm::CompressionKind::kNone) {
    const comm::LossCounts total = statistics.total();
    const comm::CodingErrors& coding = statistics.coding;
    const auto bytes = static_cast<double>(total.bytes);
    out["compression"] = {
        {"kind", comm::compression_entry(network.compression.kind).name},
        {"bytes", total.bytes},
        {"content_bytes", total.content_bytes},
        {"ratio", bytes > 0 ? json(static_cast<double>(total.content_bytes) / bytes) : json(nullptr)},
        {"nmse", coding.energy > 0 ? finite_or_null(coding.error_energy / coding.energy) : json(nullptr)},
        {"dropped_pairs", coding.dropped_pairs}};
    if (network.recovery.keeps_states()) {
      const comm::EndErrors& ends = statistics.ends;
      out["compression"]["ends_nmse"] =
          ends.energy > 0 ? finite_or_null(ends.error_energy / ends.energy) : json(nullptr);
    }
  }
  for (const comm::SizedPath& small : network.sized_paths) {
    out["sized_paths"].push_back({{"up_to_elements", small.up_to_elems}, {"path", small.path}});
  }
  for (std::size_t half = 0; half < kHalfNames.size(); ++half) {
    out["halves"][kHalfNames[half]] = half_json(statistics.halves[half], half_of(network, half));
  }
  return out;
}

json link_json(const comm::LinkStatistics& link) {
  const bool everyone = link.link.destination == sim::Link::kEveryDestination;
  return {{"class", sim::traffic_class_name(link.link.traffic_class)},
          {"half", kHalfNames.at(static_cast<std::size_t>(link.link.half))},
          {"source", link.link.source},
          {"destination", everyone ? json(nullptr) : json(link.link.destination)},
          {"packets", link.counts.packets},
          {"lost", link.counts.lost_packets},
          {"realised_rate", finite_or_null(link.counts.realised_rate())},
          {"z", finite_or_null(link.counts.z())},
          {"mean_burst_packets", finite_or_null(link.counts.mean_burst_packets())},
          {"digest", hex16(link.digest)}};
}

}  // namespace

const comm::HalfNetwork& half_of(const comm::ClassNetwork& network, std::size_t half) {
  return half == static_cast<std::size_t>(sim::Half::kReduce) ? network.reduce : network.gather;
}

double mean_burst_packets(const comm::HalfNetwork& half) {
  if (!comm::has_one_process(half)) return std::numeric_limits<double>::quiet_NaN();
  return half.loss ? half.loss->mean_burst_packets() : 0;
}

json loss_statistics_json(const std::vector<comm::ClassStatistics>& statistics, const comm::Network& network) {
  json out = {{"schema_version", kSchemaVersion}, {"classes", json::object()}};
  for (const comm::ClassStatistics& one : statistics) {
    const std::string name(sim::traffic_class_name(one.traffic_class));
    const sim::Boxed<comm::ClassNetwork>& configured = network.of(one.traffic_class);
    DROPTEST_CHECK(configured.has_value(), "statistics of " + name + ", which has no network");
    out["classes"][name] = class_json(one, *configured);
    for (const comm::LinkStatistics& link : one.links) out["links"].push_back(link_json(link));
  }
  return out;
}

}  // namespace droptest::experiments
