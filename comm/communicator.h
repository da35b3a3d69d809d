// SPDX-License-Identifier: Apache-2.0
// The interface of tensor communication between the ranks of a group. Smallest implementation:
// local/local_communicator.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "comm/part_reduction.h"
#include "comm/started/work.h"
#include "comm/tensor.h"
#include "sim/packets/packetizer.h"
#include "sim/traffic_class.h"

namespace droptest::comm {

/// Sums, maxima and means, all in rank order if the backend guarantees it. A mean is the complete sum divided by the
/// number of ranks of the group, and only for floats. A NaN is larger than any other value; sums of integers wrap. Sums
/// and means of bfloat16 and float16 are float until they are complete, and are rounded once. Partial sums travel on
/// the loss layer's paths of hops and in NCCL: each hop rounds them, and a mean is rounded once more.
enum class ReduceOp : std::uint8_t { kSum, kMax, kMean };

/// Whether a network's losses apply to a message. A certain one takes its usual path: it uses up its packets, takes its
/// time and is counted, but arrives.
enum class Delivery : std::uint8_t { kByNetwork, kCertain };

/// The class and identity of a call's data. The name appears in errors, and identifies the message if a recovery policy
/// remembers earlier values: equal names mean "the same tensor, one step later".
struct Message {
  sim::TrafficClass traffic_class = sim::TrafficClass::kControl;
  std::string_view name;
  int layer = -1;  ///< transformer block; -1: no block
  /// The place of a message between two ranks on its link. Both ends derive it alike, for example from step,
  /// micro-batch and stage. On a loss layer the ordinal sets the message's packet indices independently of earlier
  /// messages, so the fates of a schedule's messages do not depend on the order in which it sends them. Absent: the
  /// order of the starts sets the place.
  std::optional<std::uint64_t> ordinal{};
  /// The values in the place of lost ones, for a message that a loss layer receives with Fill::kSkip. Borrowed, and
  /// read at the end of the wait. Empty: zeros.
  ConstTensor substitute{};
  /// Lost elements, which a loss layer reports at the receiver of an all_gather, all_to_all, broadcast, recv or
  /// exchange: the elements of the output that got values of the fill, as ascending ranges that do not touch. Elements
  /// that a transform made of lost packets are lost. Without a loss layer the list stays as it is. Borrowed until the
  /// end of the wait. An all_reduce along the path `contribution` reports the elements that are no mean for this rank:
  /// its own contribution or its result was lost, or no other rank contributed. Other reductions, and values that take
  /// several hops, have no such elements: a ConfigError on a loss layer.
  std::vector<sim::ElementRange>* lost = nullptr;
  /// Equal on all ranks that take part in the call.
  Delivery delivery = Delivery::kByNetwork;
};

/// The two ends of a message in an exchange: both ranks give the same count, type and message.
struct Send {
  ConstTensor data;
  int destination = 0;
  Message message{};
};
struct Receive {
  Tensor data;
  int source = 0;
  Message message{};
};

enum class Operation : std::uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kSend,
  kRecv,
  kBarrier,
  kSplit,  ///< run() does not take it
  kAllReduceWith,
  kReduceScatterWith,
  kExchange,
};

/// Whether the operation is one end of a message between two ranks.
constexpr bool is_message(Operation operation) {
  return operation == Operation::kSend || operation == Operation::kRecv;
}

/// The arguments of one call, borrowed. Arguments that the operation does not use are empty.
struct CallArguments {
  Operation operation = Operation::kBarrier;
  ConstTensor input{};
  Tensor output{};
  ReduceOp op = ReduceOp::kSum;
  std::span<const std::uint64_t> counts{};          ///< elements of each rank's part; all_to_all: of each part sent
  std::span<const std::uint64_t> receive_counts{};  ///< all_to_all
  int peer = -1;                                    ///< root, destination or source: its rank in the group
  Message message{};
  PartReduction* reduction = nullptr;  ///< all_reduce_with, reduce_scatter_with
  std::span<const Send> sends{};       ///< exchange
  std::span<const Receive> receives{};
};

class Communicator;
/// The lowest world rank of the group's members. It identifies the group among the groups of its number.
int lowest_world_rank(const Communicator& group);

/// Elements of each rank's part if `count_elems` are cut evenly: the first count % world_size parts have one more.
std::vector<std::uint64_t> even_counts(std::uint64_t count_elems, int world_size);

/// A group of ranks that run the same collectives in the same order.
///
/// Owner: each rank owns its communicator; it is used by one thread at a time. Blocking: a call returns when the rank's
/// output is complete and its input may be reused; with device memory it may return when the work is queued on the
/// tensors' stream. Memory: input and output of a call, and those of all ranks, are on the host or on devices together.
/// Order: all ranks of a group make the same calls with the same counts, types and ops; messages of a group never
/// overtake each other. Buffers: input and output are the same range or do not overlap; an input that is not the output
/// is never written. Counts may be zero.
/// Errors: CommError on every rank when a peer dies, throws, stalls beyond the timeout, or makes another call; it names
/// the peer and the operation. ConfigError for arguments that are wrong only on this rank.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world_size() const = 0;
  /// World rank of group member `rank`; it names links. The identity for a communicator that was not split.
  virtual int world_rank(int rank) const = 0;
  /// The name of the backend: "local", "gloo", ...
  virtual std::string_view backend() const = 0;

  /// Whether receivers of the class leave lost elements (Message::lost) out of their computation, in place of the
  /// values that the fill gives them: the fill `absent` of a loss layer. Equal on all ranks. Default: no.
  virtual bool leaves_lost_out(sim::TrafficClass /*traffic_class*/) const { return false; }
  /// Whether elements of the class can get lost, and lost ones (Message::lost) have no gradient in the backward pass:
  /// LostGradient::kZero of a loss layer. Equal on all ranks. Default: no.
  virtual bool stops_lost_gradients(sim::TrafficClass /*traffic_class*/) const { return false; }

  /// Sets the training step of the next calls, for errors, sampling and schedules. Default: ignored.
  virtual void begin_step(std::uint64_t /*step*/) {}

  /// Makes the blocking call with these arguments, which the functions below fill in. A backend checks them before it
  /// sends or waits, by checked_call() or checked_exchange() (comm/call.h); a layer over another communicator passes
  /// them on. Each operation has its name's arguments: a broadcast has one range as input and output, a barrier a
  /// message only, and an exchange its sends and receives only.
  virtual void run(const CallArguments& arguments) = 0;

  /// output[i] = op over ranks of input_r[i]. Shapes: equal on all ranks.
  void all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message);
  void all_reduce(Tensor data, ReduceOp op, const Message& message) { all_reduce(data, data, op, message); }

  /// Rank r gets the reduction of part r. Shapes: input sum(counts), output counts[rank()]; the output may be the
  /// rank's own part of the input.
  void reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, ReduceOp op,
                      const Message& message);

  /// all_reduce and reduce_scatter with a reduction of the caller. Rank r's `reduction` reduces part r; it reads that
  /// part from all ranks' inputs, in place if the backend can. all_reduce_with cuts the parts as even_counts() does.
  /// Ranks: all give a reduction, for parts of any size. The operation has a name of its own in errors. A reduction
  /// that throws is a rank that fails: its rank gets the exception, the others a CommError that names it, from this
  /// call or the next one. A backend without such a call runs run_as_other_calls().
  void all_reduce_with(ConstTensor input, Tensor output, PartReduction& reduction, const Message& message);
  void reduce_scatter_with(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                           PartReduction& reduction, const Message& message);

  /// The cost of these calls compared with all_reduce and reduce_scatter.
  enum class PartReductions : std::uint8_t {
    kSlower,   ///< the default: a sequence of other calls
    kAsFast,   ///< each rank reads only its own reduction object
    kInPlace,  ///< equally fast, on inputs in place; each rank reads the reduction objects of all ranks
  };
  virtual PartReductions part_reductions() const { return PartReductions::kSlower; }

  /// Every rank gets all parts in rank order. Shapes: input counts[rank()], output sum(counts); the input may be the
  /// rank's own part of the output.
  void all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, const Message& message);

  /// Part d of the input goes to rank d; part s of the output came from rank s. Shapes: input sum(send_counts), output
  /// sum(receive_counts); receive_counts[s] equals rank s's send_counts[rank()]. Parts are in rank order, without gaps.
  void all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                  std::span<const std::uint64_t> receive_counts, const Message& message);

  /// Gives rank root's data to every rank.
  void broadcast(Tensor data, int root, const Message& message);

  /// A message to one rank, which calls recv with the same count and name. Blocking until the data is received or
  /// buffered: ranks that send to each other before they receive use exchange.
  void send(ConstTensor data, int destination, const Message& message);
  void recv(Tensor data, int source, const Message& message);

  /// Sends and receives messages of any sizes together, without a copy of the sent data if the backend can. Ranks that
  /// send to each other use it, since a send may wait for its receive. No rank waits for ever if both ends of each
  /// message are in exchanges that their ranks call without waiting for each other: any pattern of one exchange on each
  /// rank, and also a rank's messages to itself. A rank may call it for only some of its peers, or without messages.
  /// Owner: the caller's; tensors stay as they are until the call returns. Blocking: until all messages have arrived
  /// and all sent ones are received or buffered; on a device, until all of this is queued on the stream.
  /// Order: messages of a pair of ranks keep the order in which either end lists them, after earlier messages of send
  /// and exchange; messages of different pairs have no order. Memory: all tensors are on the host, or in device memory
  /// on one stream; no received range overlaps another range.
  /// Errors: as above, with the message at which it ended; all arguments are checked before the first send, and a
  /// message with a send or recv at its other end is a mismatch of calls.
  void exchange(std::span<const Send> sends, std::span<const Receive> receives);

  /// Returns when every rank has called it.
  void barrier(const Message& message);

  /// Started calls: they return before they are done, so that the rank can compute meanwhile, and several may
  /// be under way. Work::wait() completes a call; before it, the output must not be read, nor the input or output
  /// written. All ranks start a call, or all make the blocking one: a loss layer has a separate channel for started
  /// calls.
  /// Order: started and blocking calls of a group form one program, in the order of the starts, which is the same on
  /// all ranks; the order of the waits is free. Packet indices on a loss layer, and results, are those of the program
  /// with blocking calls. Messages of a pair of ranks match in the order of the starts. Counts and name are copied.
  /// Blocking: docs/backends.md lists the condition under which each backend completes a work.
  /// Errors: as above, from wait(). A ConfigError at once for arguments that are wrong on this rank, and for a call of
  /// a class, name and layer with a work of this rank under way in this group (for a message: in the same direction and
  /// with the same peer).
  Work start_all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message);
  Work start_reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, ReduceOp op,
                            const Message& message);
  Work start_all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                        const Message& message);
  Work start_all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                        std::span<const std::uint64_t> receive_counts, const Message& message);
  Work start_send(ConstTensor data, int destination, const Message& message);
  Work start_recv(Tensor data, int source, const Message& message);

  /// The backend's part of a start. The tensors outlive the work, the other arguments only this call. Null: the call is
  /// done, in the sense of Work::wait(). Default: run().
  virtual std::unique_ptr<WorkInFlight> begin(const CallArguments& arguments);

  /// A communicator over the ranks that gave the same color, ordered by (key, rank); null for a negative color. It
  /// shares the failure of this one: an error in either ends both. Ranks: all of the group call it.
  virtual std::unique_ptr<Communicator> split(int color, int key) = 0;
  /// split() by members: a communicator over these ranks of this one, in their order; null if this rank is not among
  /// them. Default: split(). Ranks: all of the group call it; the lists of two ranks are equal or have no rank in
  /// common.
  virtual std::unique_ptr<Communicator> subgroup(std::span<const int> ranks);

  /// Another communicator of the same ranks, for calls of another thread of the rank. Channels of one number, below
  /// kMostChannels, belong together: their calls match only those of the peers' channels. It shares the failure and the
  /// steps of this one, and takes tensors in host memory. Number 0 is for a thread that works while its rank computes,
  /// and leaves the cores free while it waits. Ranks: each by itself, once for each number. Blocking: never. Null, the
  /// default: the backend has none.
  static constexpr int kMostChannels = 2;
  virtual std::unique_ptr<Communicator> channel(int number);

  /// Records the reason why this rank gives up, so that its peers' errors name it as the cause. Called once, before the
  /// communicator is destroyed after an error. Never throws.
  virtual void abort(std::string_view reason) noexcept = 0;

  /// Keeps the first error of a work without a wait, for the next call of a loss layer. Other communicators have failed
  /// if a wait throws.
  virtual void keep_dropped(std::exception_ptr error) noexcept {
    if (dropped_ == nullptr) dropped_ = std::move(error);
  }

 protected:
  /// Runs all_reduce_with and reduce_scatter_with by all_to_all, the reduction and all_gather; on a device it waits for
  /// the stream. The arguments are checked already.
  void run_as_other_calls(const CallArguments& arguments);
  /// Throws the error that keep_dropped() kept, and forgets it.
  void throw_dropped();

 private:
  friend class Work;
  struct Unfinished {
    enum class Kind : std::uint8_t { kCollective, kSent, kReceived };
    std::uint64_t number = 0;
    Kind kind = Kind::kCollective;
    sim::TrafficClass traffic_class = sim::TrafficClass::kControl;
    int layer = -1;
    int peer = -1;
    std::string name;
  };
  Work start(const CallArguments& arguments);
  /// Writes the arguments' reduction of this rank's part of all inputs, cut as `counts` say, to the output.
  void reduce_received_parts(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                             const CallArguments& arguments);
  void forget_unfinished(std::uint64_t number) noexcept;

  std::vector<Unfinished> unfinished_;  ///< works of this rank before their wait
  std::uint64_t works_ = 0;             ///< works started so far
  std::exception_ptr dropped_;          ///< the first error of a work without a wait
};

}  // namespace droptest::comm
