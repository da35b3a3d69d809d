// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/index_space.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "comm/lossy/flows/flow.h"
#include "comm/lossy/paths/path_registry.h"
#include "experiments/spec/pipeline_plan.h"
#include "experiments/spec/run_traffic.h"
#include "models/gpt2/pipeline_traffic.h"

namespace droptest::experiments {
namespace {

using comm::LinkPosition;
using sim::TrafficClass;

/// Upper bounds for every link over the whole run.
struct LinkUse {
  std::uint64_t packets_of_message = 0;  ///< packets of the largest message, with its redundancy
  double messages = 0;                   ///< messages of all groups of a rank
  double to_all = 0;                     ///< messages of a rank to every rank of a group
  double packets = 0;                    ///< packets of all messages
};

/// A rank's part of a planned collective.
void add(LinkUse& use, const comm::ClassNetwork& network, const PlannedCollective& planned, double calls) {
  std::uint64_t of_message = 0;
  const std::uint64_t data = network.packets(comm::ElementType::kFloat32, planned.call.elements).packets();
  for (const comm::HalfNetwork* half : {&network.reduce, &network.gather}) {
    const std::uint64_t packets = half->recovery == nullptr ? data : half->recovery->first_packets(data);
    of_message = std::max(of_message, packets);
  }
  use.packets_of_message = std::max(use.packets_of_message, of_message);
  const auto packets = static_cast<double>(of_message);
  if (planned.is_message()) {  // from rank to rank, on every path
    use.messages += calls;
    use.packets += calls * packets;
    return;
  }
  const auto ranks = static_cast<double>(planned.call.ranks);
  const comm::PathEntry& path = comm::path_in(network, planned.call.elements);
  const comm::CallShape shape{comm::operation_of(planned.call.collective), comm::ElementType::kFloat32,
                              planned.call.elements, planned.call.counts};
  const auto collectives = static_cast<double>(comm::sub_calls_of(network, path, shape, planned.call.ranks).size());
  const bool sends_to_all = path.route == comm::Route::kAggregated || network.consistency == comm::Consistency::kShared;
  if (sends_to_all) use.to_all += collectives * calls;
  // In each half, a link carries every element at most once, in at most one message for each rank.
  use.messages += ranks * calls;
  use.packets += collectives * calls * (packets + ranks);
}

/// The maximum of each number over all ranks.
LinkUse use_of(const RunConfig& config, const DryRun& run, TrafficClass of, const comm::ClassNetwork& network) {
  LinkUse most;
  for (const RankKind& kind : run.kinds()) {
    LinkUse use;
    for (auto share = kind.shares.lower_bound({of, 0}); share != kind.shares.end() && share->first.first == of;
         ++share) {
      const PlannedCollective& planned = run.of(of)[share->first.second];
      add(use, network, planned, static_cast<double>(times_in_run(config, planned, share->second.counts)));
    }
    most.packets_of_message = std::max(most.packets_of_message, use.packets_of_message);
    most.messages = std::max(most.messages, use.messages);
    most.to_all = std::max(most.to_all, use.to_all);
    most.packets = std::max(most.packets, use.packets);
  }
  return most;
}

std::string count(double number) { return std::to_string(static_cast<std::uint64_t>(std::min(number, 1e18))); }

std::optional<IndexRefusal> of_messages(TrafficClass of, const LinkUse& use) {
  if (use.packets_of_message > LinkPosition::kMostPacketsOfMessage) {
    return IndexRefusal{of, "payload_bytes",
                        "got " + std::to_string(use.packets_of_message) +
                            " packets in a message with burst_scope \"message\", "
                            "want at most " +
                            std::to_string(LinkPosition::kMostPacketsOfMessage)};
  }
  const bool is_of_all = use.to_all > static_cast<double>(LinkPosition::kMostMessagesToAll);
  if (!is_of_all && use.messages <= static_cast<double>(LinkPosition::kMostMessages)) return std::nullopt;
  return IndexRefusal{of, "burst_scope",
                      "got \"message\" with up to " + count(is_of_all ? use.to_all : use.messages) + " messages of " +
                          std::string(sim::traffic_class_name(of)) + " on a link" +
                          (is_of_all ? " to every rank of a group" : "") + " in the whole run, want at most " +
                          std::to_string(is_of_all ? LinkPosition::kMostMessagesToAll : LinkPosition::kMostMessages) +
                          ", or \"link\""};
}

std::optional<IndexRefusal> of_link(TrafficClass of, const LinkUse& use) {
  const double packets = use.packets;
  if (packets <= static_cast<double>(LinkPosition::kMostPackets)) return std::nullopt;
  return IndexRefusal{of, "payload_bytes",
                      "got up to " + count(packets) + " packets on a link in the whole run, want at most " +
                          std::to_string(LinkPosition::kMostPackets)};
}

/// Messages between stages have numbers, from which their places on links follow (models/gpt2/pipeline_traffic.h).
std::optional<IndexRefusal> of_stages(const RunConfig& config, TrafficClass of, const comm::ClassNetwork& network,
                                      const LinkUse& use) {
  // A link carries at most one message of a micro-batch for each stage that its source has.
  const std::uint64_t stages = pipeline_plan(config)->stages.size();
  const auto ranks = static_cast<std::uint64_t>(config.parallel.pipeline);
  const std::uint64_t of_step =
      static_cast<std::uint64_t>(config.training.accumulation) * ((stages + ranks - 1) / ranks);
  if (config.training.steps > models::PipelineTraffic::kMostTrainingOrdinals / of_step) {
    return IndexRefusal{
        of, "",
        "got " + std::to_string(config.training.steps) + " steps with up to " + std::to_string(of_step) +
            " messages of " + std::string(sim::traffic_class_name(of)) + " on a link in each, want at most " +
            std::to_string(models::PipelineTraffic::kMostTrainingOrdinals) + " messages in the whole run"};
  }
  if (network.burst_scope == comm::BurstScope::kMessage) return std::nullopt;
  constexpr std::uint64_t kMost = (LinkPosition::kMostPackets + 1) / models::PipelineTraffic::kMostOrdinals - 1;
  const std::uint64_t packets = use.packets_of_message;
  if (packets <= kMost) return std::nullopt;
  const std::uint64_t bytes = packets * network.payload_bytes;
  return IndexRefusal{of, "payload_bytes",
                      "got " + std::to_string(network.payload_bytes) + ", so " + std::to_string(packets) +
                          " packets in a message between stages, want at most " + std::to_string(kMost) +
                          " packets: " + std::to_string((bytes / kMost + 8) / 8 * 8) + " bytes or more"};
}

}  // namespace

std::vector<IndexRefusal> index_refusals(const RunConfig& config, const DryRun& run) {
  std::vector<IndexRefusal> refusals;
  for (const TrafficClass of : sim::kAllTrafficClasses) {
    const auto& network = config.network.of(of);
    if (!network || run.of(of).empty()) continue;
    const LinkUse use = use_of(config, run, of, *network);
    const bool has_ordinals = sim::traffic_class_entry(of).is_between_stages;
    std::optional<IndexRefusal> refusal;
    if (network->burst_scope == comm::BurstScope::kMessage) {
      refusal = of_messages(of, use);
    } else if (!has_ordinals) {
      refusal = of_link(of, use);
    }
    if (!refusal && has_ordinals) refusal = of_stages(config, of, *network, use);
    if (refusal) refusals.push_back(*std::move(refusal));
  }
  return refusals;
}

}  // namespace droptest::experiments
