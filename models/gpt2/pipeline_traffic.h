// SPDX-License-Identifier: Apache-2.0
// The messages between the stages of a pipeline: activations and their gradients.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "comm/communicator.h"
#include "models/attention/lost_elements.h"
#include "models/pipeline/pipeline_program.h"
#include "models/state_visitor.h"

namespace droptest::models {

/// Sends and receives activations and gradients between stages. A message belongs to a direction, a sending stage and a
/// micro-batch. Its name shows them, and its ordinal on a loss layer follows from them: (micro-batches of earlier steps
/// + micro-batch) x the number of stage boundaries that cross the link in this direction + the position of the
/// message's boundary among them. Evaluations, and inputs that are sent past a stage, have separate series of ordinals.
/// So each series of a link has no gaps, and schedules with the same stages on the same ranks lose the same packets.
/// The losses of a stage's result do not depend on whether its input is sent past it. Classes: pp_activation,
/// pp_gradient. Owner: one rank. Ranks: all ranks of one pipeline; each makes the steps of its program.
class PipelineTraffic {
 public:
  /// The group is borrowed. The program has the stages of each rank, and the inputs that are sent past a stage.
  PipelineTraffic(comm::Communicator& group, const PipelineProgram& program);

  /// Begins a training step with that number of micro-batches.
  void begin_step(int micro_batches);
  /// Begins an evaluation of one micro-batch. Its messages have separate ordinals, so that evaluations do not change
  /// the losses of training.
  void begin_evaluation();
  /// The ordinals of training are below this number, except those of inputs that are sent past a stage.
  static constexpr std::uint64_t kMostTrainingOrdinals = std::uint64_t{1} << 29U;
  /// The ordinals of all messages are below this number.
  static constexpr std::uint64_t kMostOrdinals = std::uint64_t{1} << 31U;
  /// Begins to receive into `to` for the step's action, after the last send from this buffer. `substitute` is the
  /// buffer with the input of the stage before, which fills lost elements; empty: there is none. `lost` is
  /// Message::lost and borrowed until finish_receive(); may be null.
  void start_receive(const PipelineStep& step, const comm::Tensor& to, const comm::Tensor& substitute = {},
                     LostElements* lost = nullptr);
  /// Whether lost activations get no gradient.
  bool stops_lost_gradients() const { return group_.stops_lost_gradients(sim::TrafficClass::kPpActivation); }
  /// Begins to send `from`, which must not change until finish_send() of the step's slot.
  void start_send(const PipelineStep& step, const comm::Tensor& from);
  /// Returns when the input of the action is there; at once if no other rank sends it.
  void finish_receive(const Action& action);
  /// Returns when the result of the last action of that kind in that slot, and its input, may be overwritten.
  void finish_send(const PipelineStep& step);
  /// Returns when all buffers of messages that were sent may be overwritten.
  void finish();
  /// Shows the numbers of messages so far.
  void visit_state(StateVisitor& visitor);

 private:
  using Place = std::tuple<int, bool, int>;  // stage, is forward, micro-batch or slot
  using Key = std::pair<Place, int>;         // place and PipelineStep::past
  struct PastFirst {
    bool operator()(const Key& a, const Key& b) const {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    }
  };
  using Works = std::map<Key, comm::Work, PastFirst>;

  /// A message of a result, or of an input that is sent past a stage: the stage that needs it, whether it is forward,
  /// and whether it is sent past a stage.
  using Delivered = std::tuple<int, bool, bool>;
  /// The position of a message among the messages of one micro-batch on a link that have the same direction and the
  /// same kind (sent past a stage or not).
  struct LinkPosition {
    std::uint64_t position = 0;  ///< position, from 0
    std::uint64_t number = 0;    ///< number of these messages
  };

  /// Waits for all messages of one place, first for inputs that are sent past a stage.
  static void finish(Works& works, const Place& of);
  /// The message of a step that sends the result or the input of `of_stage` to the next stage.
  comm::Message message(const PipelineStep& step, int of_stage);

  comm::Communicator& group_;
  std::map<Delivered, LinkPosition> positions_;
  std::uint64_t first_ordinal_ = 0;      ///< first ordinal of training, or of evaluations
  std::uint64_t first_micro_batch_ = 0;  ///< first micro-batch of the step or evaluation
  std::uint64_t trained_ = 0;            ///< micro-batches of training, including this step
  std::uint64_t evaluated_ = 0;          ///< number of evaluations, including this one
  std::string name_;                     ///< name of the last message
  Works receives_;                       ///< the place is that of the action that needs the message
  Works sends_;                          ///< the place is that of the slot
};

}  // namespace droptest::models
