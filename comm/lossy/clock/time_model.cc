// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/clock/time_model.h"

#include <cmath>
#include <string>
#include <string_view>

#include "comm/lossy/paths/path_registry.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

void require(bool holds, const char* name, double got, const char* want) {
  if (!holds) throw ConfigError(std::string("time: ") + name + ": got " + std::to_string(got) + ", want " + want);
}

void validate(const sim::LinkCost& link) {
  require(link.latency_seconds >= 0 && std::isfinite(link.latency_seconds), "latency_seconds", link.latency_seconds,
          "at least 0");
  require(link.bytes_per_second > 0 && std::isfinite(link.bytes_per_second), "bytes_per_second", link.bytes_per_second,
          "a positive number");
}

}  // namespace

std::optional<std::string> quorum_refusal(const ClassNetwork& network, const TimeModel* model) {
  if (!network.quorum) return std::nullopt;
  const std::string got = "got a quorum of " + std::to_string(network.quorum->ranks) + " messages ";
  if (model == nullptr) return got + "without a clock, so that no message has a time; want a section time";
  if (!model->compute_seconds) {
    return got +
           "with measured compute time, so that late messages would differ from run to run; want "
           "compute_milliseconds";
  }
  if (model->deadline_seconds) return got + "with a deadline, which also ends the wait; want one of the two";
  const auto aggregates = [](std::string_view path) { return path_entry(path).route == Route::kAggregated; };
  bool all_aggregate = aggregates(network.path);
  for (const SizedPath& small : network.sized_paths) all_aggregate = all_aggregate && aggregates(small.path);
  if (!all_aggregate || network.compression.kind != CompressionKind::kNone) {
    return got + "without one place where all contributions arrive; want the path contribution without compression";
  }
  if (network.reduce.recovery != nullptr) {
    return got + "with the recovery " + network.reduce.recovery->describe() +
           ", which does not know the late messages; want no recovery on links of the reduce half";
  }
  if (network.reduce.rule().scale == FillRule::Scale::kByRate) {
    return got + "with the fill inverse_probability, which " + std::string(kLatenessHasNoRate);
  }
  const Quorum& quorum = *network.quorum;
  if (quorum.ranks < 1) return "got a quorum of " + std::to_string(quorum.ranks) + " messages, want at least 1";
  if (!(quorum.grace_seconds >= 0 && std::isfinite(quorum.grace_seconds))) {
    return got + "and a grace of " + std::to_string(quorum.grace_seconds) + " s, want at least 0 s";
  }
  return std::nullopt;
}

void validate(const TimeModel& model, const Network& network) {
  validate(model.links.within);
  validate(model.links.between);
  require(model.links.group_ranks >= 0, "group_ranks", model.links.group_ranks, "at least 0");
  require(model.compute_p99_over_p50 >= 1, "compute_p99_over_p50", model.compute_p99_over_p50, "at least 1");
  require(model.transfer_p99_over_p50 >= 1, "transfer_p99_over_p50", model.transfer_p99_over_p50, "at least 1");
  if (model.compute_seconds)
    require(*model.compute_seconds >= 0, "compute_seconds", *model.compute_seconds, "at least 0");
  require(model.later_share >= 0 && model.later_share <= 1, "later_share", model.later_share, "from 0 to 1");
  for (const auto& of_class : network.classes) {
    if (!of_class) continue;
    if (const auto refusal = quorum_refusal(*of_class, &model)) throw ConfigError("quorum: " + *refusal);
  }
  if (!model.deadline_seconds) return;
  require(*model.deadline_seconds > 0, "deadline_seconds", *model.deadline_seconds, "a positive number");
  if (!model.compute_seconds) {
    throw ConfigError(
        "time: got a deadline with measured compute time, so that fates would differ from run to run; want "
        "compute_seconds");
  }
  for (const auto& of_class : network.classes) {
    if (!of_class) continue;
    for (const HalfNetwork* half : {&of_class->reduce, &of_class->gather}) {
      if (half->recovery == nullptr) continue;
      throw ConfigError("time: got a deadline with the recovery " + half->recovery->describe() +
                        ", which does not know the late packets; want one of the two");
    }
  }
}

}  // namespace droptest::comm
