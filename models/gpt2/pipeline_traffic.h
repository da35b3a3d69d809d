// SPDX-License-Identifier: Apache-2.0
// The messages between the stages of a pipeline: activations and their gradients.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>

#include "comm/communicator.h"
#include "models/pipeline/pipeline_program.h"

namespace droptest::models {

/// Classes: pp_activation, pp_gradient. A message is that of a direction, the stage that sends, and a micro-batch; its
/// name says so, and its ordinal on a loss layer follows from step, micro-batch and stage. So schedules with the same
/// stages on the same ranks lose the same packets. Owner: one rank. Ranks: those of the pipeline with the same
/// coordinates of other groups, each the steps of its program.
class PipelineTraffic {
 public:
  /// The group is borrowed.
  PipelineTraffic(comm::Communicator& group, int stages) : group_(group), stages_(stages) {}

  /// A training step of so many micro-batches begins.
  void begin_step(int micro_batches);
  /// The step says for which action, and from or to which rank. A buffer is one slot's, of one direction: it waits for
  /// the last message sent from it.
  void start_receive(const PipelineStep& step, const comm::Tensor& to);
  void start_send(const PipelineStep& step, const comm::Tensor& from);
  /// Returns when the input of the action is there. Nothing to wait for: it is not sent by another rank.
  void finish_receive(const Action& action);
  /// Returns when the result of the last action of that kind in that slot may be overwritten.
  void finish_send(const PipelineStep& step);
  void finish();

  /// An evaluation, which is one micro-batch: the result of a stage, and the input of the next one. It begins with
  /// begin_step(1).
  void send_evaluated(int stage, const comm::Tensor& from, int to);
  void receive_evaluated(int stage, const comm::Tensor& to, int from);

 private:
  using Key = std::tuple<int, bool, int>;  // stage, whether forward, and micro-batch or slot

  comm::Message message(bool forward, int sending_stage, int micro_batch);

  comm::Communicator& group_;
  int stages_;
  std::uint64_t first_ordinal_ = 0;     ///< of the step or evaluation
  std::uint64_t next_ordinal_ = 0;      ///< behind it
  std::string name_;                    ///< of the last message
  std::map<Key, comm::Work> receives_;  ///< by the action that needs them
  std::map<Key, comm::Work> sends_;     ///< by slot
};

}  // namespace droptest::models
