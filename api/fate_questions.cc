// SPDX-License-Identifier: Apache-2.0
#include "api/fate_questions.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "api/argument_error.h"
#include "comm/lossy/link_overrides.h"
#include "comm/tensor.h"
#include "experiments/records/fate_report_json.h"
#include "sim/error.h"
#include "sim/loss/fate_digest.h"
#include "sim/loss/no_loss.h"

namespace droptest::api {
namespace {

const comm::HalfNetwork& half_of(const droptest_flow& flow) {
  return flow.network->of(flow.link.traffic_class, flow.link.half);
}

// The process of the flow for all steps.
const sim::LossProcess& process_of(const droptest_flow& flow) {
  static const sim::NoLoss kNoLoss;
  const comm::HalfNetwork& half = half_of(flow);
  const sim::LossProcess* process = comm::loss_of_link(half.links, flow.link, half.loss.get());
  return process == nullptr ? kNoLoss : *process;
}

std::uint64_t seed_of(const droptest_flow& flow) { return flow.network->program.network.seed; }

std::string hex(std::uint64_t value) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

// Indices have the group's number in their upper bits (docs/paths.md). Throws: ArgumentError for another group's index.
std::uint64_t index_of_group(const droptest_flow& flow, std::uint64_t index) {
  const auto first_of = [&](comm::GroupNumber group) {
    const comm::BurstScope scope = flow.network->of(flow.link.traffic_class).burst_scope;
    return comm::LinkPosition{}.place({flow.link, group}, 0, scope, std::nullopt).first_packet;
  };
  const std::uint64_t indices = first_of(1);  // indices of each group
  const comm::GroupNumber group = comm::key_of(flow.link, flow.group).group;
  if (index < indices) return first_of(group) + index;
  if (index / indices == group) return index;
  throw ArgumentError("first_packet: got " + std::to_string(index) + ", an index of group " +
                      std::to_string(index / indices) + ", want one of group " + std::to_string(group));
}

void check_packets(std::uint64_t packets) {
  if (packets > sim::kMostReportedPackets) {
    throw ArgumentError("packets: got " + std::to_string(packets) + ", want at most " +
                        std::to_string(sim::kMostReportedPackets));
  }
}

}  // namespace

sim::FateReport fates_of(const droptest_flow& flow, std::uint64_t first_packet, std::uint64_t packets) {
  check_packets(packets);
  if (first_packet > ~std::uint64_t{0} - packets) {
    throw ArgumentError("first_packet: got " + std::to_string(first_packet) + " for " + std::to_string(packets) +
                        " packets, want indices below 2^64");
  }
  first_packet = index_of_group(flow, first_packet);
  return sim::report_fates(process_of(flow).at_step(flow.network->step), seed_of(flow), flow.link,
                           {first_packet, 0, 0, std::nullopt}, packets);
}

std::string report_of(const droptest_flow& flow, std::uint64_t first_packet, std::uint64_t packets) {
  const sim::FateReport report = fates_of(flow, first_packet, packets);
  const sim::LossProcess& process = process_of(flow).at_step(flow.network->step);
  return experiments::fate_report_json(process, seed_of(flow), flow.link, report).dump();
}

void verify(const droptest_flow& flow, std::uint64_t packets, std::uint64_t digest) {
  const comm::ClassNetwork& network = flow.network->of(flow.link.traffic_class);
  const sim::LossProcess& process = process_of(flow);
  const bool by_index = half_of(flow).recovery == nullptr && network.recovery.protect.empty() &&
                        network.burst_scope == comm::BurstScope::kLink && &process.at_step(0) == &process &&
                        !process.counts_by_message();
  if (!by_index) {
    throw ArgumentError("flow: " + comm::name_of(flow.link) + ": got a network where the digest depends on more than " +
                        "packet indices, want one without recovery, with burst_scope link and one process by index");
  }
  check_packets(packets);
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20;
  const std::uint64_t begin = comm::LinkPosition{}
                                  .place(comm::key_of(flow.link, flow.group), 0, network.burst_scope, std::nullopt)
                                  .first_packet;
  sim::FateDigest drawn(flow.link);
  sim::PacketMask lost;
  for (std::uint64_t done = 0; done < packets && process.can_lose(); done += lost.size()) {
    lost.resize(std::min(kPiece, packets - done));
    process.draw(seed_of(flow), flow.link, begin + done, lost);
    drawn.add(begin + done, lost);
  }
  if (drawn.value() == digest) return;
  throw MismatchError(comm::name_of(flow.link) + ": got the digest " + hex(digest) + " of " + std::to_string(packets) +
                      " packets, want " + hex(drawn.value()) +
                      "; the ranks have different networks, seeds or orders of messages");
}

droptest_law law_of(const droptest_flow& flow) {
  const comm::ClassNetwork& network = flow.network->of(flow.link.traffic_class);
  const comm::HalfNetwork& half = half_of(flow);
  const auto refuse = [&](bool wrong, const std::string& member, const std::string& got, const std::string& want) {
    if (!wrong) return;
    throw ConfigError("/network: class " + std::string(sim::traffic_class_name(flow.link.traffic_class)) + ": " +
                      member + ": got " + got + " where a device draws fates, want " + want);
  };
  const sim::LossProcess& process = process_of(flow);
  const std::optional<sim::ChainThresholds> chain = process.thresholds();
  refuse(!chain, "loss", process.describe(), "none, bernoulli or gilbert_elliott");
  refuse(half.recovery != nullptr || !network.recovery.protect.empty(), "recovery", "one", "none");
  refuse(half.rule() != comm::FillRule{}, "fill", std::string(comm::fill_entry(half.fill).name), "zero");
  refuse(network.burst_scope != comm::BurstScope::kLink, "burst_scope", "message", "link");
  refuse(flow.link.half == sim::Half::kReduce && comm::can_lose(network.gather), "gather/loss",
         "losses of the results of sums", "none");
  const auto place =
      comm::LinkPosition{}.place(comm::key_of(flow.link, flow.group), 0, network.burst_scope, std::nullopt);
  return {seed_of(flow),  place.first_packet,  network.payload_bytes, chain->to_bad,
          chain->to_good, chain->lost_in_good, chain->lost_in_bad,    chain->middle_swaps ? 1 : 0};
}

droptest_counts counts_of(const droptest_flow& flow) {
  const auto& flows = flow.network->ledger.flows();
  const auto found = flows.find(comm::key_of(flow.link, flow.group));
  if (found == flows.end() || found->second.tally == nullptr) return {};
  const comm::LossCounts counts = found->second.loss_counts();
  return {counts.messages,   counts.packets,           counts.bytes, counts.lost_packets,
          counts.lost_bytes, counts.configured_rate(), counts.z(),   found->second.tally->digest()};
}

bool has_no_loss_layer(const droptest_group& group, droptest_reduction reduction) {
  return reduction == DROPTEST_MAX && group.network->of(group.traffic_class).reduce.rule() != comm::FillRule{};
}

void check_sum(const droptest_group& group, droptest_reduction reduction, comm::ElementType type, bool finishes) {
  const comm::ClassNetwork& network = group.network->of(group.traffic_class);
  const std::string where = "class " + std::string(sim::traffic_class_name(group.traffic_class)) + ": ";
  if (comm::can_lose(network.gather)) {
    throw ArgumentError(where + "got a sum, but /network/gather/loss loses results, which only a communicator of " +
                        "droptest's own does; want no loss in the gather half of this class");
  }
  comm::Message message;
  message.traffic_class = group.traffic_class;
  message.name = "sum";
  comm::check_reduction(network.reduce.fill, reduction == DROPTEST_MAX ? comm::ReduceOp::kMax : comm::ReduceOp::kSum,
                        type, message);
  if (!finishes && network.reduce.rule() != comm::FillRule{}) {
    throw ArgumentError(where + "got a caller that does not scale results, want the fill zero");
  }
}

}  // namespace droptest::api
