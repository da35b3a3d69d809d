// SPDX-License-Identifier: Apache-2.0
// The `nccl` backend: ranks are processes with a GPU each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "comm/call.h"
#include "comm/communicator.h"
#include "comm/device/device_buffer.h"
#include "comm/device/stream.h"
#include "comm/gloo/gloo_communicator.h"
#include "comm/nccl/device_outbox.h"
#include "comm/nccl/nccl_world.h"
#include "comm/started/deferred_receives.h"

struct ncclComm;

namespace droptest::comm {

/// One rank of a group. Tensors in device memory go through NCCL on their stream, tensors on the host through a
/// GlooCommunicator of the same ranks, which is reliable and in rank order.
///
/// Determinism: NCCL chooses the order of a sum's additions, by the number of ranks, the size and the connections of
/// the GPUs. Results of equal runs on equal machines are equal if NCCL makes equal choices (docs/backends.md shows how
/// to ensure it), but they differ from those of `local` and `gloo`. Sums of bfloat16 are rounded at each step, and a
/// maximum may drop a NaN. Calls that only move data are exact: all_to_all, all_gather, broadcast, send and recv. So
/// are all_reduce_with and the loss layer's paths over messages, which use these calls and reduce in the host's order.
///
/// Blocking: calls on device memory return when NCCL has put them on the stream. Agreement: ranks compare their calls
/// before that, for the first 256 calls and every 64th from then on; other calls that differ end in the timeout.
/// Timeout: an operation that makes no progress for the timeout ends the group on all ranks. Host threads that wait for
/// a stream then return, with undefined outputs, and the next call throws. Memory: a stream outlives the call after the
/// last one that used it.
class NcclCommunicator final : public Communicator {
 public:
  /// `control` has the same ranks as NCCL's communicator.
  NcclCommunicator(std::shared_ptr<NcclWorld> world, std::unique_ptr<GlooCommunicator> control, ncclComm* comm);
  /// Waits until the work under way is done, at most for the timeout.
  ~NcclCommunicator() override;

  /// Sends a small message from each rank to each other one. This makes all connections, so that later calls need no
  /// agreement for them, and finds machines with GPUs that do not reach each other. Ranks: all of the group, before its
  /// first call. Throws: CommError.
  void check_connections();

  int rank() const override { return control_->rank(); }
  int world_size() const override { return control_->world_size(); }
  int world_rank(int rank) const override { return control_->world_rank(rank); }
  std::string_view backend() const override { return "nccl"; }
  int device() const { return world_->device(); }
  void begin_step(std::uint64_t step) override { control_->begin_step(step); }
  /// A send on the device keeps a copy. The next receive hands over the first message to each rank, and any other call
  /// all messages. So ranks may send to each other before they receive, but must have received before the next
  /// collective of the group. A rank that sends several messages to one rank must make another call before it waits for
  /// the answer to the last. An exchange is one group of NCCL's calls; it hands over the messages that are kept. A
  /// barrier makes only the hosts wait: their work on streams may still be under way.
  void run(const CallArguments& arguments) override;
  /// A started call on the device is put on the stream at once. A receive is put there when the rank waits for one of
  /// its receives, makes another receive or reaches the group's next collective, so that it does not block the stream
  /// earlier.
  std::unique_ptr<WorkInFlight> begin(const CallArguments& arguments) override;
  /// Waits until the work under way is done.
  std::unique_ptr<Communicator> split(int color, int key) override;
  void abort(std::string_view reason) noexcept override;

 private:
  class StreamOperation;
  struct ToSelf {
    Call call;
    DeviceMemory copy;
    Event copied;
  };

  // Calls on device memory, after their checks.
  void all_reduce_on(Stream& stream, const Call& call, const CallArguments& arguments);
  void reduce_scatter_on(Stream& stream, const Call& call, const CallArguments& arguments);
  void all_gather_on(Stream& stream, const Call& call, const CallArguments& arguments);
  void all_to_all_on(Stream& stream, const Call& call, const CallArguments& arguments);
  void broadcast_on(Stream& stream, const Call& call, Tensor data);
  void send_on(Stream& stream, const Call& call, ConstTensor data, int destination);
  void recv_on(Stream& stream, const Call& call, Tensor data, int source);
  void exchange_now(std::span<const Send> sends, std::span<const Receive> receives);
  /// The stream of a call on device memory; null: on the host.
  Stream* stream_of(const Call& call, const CallArguments& arguments) const;
  Stream* stream_of(const Call& call, ConstTensor input, ConstTensor output) const;
  /// Compares the calls of the ranks, for some of the calls.
  void agree(const Call& call, std::span<const std::uint64_t> send_counts = {},
             std::span<const std::uint64_t> receive_counts = {});
  /// Puts work on the stream by `enqueue`, which returns NCCL's result; the watchdog watches it.
  template <class Enqueue>
  void put(const Call& call, Stream& stream, const Enqueue& enqueue);
  /// Returns when the device has done the latest operation, and so all earlier ones.
  void wait_for_last() const;
  /// Sends the messages in the outbox.
  void hand_over();
  void send_to_self(const Call& call, ConstTensor data);
  void receive_from_self(const Call& call, Tensor data);
  /// Part d of the input goes to rank d, part s of the output comes from rank s.
  void exchange_parts(const Call& call, Stream& stream, std::span<const std::span<const std::byte>> to,
                      std::span<const std::span<std::byte>> from);
  std::span<const std::byte> copy_of_input(std::span<const std::byte> input, Stream& stream);
  std::uint64_t step() const { return world_->mesh().step; }

  const std::shared_ptr<NcclWorld> world_;  ///< shared by the communicators of this rank
  const std::unique_ptr<GlooCommunicator> control_;
  ncclComm* const comm_;
  const std::shared_ptr<const std::vector<int>> world_ranks_;  ///< shared with the watchdog
  std::shared_ptr<StreamOperation> last_;                      ///< shared with the watchdog
  std::uint64_t calls_ = 0;
  std::vector<std::uint64_t> sent_;      ///< messages in device memory so far, by destination
  std::vector<std::uint64_t> received_;  ///< messages in device memory so far, by source
  DeferredReceives receives_;            ///< started receives on the device
  DeviceOutbox outbox_;
  std::deque<ToSelf> to_self_;
  DeviceMemory input_copy_;              ///< copy of the input of an all_to_all in place
  Stream* input_copy_stream_ = nullptr;  ///< stream in which the copy is ordered
};

}  // namespace droptest::comm
