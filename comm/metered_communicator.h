// SPDX-License-Identifier: Apache-2.0
// A communicator that measures how much it is used.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "comm/communicator.h"

namespace droptest::comm {

/// The use of a communicator and of those that were split from it, by one rank.
struct CommunicatorUse {
  std::uint64_t sent_bytes = 0;  ///< of the inputs of collectives and sends; a backend may send each byte more often
  double waiting_seconds = 0;    ///< of the rank's own thread in calls and waits
};

/// Forwards all calls to another communicator, and counts. Results, order and errors are those of the inner one.
/// Thread safety: as the inner one's; use() may be called from any thread.
class MeteredCommunicator final : public Communicator {
 public:
  /// `inner` is borrowed. The thread that calls is the rank's own.
  explicit MeteredCommunicator(Communicator& inner);

  CommunicatorUse use() const;

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  int world_rank(int rank) const override { return inner_.world_rank(rank); }
  std::string_view backend() const override { return inner_.backend(); }
  void begin_step(std::uint64_t step) override { inner_.begin_step(step); }
  using Communicator::all_reduce;
  void all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) override;
  void reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, ReduceOp op,
                      const Message& message) override;
  void all_reduce_with(ConstTensor input, Tensor output, PartReduction& reduction, const Message& message) override;
  void reduce_scatter_with(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                           PartReduction& reduction, const Message& message) override;
  PartReductions part_reductions() const override { return inner_.part_reductions(); }
  void all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                  const Message& message) override;
  void all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                  std::span<const std::uint64_t> receive_counts, const Message& message) override;
  void broadcast(Tensor data, int root, const Message& message) override;
  void send(ConstTensor data, int destination, const Message& message) override;
  void recv(Tensor data, int source, const Message& message) override;
  void exchange(std::span<const Send> sends, std::span<const Receive> receives) override;
  std::unique_ptr<WorkInFlight> begin(const CallArguments& arguments) override;
  void barrier(const Message& message) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::unique_ptr<Communicator> twin(int number) override;
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }

 private:
  struct Counters {
    const std::thread::id own_thread = std::this_thread::get_id();
    std::atomic<std::uint64_t> sent_bytes = 0;
    std::atomic<std::int64_t> waiting_nanoseconds = 0;
  };
  class TimedCall;
  class TimedWork;
  /// Owns `inner`.
  MeteredCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<Counters> counters);

  std::unique_ptr<Communicator> owned_;  ///< null: borrowed
  Communicator& inner_;
  std::shared_ptr<Counters> counters_;  ///< shared by the communicators that were split from one, and their works
};

}  // namespace droptest::comm
