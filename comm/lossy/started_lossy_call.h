// SPDX-License-Identifier: Apache-2.0
// A started call of a class with a network.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/call.h"
#include "comm/communicator.h"
#include "comm/lossy/clock/group_timeline.h"
#include "comm/lossy/lossy_call.h"
#include "comm/lossy/lossy_communicator.h"
#include "comm/started/work.h"

namespace droptest::comm {

/// A started call from its start to the end of its wait.
class StartedLossyCall final : public WorkInFlight {
 public:
  /// Plans a call of `group`. `arguments` are copied.
  StartedLossyCall(LossyCommunicator& group, const CallArguments& arguments);
  /// Waits for the parts: if finish() failed before the data arrived, another thread may still move them.
  ~StartedLossyCall() override;
  StartedLossyCall(const StartedLossyCall&) = delete;
  StartedLossyCall& operator=(const StartedLossyCall&) = delete;

  const CallArguments& arguments() const { return arguments_.get(); }
  const LossyCommunicator& group() const { return group_; }
  /// Whether this receive was given to the inner communicator.
  bool is_posted() const { return is_posted_; }
  bool receives() const { return arguments().operation == Operation::kRecv; }

  /// Starts to move the data, or leaves a collective to the rank's queue. Called once.
  void start();
  /// Computes the call's times, if there is a clock, and draws its fates, if they depend on time. It does nothing the
  /// second time.
  void play();
  /// Moves the rank's clock to the end of the call, if it is known.
  void pass_time() const;

  void finish() override;
  bool finished() override;

 private:
  void begin_send(ConstTensor data);
  void begin_recv(Tensor data);
  void post_data();
  void begin_departure();
  void run_in_queue();
  void await_parts();

  LossyCommunicator& group_;
  KeptArguments arguments_;
  std::optional<CallStart> start_;  // absent without a clock
  LossyCall call_;
  std::vector<std::unique_ptr<WorkInFlight>> parts_;  // null: done
  std::unique_ptr<WorkInFlight> in_queue_;
  Departure departure_{};
  std::unique_ptr<WorkInFlight> departure_part_;  // departure of a receive that is posted
  bool is_posted_ = false;
  std::optional<CallTiming> times_;
};

}  // namespace droptest::comm
