// SPDX-License-Identifier: Apache-2.0
// The loss layer of one rank of another program: its flows, its process groups and its counts.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "api/call_rules.h"
#include "api/foreign_memory.h"
#include "api/statistics_place.h"
#include "comm/lossy/fill/reduction_fill.h"
#include "comm/lossy/flows/flow_ledger.h"
#include "comm/lossy/statistics/result_sampler.h"
#include "comm/lossy/statistics/statistics_collection.h"
#include "comm/lossy/statistics/verdict_record.h"
#include "comm/spec/program_network.h"
#include "sim/state_visitor.h"

namespace droptest::api {

/// Calls without loss, and their bytes.
struct ExemptCounts {
  std::uint64_t calls = 0;
  std::uint64_t bytes = 0;
  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, calls, bytes); }
};
using ExemptByReason = std::array<ExemptCounts, kExemptionNames.size()>;

/// The fates of one message.
struct DrawnMessage {
  droptest_message summary{};
  sim::PacketMask missing;  ///< a bit for each data packet; no bits if all arrived
  bool any_missing = false;
  const sim::PacketMask* lost() const { return any_missing ? &missing : nullptr; }
};

}  // namespace droptest::api

/// A link in a network; the network owns it.
struct droptest_flow {
  droptest_network* network;
  droptest::sim::Link link;
  droptest::comm::GroupNumber group;
  droptest::comm::Tally tally;
};

/// The collectives of a class in a process group; the network owns it.
struct droptest_group {
  /// A sum with results that are not scaled yet.
  struct Unfinished {
    droptest::comm::LostContributions lost;
    droptest::sim::Packetizer packets;
    droptest::comm::ElementType type;
  };
  droptest_network* network;
  droptest::sim::TrafficClass traffic_class;
  droptest::comm::GroupIdentity identity;
  std::vector<std::uint16_t> members;
  std::uint64_t sums = 0;                          ///< number of the last sum
  std::map<std::uint64_t, Unfinished> unfinished;  ///< unfinished sums by number
};

/// Thread safety: `mutex` is held in every function except of(), which reads only values that never change.
struct droptest_network {
  droptest_network(droptest::comm::ProgramNetwork program, int rank, int world_size);

  const droptest::comm::ClassNetwork& of(droptest::sim::TrafficClass traffic_class) const {
    return *program.network.of(traffic_class);
  }
  const droptest::comm::HalfNetwork& of(droptest::sim::TrafficClass traffic_class, droptest::sim::Half half) const {
    return half == droptest::sim::Half::kReduce ? of(traffic_class).reduce : of(traffic_class).gather;
  }
  droptest::sim::Packetizer packets(droptest::sim::TrafficClass traffic_class, droptest::comm::ElementType type,
                                    std::uint64_t elements) const {
    return of(traffic_class).packets(type, elements);
  }
  /// The flow of the link; made at the first call. Throws: ArgumentError if an earlier call counts it elsewhere.
  droptest_flow& flow(const droptest::sim::Link& link, droptest::comm::GroupNumber group, droptest::comm::Tally tally);
  droptest_group& group(droptest::sim::TrafficClass traffic_class, droptest::comm::GroupNumber number,
                        std::vector<std::uint16_t> members);
  /// Uses up the packets of the flow's next message.
  droptest::api::DrawnMessage next(const droptest_flow& flow, const droptest::sim::Packetizer& packets);
  /// next() for this rank's message of a collective, which is counted for its group.
  droptest::api::DrawnMessage next_of(droptest_group& group, droptest::sim::Half half,
                                      const droptest::sim::Packetizer& packets);
  /// Uses up and counts the packets of messages with losses that happened elsewhere. Returns the number of lost
  /// packets. Throws: ArgumentError for sizes that no messages have.
  std::uint64_t count_messages(const droptest_flow& flow, std::uint64_t messages, std::uint64_t packets,
                               std::uint64_t bytes);
  /// Draws the other members' contributions if the fill of the reduce half needs them, and keeps the state of the fill
  /// until finish(). Returns the sum's number for finish(); 0: there is no work to do.
  std::uint64_t keep_unfinished(droptest_group& group, droptest::comm::ElementType type,
                                const droptest::sim::Packetizer& packets, const droptest::sim::PacketMask* own);
  void finish(droptest_group& group, std::uint64_t sum, const droptest_memory* memory, void* data,
              std::uint64_t first_element, std::uint64_t elements);
  void set_step(std::uint64_t next_step);
  void count_exempt(droptest::api::Exemption reason, const droptest::api::ProgramCall& call);
  /// The state of droptest_network_save_state(). Throws: ArgumentError while a sum is unfinished.
  std::vector<std::byte> save_state();
  /// Throws: ConfigError for bytes that are not such a state of this network and rank; the network then keeps its own.
  void load_state(std::span<const std::byte> bytes);
  droptest::comm::RankCounts counts() { return {ledger, verdicts, sampler, step}; }

  const int rank;
  const int world_size;
  const pid_t process;  ///< process that made the network
  const droptest::comm::ProgramNetwork program;
  const droptest::api::CallRules rules;  ///< the program's rules
  std::mutex mutex;
  droptest::comm::FlowLedger ledger;
  droptest::comm::VerdictRecord verdicts;
  droptest::comm::ResultSampler sampler;  ///< has no samples
  std::uint64_t step = 0;
  droptest::api::ExemptByReason exempt{};
  droptest::api::ForeignMemory memory;
  std::unique_ptr<droptest::api::StatisticsPlace> statistics;  ///< null for a copy that counts nothing
  std::map<droptest::comm::FlowKey, droptest_flow> flows;
  std::map<std::tuple<droptest::sim::TrafficClass, droptest::comm::GroupNumber>, droptest_group> groups;
};
