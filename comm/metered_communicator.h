// SPDX-License-Identifier: Apache-2.0
// A communicator that measures its use.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "comm/call.h"
#include "comm/communicator.h"

namespace droptest::comm {

/// The use of a communicator and of those that were split from it, by one rank.
struct CommunicatorUse {
  /// Bytes of the inputs of collectives and sends; a backend may send each byte more often.
  std::uint64_t sent_bytes = 0;
  double waiting_seconds = 0;  ///< time of the rank's own thread in calls and waits
};

/// A call of a rank's own thread, or a part of a started one.
struct MeteredCall {
  Operation operation = Operation::kBarrier;
  sim::TrafficClass traffic_class = sim::TrafficClass::kControl;
  std::string_view name;
  int layer = -1;
  std::uint64_t bytes = 0;  ///< bytes of this rank's input, or of a receive's output
  enum class Part : std::uint8_t { kWhole, kStart, kWait } part = Part::kWhole;
  /// The ranks of the group, with a number if several groups have these ranks: the same text on all members.
  std::string_view group;
  /// The number of the call among the collectives of the group, or among the messages of a pair of ranks in one
  /// direction, in the order of the starts. Calls that belong together have equal numbers on all ranks.
  std::uint64_t number = 0;
  Stream* stream = nullptr;  ///< stream on which the call is done; null: data in host memory
  int source = -1;           ///< world ranks of the ends of a message
  int destination = -1;
};

/// Hears of the calls of a rank's own thread. If calls are within a call, it hears only of the outer one.
class CallObserver {
 public:
  virtual ~CallObserver() = default;
  /// The call's texts last until ends().
  virtual void begins(const MeteredCall& call) = 0;
  virtual void ends() = 0;
};

/// Forwards all calls to another communicator, and counts. Results, order and errors are those of the inner one.
/// Thread safety: as the inner one's; use() may be called from any thread.
class MeteredCommunicator final : public Communicator {
 public:
  /// `inner` and the observer, which may be null, are borrowed. The constructor's thread is the rank's own.
  explicit MeteredCommunicator(Communicator& inner, CallObserver* observer = nullptr);

  CommunicatorUse use() const;

  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  int world_rank(int rank) const override { return inner_.world_rank(rank); }
  std::string_view backend() const override { return inner_.backend(); }
  bool leaves_lost_out(sim::TrafficClass traffic_class) const override { return inner_.leaves_lost_out(traffic_class); }
  bool stops_lost_gradients(sim::TrafficClass traffic_class) const override {
    return inner_.stops_lost_gradients(traffic_class);
  }
  void begin_step(std::uint64_t step) override { inner_.begin_step(step); }
  void run(const CallArguments& arguments) override;
  PartReductions part_reductions() const override { return inner_.part_reductions(); }
  std::unique_ptr<WorkInFlight> begin(const CallArguments& arguments) override;
  std::unique_ptr<Communicator> split(int color, int key) override;
  std::unique_ptr<Communicator> channel(int number) override;
  void keep_dropped(std::exception_ptr error) noexcept override { inner_.keep_dropped(std::move(error)); }
  void abort(std::string_view reason) noexcept override { inner_.abort(reason); }

 private:
  struct Counters {
    const std::thread::id own_thread = std::this_thread::get_id();
    std::atomic<std::uint64_t> sent_bytes = 0;
    std::atomic<std::int64_t> waiting_nanoseconds = 0;
    CallObserver* observer = nullptr;
    std::map<std::string, int> groups;  ///< number of groups with the same ranks
    bool in_call = false;               ///< whether the own thread is in a call
  };
  class TimedCall;
  class TimedWork;
  /// The description of a call. Collectives and messages take the next number of their kind.
  MeteredCall metered(const CallArguments& arguments);
  void name_group();
  /// Owns `inner`.
  MeteredCommunicator(std::unique_ptr<Communicator> inner, std::shared_ptr<Counters> counters);

  std::unique_ptr<Communicator> owned_;  ///< null: borrowed
  Communicator& inner_;
  std::shared_ptr<Counters> counters_;  ///< shared by the communicators that were split from one, and their works
  std::string group_;                   ///< empty without an observer
  std::uint64_t collectives_ = 0;
  std::map<std::pair<int, int>, std::uint64_t> messages_;  ///< number of messages by source and destination
};

}  // namespace droptest::comm
