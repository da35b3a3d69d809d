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
#include "comm/started/deferred_calls.h"

struct ncclComm;

namespace droptest::comm {

/// One rank of a group. What is in device memory goes through NCCL on the tensors' stream, what is on the host through
/// a GlooCommunicator of the same ranks, which is reliable and in rank order.
///
/// Determinism: NCCL chooses the order of a sum's additions, by the number of ranks, the size and the way the GPUs are
/// connected. Results of equal runs on equal machines are equal where NCCL chooses alike (docs/backends.md says how to
/// make it), but they are not those of `local` and `gloo`. Sums of bfloat16 are rounded at each step, and a maximum may
/// drop a NaN. What only moves data is exact: all_to_all, all_gather, broadcast, send and recv, and with them
/// all_reduce_with and the loss layer's paths over messages, which reduce in the order that the host does.
///
/// Blocking: calls on device memory return when NCCL has put them on the stream. Agreement: ranks compare what they
/// call before it is put there, for the first 256 calls and every 64th from then on; calls that differ in between run
/// into the timeout. Timeout: an operation that makes no progress for the timeout ends the group on all ranks. Host
/// threads that wait for a stream then come free, with whatever is in the outputs, and the next call throws. Memory: a
/// stream outlives the call after the last one that used it.
class NcclCommunicator final : public Communicator {
 public:
  /// `control` has the same ranks as NCCL's communicator.
  NcclCommunicator(std::shared_ptr<NcclWorld> world, std::unique_ptr<GlooCommunicator> control, ncclComm* comm);
  /// Waits until the work under way is done, at most for the timeout.
  ~NcclCommunicator() override;

  /// Moves a little from each rank to each other one: makes all connections, which later need not be agreed on, and
  /// finds machines whose GPUs do not reach each other. Ranks: all of the group, before its first call. Throws:
  /// CommError.
  void check_connections();

  int rank() const override { return control_->rank(); }
  int world_size() const override { return control_->world_size(); }
  int world_rank(int rank) const override { return control_->world_rank(rank); }
  std::string_view backend() const override { return "nccl"; }
  int device() const { return world_->device(); }
  void begin_step(std::uint64_t step) override { control_->begin_step(step); }
  using Communicator::all_reduce;
  void all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) override;
  void reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, ReduceOp op,
                      const Message& message) override;
  void all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                  const Message& message) override;
  void all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                  std::span<const std::uint64_t> receive_counts, const Message& message) override;
  void broadcast(Tensor data, int root, const Message& message) override;
  /// On the device: keeps a copy. The next receive hands over the first one to each rank, any other call all of them.
  /// So ranks may send to each other before they receive, but must have received before the next collective of the
  /// group; and who sends one rank several messages must not wait for its answer to the last before another call.
  void send(ConstTensor data, int destination, const Message& message) override;
  void recv(Tensor data, int source, const Message& message) override;
  /// On the device: one group of NCCL's calls. Hands over what send() has kept.
  void exchange(std::span<const Send> sends, std::span<const Receive> receives) override;
  /// On the device: a started call is put on the stream at once. Receives are when the rank waits for one of them,
  /// receives something else or comes to the group's next collective, so that the stream does not stand still before.
  std::unique_ptr<WorkInFlight> begin(const CallArguments& arguments) override;
  /// Of the hosts: what they have put on streams may still be under way.
  void barrier(const Message& message) override;
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

  /// The stream of a call on device memory; null: on the host.
  Stream* stream_of(const Call& call, ConstTensor input, ConstTensor output) const;
  /// Compares what the ranks call, now and then.
  void agree(const Call& call, std::span<const std::uint64_t> send_counts = {},
             std::span<const std::uint64_t> receive_counts = {});
  /// Puts work on the stream by `enqueue`, which returns NCCL's result, and has it watched.
  template <class Enqueue>
  void put(const Call& call, Stream& stream, const Enqueue& enqueue);
  /// Returns when the device has done the latest operation, and so all earlier ones.
  void wait_for_last() const;
  /// Sends what is in the outbox.
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
  std::vector<std::uint64_t> received_;  ///< by source
  DeferredCalls receives_;               ///< started, on the device
  DeviceOutbox outbox_;
  std::deque<ToSelf> to_self_;
  DeviceMemory input_copy_;              ///< of an all_to_all in place
  Stream* input_copy_stream_ = nullptr;  ///< whose order the copy is in
};

}  // namespace droptest::comm
