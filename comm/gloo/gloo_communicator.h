// SPDX-License-Identifier: Apache-2.0
// The `gloo` backend: ranks are processes that exchange parts directly over TCP.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/call.h"
#include "comm/communicator.h"
#include "comm/gloo/gloo_exchange.h"
#include "comm/gloo/gloo_mesh.h"
#include "comm/started/lane.h"

namespace droptest::comm {

/// One rank of a group over a GlooMesh. Each collective begins with an exchange of the ranks' calls, so that a
/// disagreement is found before any data is used. Small messages travel with this exchange, and the collective is then
/// done; larger messages follow it.
/// Determinism: a part's rank, or each rank if the message is small, reduces the inputs in rank order. The results have
/// the same bits as those of `local`.
class GlooCommunicator final : public Communicator {
 public:
  /// A communicator over the whole mesh.
  explicit GlooCommunicator(std::shared_ptr<GlooMesh> mesh);

  int rank() const override { return rank_; }
  int world_size() const override { return static_cast<int>(world_ranks_.size()); }
  int world_rank(int rank) const override { return world_ranks_[static_cast<std::size_t>(rank)]; }
  std::string_view backend() const override { return "gloo"; }
  void begin_step(std::uint64_t step) override { mesh_->step = step; }
  /// A send is buffered up to 16 MiB of messages under way from this rank; beyond that, it waits until earlier messages
  /// are received. An exchange goes straight from and to the tensors; only messages of a rank to itself are copied. A
  /// reduction of the caller reads the parts in their receive buffers.
  void run(const CallArguments& arguments) override;
  PartReductions part_reductions() const override { return PartReductions::kAsFast; }
  /// A work proceeds in the background while its rank computes: collectives of the group one after the other on a
  /// thread of the group, messages on one thread for each peer and direction.
  std::unique_ptr<WorkInFlight> begin(const CallArguments& arguments) override;
  /// Needs no new connections: the parts use the mesh's connections, with slots of their own.
  std::unique_ptr<Communicator> split(int color, int key) override;
  /// split() with the type of this class.
  std::unique_ptr<GlooCommunicator> split_group(int color, int key);
  std::unique_ptr<Communicator> channel(int number) override;
  void abort(std::string_view reason) noexcept override { mesh_->abort(reason); }

  /// Exchanges and compares the ranks' next calls, as at the start of a collective of this communicator, for a backend
  /// that moves the data of some calls itself. The counts are those of all_to_all, and empty for others. Ranks: all of
  /// the group. Throws: CommError on every rank if the calls, or the counts of two ranks, differ.
  void agree_on(const Call& call, std::span<const std::uint64_t> send_counts,
                std::span<const std::uint64_t> receive_counts);
  /// agree_on() for a message between two ranks: the sender sends its call; the receiver waits for it and compares.
  void send_call(const Call& call, int destination);
  void receive_call(const Call& call, int source);

 private:
  /// The first message of each rank in a collective; sent as bytes between equal builds.
  struct Hello {
    Call call{};
    std::uint64_t sends_elems = 0;  ///< all_to_all: elements that the receiver of this Hello will get
    std::int32_t color = 0;         ///< split
    std::int32_t key = 0;           ///< split
    std::uint16_t next_group_id = 0;
  };
  /// The purpose of a slot.
  enum class Phase : std::uint8_t { kHello = 0, kReduce = 1, kGather = 2, kExchange = 3 };
  using Bytes = std::span<std::byte>;
  using ConstBytes = std::span<const std::byte>;

  GlooCommunicator(std::shared_ptr<GlooMesh> mesh, std::vector<int> world_ranks, int rank, std::uint16_t group_id);

  /// Maximum bytes of a message to another rank that travel together with its Hello.
  std::size_t inline_bytes() const { return exchange_.capacity() - sizeof(Hello); }

  /// The call of the arguments, which are in host memory.
  Call checked(const CallArguments& arguments) const;
  void send_now(const CallArguments& arguments);
  void exchange_now(std::span<const Send> sends, std::span<const Receive> receives);
  /// Runs the next collective of the group, on the thread that runs collectives.
  void carry_out(const Call& call, const CallArguments& arguments);
  /// Null `reduction`: the reduction of the call.
  void all_reduce_now(const Call& call, ConstTensor input, Tensor output, PartReduction* reduction);
  void all_to_all_now(const Call& call, const CallArguments& arguments);
  void broadcast_now(const Call& call, Tensor data);
  std::unique_ptr<WorkInFlight> begin_send(const Call& call, ConstTensor data, int destination);
  std::unique_ptr<WorkInFlight> begin_recv(const Call& call, Tensor data, int source);

  /// Exchanges `own` with all ranks of the group and checks that they agree; send_counts are for all_to_all. `to`, if
  /// given, has the data for each rank. The data travel along if they have at most inline_bytes(), else not at all.
  std::vector<Hello> agree(const Hello& own, std::span<const std::uint64_t> send_counts,
                           std::span<const ConstBytes> to = {});
  /// The data that travelled with a rank's Hello, `bytes` bytes, valid until the next exchange.
  ConstBytes inlined(int rank, std::size_t bytes) const {
    return exchange_.incoming(rank).subspan(sizeof(Hello), bytes);
  }
  /// Checks the counts that the other ranks will send in an all_to_all.
  void check_receive_counts(const Call& call, std::span<const Hello> hellos,
                            std::span<const std::uint64_t> receive_counts);
  /// Called after agree() with the same `to`: receives part s of the output from rank s, for each s, but not the own
  /// part. Parts that did not travel with a Hello travel now.
  void take_parts(std::span<const ConstBytes> to, std::span<const Bytes> from, Phase phase);
  /// Agrees on `call`, and then reduces this rank's part of all inputs into `output`, in rank order or by `reduction`.
  void reduce_own_part(const Call& call, ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                       PartReduction* reduction);
  /// Agrees on `call`, and sends all parts to all ranks; this rank's part is already in its place in `output`.
  void gather_parts(const Call& call, Tensor output, std::span<const std::uint64_t> counts);
  /// An all-reduce of inputs that travel with the agreement on `call`.
  void reduce_everywhere(const Call& call, ConstTensor input, Tensor output);

  /// Sends the first part of a message between two ranks, the sender's call. Returns the number of the message.
  std::uint64_t start_message(const Call& call, int destination);
  /// Receives the message of that number from a source.
  void receive(const Call& call, Tensor data, int source, std::uint64_t number);
  void check_message(const Call& call, const Call& sent, int source);
  void receive_from_self(const Call& call, Tensor data, std::uint64_t number);

  std::uint64_t slot(Phase phase) const;
  std::uint64_t peer_slot(std::uint64_t sequence, Phase phase) const;

  std::shared_ptr<GlooMesh> mesh_;  ///< shared by the communicators over one set of connections
  std::vector<int> world_ranks_;
  int rank_;
  std::uint16_t group_id_;
  std::uint64_t sequence_ = 0;  ///< number of collectives so far
  GlooExchange exchange_;
  std::vector<std::byte> received_parts_;  ///< received parts of the inputs of a reduction
  std::vector<std::uint64_t> sent_;        ///< messages so far, by destination
  std::vector<std::uint64_t> received_;    ///< messages so far, by source
  struct ToSelf {
    Call call;
    std::vector<std::byte> bytes;
  };
  std::map<std::uint64_t, ToSelf> to_self_;  ///< messages that this rank sent to itself, by number
  // Last members, so that their tasks end before any other member is destroyed.
  std::map<int, Lane> sending_;    ///< lanes of sends by destination
  std::map<int, Lane> receiving_;  ///< lanes of receives by source
  Lane collectives_;
};

}  // namespace droptest::comm
