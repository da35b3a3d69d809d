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

/// Classes: pp_activation, pp_gradient. A message is that of a direction, the stage that sends, and a micro-batch; its
/// name says so, and its ordinal on a loss layer follows from them: (micro-batches of earlier steps + micro-batch) x
/// the number of boundaries between stages that cross the link in this direction + the position of the message's
/// boundary among them. So a link's ordinals have no gaps, schedules with the same stages on the same ranks lose the
/// same packets, and those of a stage's result are lost alike whether or not its input is sent past it. Owner: one
/// rank. Ranks: those of the pipeline with the same coordinates of other groups, each the steps of its program.
class PipelineTraffic {
 public:
  /// The group is borrowed. The program is that of the run: the stages of each rank, and the inputs that are sent past
  /// a stage.
  PipelineTraffic(comm::Communicator& group, const PipelineProgram& program);

  /// A training step of so many micro-batches begins.
  void begin_step(int micro_batches);
  /// An evaluation of one micro-batch begins. Its messages have ordinals of their own, so that training loses the same
  /// packets however often there is one.
  void begin_evaluation();
  /// The ordinals of training are below this number.
  static constexpr std::uint64_t kMostTrainingOrdinals = std::uint64_t{1} << 29U;
  /// The ordinals of all messages are below this number.
  static constexpr std::uint64_t kMostOrdinals = std::uint64_t{1} << 31U;
  /// The step says for which action, and from or to which rank. A buffer is one slot's, of one direction: it waits for
  /// the last message sent from it. `substitute`: where the input of the stage before is, or will be; empty: nowhere.
  /// `lost`, borrowed until finish_receive(): as Message::lost; null: nowhere.
  void start_receive(const PipelineStep& step, const comm::Tensor& to, const comm::Tensor& substitute = {},
                     LostElements* lost = nullptr);
  /// Whether lost activations are to have no gradient.
  bool stops_lost_gradients() const { return group_.stops_lost_gradients(sim::TrafficClass::kPpActivation); }
  void start_send(const PipelineStep& step, const comm::Tensor& from);
  /// Returns when the input of the action is there. Nothing to wait for: it is not sent by another rank.
  void finish_receive(const Action& action);
  /// Returns when the result of the last action of that kind in that slot, and its input, may be overwritten.
  void finish_send(const PipelineStep& step);
  void finish();
  /// The numbers of the messages so far.
  void visit_state(StateVisitor& visitor);

 private:
  using Place = std::tuple<int, bool, int>;  // stage, whether forward, and micro-batch or slot
  using Key = std::pair<Place, int>;         // with PipelineStep::past
  struct PastFirst {
    bool operator()(const Key& a, const Key& b) const {
      return a.first != b.first ? a.first < b.first : a.second > b.second;
    }
  };
  using Works = std::map<Key, comm::Work, PastFirst>;

  /// A result, or an input that is sent past a stage, on its way to the rank that needs it: the stage that needs it,
  /// the direction, and whether it is sent past a stage.
  using Delivered = std::tuple<int, bool, bool>;
  /// One of the messages of a micro-batch on a link that are of one direction, and all or none sent past a stage.
  struct LinkPosition {
    std::uint64_t position = 0;  ///< from 0
    std::uint64_t number = 0;    ///< of these messages
  };

  /// Waits for all messages of one place; for an input sent past a stage first.
  static void finish(Works& works, const Place& of);
  /// Of a step that sends the result or the input of `of_stage` to the stage behind it.
  comm::Message message(const PipelineStep& step, int of_stage);

  comm::Communicator& group_;
  std::map<Delivered, LinkPosition> positions_;
  std::uint64_t first_ordinal_ = 0;      ///< of training, or of evaluations
  std::uint64_t first_micro_batch_ = 0;  ///< of the step or evaluation
  std::uint64_t trained_ = 0;            ///< micro-batches of training, with those of this step
  std::uint64_t evaluated_ = 0;          ///< evaluations, with this one
  std::string name_;                     ///< of the last message
  Works receives_;                       ///< by the action that needs them
  Works sends_;                          ///< by slot
};

}  // namespace droptest::models
