// SPDX-License-Identifier: Apache-2.0
// Outer steps: workers train independently and combine their weights at intervals (DiLoCo).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "models/parameter.h"
#include "sim/packets/packetizer.h"
#include "sim/state_visitor.h"

namespace droptest::models {

/// The rule of the outer steps. x are the weights of a worker, r its reference (its weights after the last outer step),
/// and d is the mean of r - x over the workers.
enum class OuterOptimizer : std::uint8_t {
  kNesterov,  ///< m = momentum m + d; new weights r - rate (momentum m + d)
  kSgd,       ///< m = momentum m + d; new weights r - rate m
  kAverage,   ///< new weights: the mean of x
};

struct OuterOptions {
  std::uint64_t every_steps = 0;  ///< interval between the outer steps of a fragment; 0: no outer steps
  OuterOptimizer optimizer = OuterOptimizer::kNesterov;
  double learning_rate = 0.7;
  double momentum = 0.9;
  int fragments = 1;              ///< number of parts of the tensors with outer steps at different times
  std::uint64_t delay_steps = 0;  ///< steps from the send of a fragment to its new weights; less than every_steps
  double own_share = 0;           ///< share of the worker's own weights in the mix with the new weights

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("every_steps", every_steps);
    visit("optimizer", optimizer,
          {{"nesterov", OuterOptimizer::kNesterov},
           {"sgd", OuterOptimizer::kSgd},
           {"average", OuterOptimizer::kAverage}});
    visit("learning_rate", learning_rate);
    visit("momentum", momentum);
    visit("fragments", fragments);
    visit("delay_steps", delay_steps);
    visit("own_share", own_share);
  }
  bool is_on() const { return every_steps > 0; }
};

/// The tensors first, ..., end - 1 of a model.
struct OuterFragment {
  std::size_t first = 0;
  std::size_t end = 0;
  std::uint64_t elems = 0;         ///< elements of these tensors
  std::uint64_t offset_steps = 0;  ///< steps by which its messages start later than those of fragment 0

  /// Whether a message starts after that step.
  bool starts_at(std::uint64_t step, std::uint64_t every_steps) const {
    return step >= every_steps + offset_steps && (step - offset_steps) % every_steps == 0;
  }
  /// The number of starts within the first `steps` steps.
  std::uint64_t starts_within(std::uint64_t steps, std::uint64_t every_steps) const {
    return steps < offset_steps ? 0 : (steps - offset_steps) / every_steps;
  }
};
/// Cuts tensors of these sizes into fragments with about equally many elements. Throws: ConfigError for fewer tensors
/// than fragments.
std::vector<OuterFragment> outer_fragments(const OuterOptions& options, std::span<const std::uint64_t> tensor_elems);

/// The name of the messages of a fragment.
std::string outer_message_name(std::size_t fragment);

/// Starts the mean of a fragment over the workers. `lost` is Message::lost. All arguments are borrowed until the work
/// is done. Ranks: all workers.
comm::Work start_outer_mean(comm::Communicator& workers, const std::string& name, comm::ConstTensor sent,
                            comm::Tensor mean, std::vector<sim::ElementRange>* lost);

/// The memory for outer steps on a rank with `elems` elements, from the first outer step on: references, momentum,
/// messages and their means.
std::uint64_t outer_bytes(const OuterOptions& options, std::uint64_t elems);

/// The outer steps of one worker's rank. A fragment is one message of class `outer`, a mean over the workers. Elements
/// for which a worker has no mean (Message::lost) skip the step: they keep weights, reference and momentum, so that the
/// next difference has everything that the worker has learned since the last outer step.
///
/// Fragment f of F starts at the steps offset + every_steps, offset + 2 every_steps, ... with offset = f every_steps /
/// F rounded down. It gets its new weights delay_steps later: x = own_share x + (1 - own_share) new. Source: Douillard
/// et al. 2023 (DiLoCo: outer Nesterov), 2025 (Streaming DiLoCo: fragments, delay, mix); averages of only some elements
/// as in SPARTA. Owner: one rank. Ranks: the ranks of all workers with the same part of the model make the same calls.
class OuterStep {
 public:
  /// `workers` is borrowed and outlives this. Throws: ConfigError for fewer tensors than fragments.
  OuterStep(const OuterOptions& options, comm::Communicator& workers, std::span<const Parameter<float>> parameters);

  /// Sets the reference of each element to its present value, and all momentum to zero. No message may be under way.
  void begin(std::span<const Parameter<float>> parameters);
  /// Whether take() has work after that step. Then it needs the present values.
  bool is_due(std::uint64_t step) const;
  /// Call it after the update of a step. Starts messages, and completes those that are due. Returns whether values
  /// changed.
  bool take(std::uint64_t step, std::span<Parameter<float>> parameters);
  /// Waits for all messages under way; their weights are still applied when they are due. Call it before visit_state().
  /// Ranks: all.
  void settle();
  /// Shows the state. No message may be under way.
  void visit_state(sim::StateVisitor& visitor);
  /// The present memory of all fragments, in bytes.
  std::uint64_t bytes() const;

 private:
  struct Fragment {
    OuterFragment place;
    std::string name;
    std::vector<float> reference, momentum;
    std::uint64_t due_step = 0;  ///< step at which the new weights are due; 0: no message
    std::vector<float> sent, mean;
    std::vector<sim::ElementRange> lost;
    comm::Work work;  ///< the collective under way
    bool is_under_way = false;

    std::span<const Parameter<float>> tensors(std::span<const Parameter<float>> all) const {
      return all.subspan(place.first, place.end - place.first);
    }
    void visit_state(sim::StateVisitor& visitor);
  };
  void start(Fragment& fragment, std::uint64_t step, std::span<const Parameter<float>> parameters);
  void apply(Fragment& fragment, std::span<Parameter<float>> parameters) const;
  float next_value(Fragment& fragment, std::size_t i) const;

  OuterOptions options_;
  comm::Communicator& workers_;
  std::vector<Fragment> fragments_;
};

}  // namespace droptest::models
