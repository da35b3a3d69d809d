// SPDX-License-Identifier: Apache-2.0
// Carries out any schedule of hops: the paths on which partial sums and results travel from rank to rank.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "comm/lossy/fill/contribution_counts.h"
#include "comm/lossy/paths/call_memory.h"
#include "comm/lossy/paths/gather_half.h"
#include "comm/lossy/paths/message_losses.h"
#include "comm/lossy/paths/path.h"
#include "sim/schedules/hop_schedule.h"

namespace droptest::comm {

/// A reduce hop carries the sender's partial sum. If a packet is lost, the receiver continues with its own partial sum,
/// so all contributions in the packet are lost. A gather hop carries the sender's value: a receiver that loses a packet
/// fills its elements by the gather half's fill, and forwards them. A rank works in the output (a reduce-scatter in a
/// buffer of the input's size), so `own` keeps the partial sum that the reduce half left there. A mean is a sum until
/// the owner of a part divides it; for a mean, `own` keeps this rank's contribution.
///
/// count_rescale: the number of contributions travels with each partial sum, and the owner of a part scales it by ranks
/// / contributions. inverse_probability: each arrived partial sum is scaled by 1 / (1 - loss rate of its link), so that
/// every contribution is unbiased. stale: a lost partial sum is replaced by the last one that arrived on this hop at
/// this position.
///
/// An all_to_all is one hop for each pair. Reduction order: the schedule's; at loss 0 the bits are those
/// of the same path without loss, equal on all ranks and backends.
class HopPath final : public Path {
 public:
  explicit HopPath(const PathContext& context);
  /// PathEntry::add_memory.
  static void add_memory(const SizedCall& call, CallMemory& memory);

  void plan(const CallArguments& call, CallFates& fates) override;
  void run(const CallArguments& call, Communicator& inner, Scratch& scratch) override;

 private:
  // One call while it runs.
  struct Run {
    const CallArguments& call;
    Communicator& inner;
    Scratch& scratch;
    Tensor work;               // all elements, as far as this rank has them
    ConstTensor contribution;  // contribution to a mean, if it stands for lost results; else empty
    std::uint64_t sums_received = 0;
    std::size_t messages_received = 0;
  };

  static bool is_one_hop(const CallArguments& call) { return call.operation == Operation::kAllToAll; }
  void plan_memories(const CallArguments& call);
  void carry_out(Run& run);
  using HopsOfRank = void (sim::HopSchedule::*)(int round, int rank, std::vector<sim::Hop>& hops) const;
  void hops_of(int round, HopsOfRank which, std::vector<sim::Hop>& hops) const;
  static bool buffers(const ClassNetwork& network, sim::Half half);
  void exchange_values(const Run& run);
  void end_sums(const Run& run);
  void add_sum(Run& run, const sim::Hop& hop, Tensor received, const std::vector<CountRun>& sent_counts);
  void take_value(Run& run, const sim::Hop& hop, Tensor received);
  void rescale_owned(const Run& run);
  bool counts_travel() const;
  void exchange_counts(const Run& run);
  void add_counts(sim::ElementRange elements, const std::vector<CountRun>& sent, const sim::PacketMask* lost,
                  const sim::Packetizer& packets);

  PathContext context_;
  PathMessages messages_;
  GatherHalf gather_half_;
  // State of the current call.
  std::optional<PathMessages::Cut> cut_;
  MessageLosses lost_;  // losses of the messages that this rank receives, in the order of receipt
  // Factors of partial sums in the order of receipt, under inverse_probability; else empty.
  std::vector<double> factors_;
  Tensor last_sums_;    // memory of `stale`, reduce half: one place for each received element, in the order of receipt
  Tensor last_values_;  // memory of `stale`, gather half: in the shape of the work
  ContributionCounts counts_;
  // State of the current round.
  std::vector<sim::Hop> sends_;
  std::vector<sim::Hop> receives_;
  std::vector<Send> outgoing_;                          // messages by send
  std::vector<Receive> incoming_;                       // messages by receive
  std::vector<std::vector<CountRun>> received_counts_;  // counts by receive
};

}  // namespace droptest::comm
