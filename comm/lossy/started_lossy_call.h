// SPDX-License-Identifier: Apache-2.0
// A started call of a class with a network.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/call.h"
#include "comm/communicator.h"
#include "comm/lossy/lossy_call.h"
#include "comm/lossy/lossy_group.h"
#include "comm/started/work.h"

namespace droptest::comm {

/// A started call from its start to the end of its wait.
class StartedLossyCall final : public WorkInFlight {
 public:
  /// Plans the call. Both arguments belong to one call of Communicator; `arguments` are copied.
  StartedLossyCall(LossyGroup& group, const CallArguments& arguments);
  /// Waits for the parts: where finish() failed before the data arrived, another thread may still move them.
  ~StartedLossyCall() override;
  StartedLossyCall(const StartedLossyCall&) = delete;
  StartedLossyCall& operator=(const StartedLossyCall&) = delete;

  const CallArguments& arguments() const { return arguments_.get(); }
  const LossyGroup& group() const { return group_; }
  bool receives() const { return arguments().operation == Operation::kRecv; }

  /// Starts to move the data. Once.
  void start();
  /// Computes the call's times, where there is a clock. Once.
  void play();
  /// Moves the rank's clock to the end of the call, where it is known.
  void pass_time() const;

  void finish() override;
  bool finished() override;

 private:
  void begin_send(ConstTensor data);
  void begin_recv(Tensor data);
  void await_parts();

  LossyGroup& group_;
  KeptArguments arguments_;
  LossyCall call_;
  std::vector<std::unique_ptr<WorkInFlight>> parts_;  // null: done
  double ready_seconds_ = 0;
  std::optional<CallTimes> times_;
};

}  // namespace droptest::comm
