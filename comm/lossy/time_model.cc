// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/time_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/path_registry.h"
#include "sim/error.h"
#include "sim/packets/packetizer.h"
#include "sim/schedules/hop_schedule.h"

namespace droptest::comm {
namespace {

std::string number_text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", value);
  return text.data();
}

void require(bool holds, const char* name, double got, const char* want) {
  if (!holds) throw ConfigError(std::string("time: ") + name + ": got " + std::to_string(got) + ", want " + want);
}

void validate(const sim::LinkCost& link) {
  require(link.latency_seconds >= 0 && std::isfinite(link.latency_seconds), "latency_seconds", link.latency_seconds,
          "at least 0");
  require(link.bytes_per_second > 0 && std::isfinite(link.bytes_per_second), "bytes_per_second", link.bytes_per_second,
          "a positive number");
}

// Data packets of the largest message of each half, by sim::Half.
std::array<std::uint64_t, 2> largest_messages(const ClassNetwork& network, const AllReduceSize& size) {
  const auto packets = [&](std::uint64_t elements) {
    return sim::Packetizer(elements, size.element_bytes, network.payload_bytes).packets();
  };
  const PathEntry& path = path_entry(network.path);
  if (path.schedule == nullptr) return {packets(size.elements), packets(size.elements)};
  const auto schedule = path.schedule({sim::Collective::kAllReduce, size.ranks, 0, network.group_ranks});
  std::vector<std::uint64_t> begins = {0};
  for (const std::uint64_t count : even_counts(size.elements, schedule->parts())) {
    begins.push_back(begins.back() + count);
  }
  std::array<std::uint64_t, 2> largest = {0, 0};
  for (int round = 0; round < schedule->rounds(); ++round) {
    schedule->for_each_hop(round, [&](const sim::Hop& hop) {
      std::uint64_t& of_half = largest[static_cast<std::size_t>(hop.half)];
      of_half = std::max(of_half, packets(begins[static_cast<std::size_t>(hop.end_part)] -
                                          begins[static_cast<std::size_t>(hop.first_part)]));
    });
  }
  return largest;
}

}  // namespace

std::optional<std::string> endless_repetition(const TimeModel& model, const ClassNetwork& network,
                                              const AllReduceSize& size) {
  if (model.reliable == nullptr || size.ranks < 2) return std::nullopt;
  const std::array<std::uint64_t, 2> packets = largest_messages(network, size);
  for (const sim::Half half : {sim::Half::kReduce, sim::Half::kGather}) {
    const HalfNetwork& of_half = half == sim::Half::kReduce ? network.reduce : network.gather;
    std::vector<const sim::LossProcess*> processes = {of_half.loss.get()};
    for (const LinkOverride& link : of_half.links) processes.push_back(link.loss.get());
    for (const sim::LossProcess* process : processes) {
      if (process == nullptr || !process->can_lose()) continue;
      const double tries = model.reliable->expected_tries(*process, packets[static_cast<std::size_t>(half)]);
      if (tries <= sim::kMostExpectedTries) continue;
      return "takes " + number_text(tries) + " tries on average for messages of up to " +
             std::to_string(packets[static_cast<std::size_t>(half)]) + " packets under " + process->describe() +
             "; want at most " + number_text(sim::kMostExpectedTries) +
             ": a lower loss rate, shorter messages, or a protocol that sends lost packets alone (selective_repeat)";
    }
  }
  return std::nullopt;
}

void validate(const TimeModel& model) {
  validate(model.links.within);
  validate(model.links.between);
  require(model.links.group_ranks >= 0, "group_ranks", model.links.group_ranks, "at least 0");
  require(model.compute_p99_over_p50 >= 1, "compute_p99_over_p50", model.compute_p99_over_p50, "at least 1");
  require(model.transfer_p99_over_p50 >= 1, "transfer_p99_over_p50", model.transfer_p99_over_p50, "at least 1");
  if (model.compute_seconds)
    require(*model.compute_seconds >= 0, "compute_seconds", *model.compute_seconds, "at least 0");
  if (!model.deadline_seconds) return;
  require(*model.deadline_seconds > 0, "deadline_seconds", *model.deadline_seconds, "a positive number");
  if (model.reliable != nullptr) {
    throw ConfigError(
        "time: got a deadline on a reliable network, which waits until everything has arrived; want one of the two");
  }
}

}  // namespace droptest::comm
