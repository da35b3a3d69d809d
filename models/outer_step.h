// SPDX-License-Identifier: Apache-2.0
// Workers that train alone, and exchange their weights now and then.
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

/// The rule of the outer steps. With the weights x of a worker and its reference r, the weights after its last outer
/// step, d is the mean of r - x over the workers.
enum class OuterOptimizer : std::uint8_t {
  kNesterov,  ///< m = momentum m + d; new weights r - rate (momentum m + d)
  kSgd,       ///< m = momentum m + d; new weights r - rate m
  kAverage,   ///< new weights: the mean of x
};

struct OuterOptions {
  std::uint64_t every_steps = 0;  ///< of each fragment; 0: no outer steps
  OuterOptimizer optimizer = OuterOptimizer::kNesterov;
  double learning_rate = 0.7;
  double momentum = 0.9;
  int fragments = 1;              ///< parts of the tensors that take their outer steps at different times
  std::uint64_t delay_steps = 0;  ///< from the send of a fragment to its new weights; below every_steps
  double own_share = 0;           ///< of the worker's weights in the mix with the new ones

  bool is_on() const { return every_steps > 0; }
};

/// Tensors first, ..., end - 1 of a model.
struct OuterFragment {
  std::size_t first = 0;
  std::size_t end = 0;
  std::uint64_t elems = 0;
  std::uint64_t offset_steps = 0;

  /// Whether a message starts after that step.
  bool starts_at(std::uint64_t step, std::uint64_t every_steps) const {
    return step >= every_steps + offset_steps && (step - offset_steps) % every_steps == 0;
  }
  /// Of the first `steps` steps those with a start.
  std::uint64_t starts_within(std::uint64_t steps, std::uint64_t every_steps) const {
    return steps < offset_steps ? 0 : (steps - offset_steps) / every_steps;
  }
};
/// The fragments of tensors of these sizes, of about as many elements each. Throws: ConfigError for fewer tensors than
/// fragments.
std::vector<OuterFragment> outer_fragments(const OuterOptions& options, std::span<const std::uint64_t> tensor_elems);

/// The name of the messages of a fragment.
std::string outer_message_name(std::size_t fragment);

/// Starts the mean of a fragment over the workers. `lost`: Message::lost. All are borrowed until the work is done.
/// Ranks: all workers.
comm::Work start_outer_mean(comm::Communicator& workers, const std::string& name, comm::ConstTensor sent,
                            comm::Tensor mean, std::vector<sim::ElementRange>* lost);

/// Bytes that a rank with so many elements takes for outer steps from the first one on: references, momentum, messages
/// and their means.
std::uint64_t outer_bytes(const OuterOptions& options, std::uint64_t elems);

/// The outer steps of one worker's rank. A fragment is one message of class `outer`, a mean over the workers. Elements
/// that are no mean for a worker (Message::lost) skip the step: the worker goes on from its own weights, with its
/// reference and momentum as they were, so that the next difference has all that it has learned since.
///
/// Fragment f of F starts at the steps s with (s - f every_steps / F) mod every_steps = 0, and gets its new weights
/// delay_steps later: x = own_share x + (1 - own_share) new.
/// Source: Douillard et al. 2023 (DiLoCo: outer Nesterov), 2025 (Streaming DiLoCo: fragments, delay, mix); averages of
/// sparse elements as in SPARTA.
/// Owner: one rank. Ranks: those with the same part of the model in all workers, the same calls.
class OuterStep {
 public:
  /// `workers` is borrowed and outlives this. Throws: ConfigError for fewer tensors than fragments.
  OuterStep(const OuterOptions& options, comm::Communicator& workers, std::span<const Parameter<float>> parameters);

  /// The reference of each element is its value now.
  void begin(std::span<const Parameter<float>> parameters);
  /// Whether take() has work after that step: then it needs the values of now.
  bool is_due(std::uint64_t step) const;
  /// After the update of a step: starts messages, and completes those that are due. Returns whether values changed.
  bool take(std::uint64_t step, std::span<Parameter<float>> parameters);
  /// Waits for all messages under way, whose weights stay due: before visit_state(). Ranks: all.
  void settle();
  /// The state, not while messages are under way.
  void visit_state(sim::StateVisitor& visitor);
  /// Memory of all fragments now.
  std::uint64_t bytes() const;

 private:
  struct Fragment {
    OuterFragment place;
    std::string name;
    std::vector<float> reference, momentum;
    std::uint64_t due_step = 0;  ///< of the message; 0: none
    std::vector<float> sent, mean;
    std::vector<sim::ElementRange> lost;
    comm::Work work;  ///< under way
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
