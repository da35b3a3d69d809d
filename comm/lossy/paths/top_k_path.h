// SPDX-License-Identifier: Apache-2.0
// Sums of the largest elements of each contribution, which travel with their indices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/lossy/fill/ef21.h"
#include "comm/lossy/fill/error_feedback.h"
#include "comm/lossy/paths/call_memory.h"
#include "comm/lossy/paths/message_losses.h"
#include "comm/lossy/paths/path.h"

namespace droptest::comm {

/// Each rank sends the pairs (index, value) of its k elements of largest magnitude to all others, and adds up the pairs
/// that it has, in the order of ranks, then of indices. If magnitudes are equal, the lower index counts as larger; a
/// NaN counts as infinity. Links: those of the gather half, as an all-gather of one hop. The pairs of a lost packet are
/// missing from the receiver's sum; if fates are shared, from the sums of all ranks, also the sender's. The own
/// contribution is reduced to its pairs in the same way, so that ranks end with equal sums if no packet is lost.
///
/// A sender with error feedback remembers the elements that it did not send and, if fates are shared, those of lost
/// packets. It does not know the losses of single receivers. Under EF21 the pairs are those of a difference, and sums
/// are sums of copies. Acknowledgements tell all ranks the losses of all: a packet that any receiver misses changes
/// neither the estimate nor any copy, because the next message is the same for all receivers.
/// Source: Aji and Heafield, EMNLP 2017; Stich, Cordonnier and Jaggi, NeurIPS 2018 (with memory).
class TopKPath final : public Path {
 public:
  explicit TopKPath(const PathContext& context);
  /// PathEntry::add_memory.
  static void add_memory(const SizedCall& call, CallMemory& memory);

  void plan(const CallArguments& call, CallFates& fates) override;
  void run(const CallArguments& call, Communicator& inner, Scratch& scratch) override;
  CodingErrors coding_errors() const override { return errors_; }
  EndErrors compare_ends(Communicator& inner) override;

 private:
  void gather_pairs(std::span<const std::uint64_t> counts, const CallArguments& call, Communicator& inner);
  template <class T>
  void run_on_host(const CallArguments& call, ConstTensor input, Tensor output, Communicator& inner);

  void acknowledge(const sim::Packetizer& packets, Communicator& inner);
  template <class T>
  void change_states(const sim::Packetizer& packets, std::span<T> sums);

  PathContext context_;
  PathMessages messages_;
  // State of the current call.
  std::uint64_t pairs_ = 0;
  MessageLosses lost_;  // losses of each rank's pairs
  ErrorFeedback feedback_;
  Ef21 states_;
  std::vector<sim::PacketMask> missing_;  // packets that any rank misses, by source, with acknowledgements; else empty
  CodingErrors errors_;
  std::vector<std::uint32_t> chosen_;  // indices of this rank's pairs
  std::vector<std::byte> sent_;
  std::vector<std::byte> received_;
};

/// PathEntry::sub_calls: an all-gather of pairs.
std::vector<SubCall> top_k_calls(const ClassNetwork& network, const CallShape& call, int ranks);

/// Adds the pairs of a message to `sums`: 4 bytes of index and then the value, little endian. Drops pairs with an index
/// that is out of range, and returns their number. `lost`: packets of pairs that are left out; null: none.
template <class T>
std::uint64_t add_pairs(std::span<const std::byte> message, const sim::PacketMask* lost, const sim::Packetizer& packets,
                        std::span<T> sums);

}  // namespace droptest::comm
