// SPDX-License-Identifier: Apache-2.0
// The order in which each rank of a pipeline computes its stages and micro-batches.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace droptest::models {

/// One computation of a stage on a micro-batch.
struct Action {
  enum class Kind : std::uint8_t {
    kForward,
    kInputGradient,   ///< backward pass without the gradients of weights
    kWeightGradient,  ///< only the gradients of weights
    kBackward,        ///< whole backward pass
  };
  int stage = 0;
  Kind kind = Kind::kForward;
  int micro_batch = 0;
  /// The action shares a cell of the schedule with the previous one, so that a program may overlap the two.
  bool joins_previous = false;

  bool is_forward() const { return kind == Kind::kForward; }
  /// Whether the action computes the gradient of the stage's input.
  bool makes_input_gradient() const { return kind == Kind::kInputGradient || kind == Kind::kBackward; }
  /// Whether the stage does not need the saved activations of the micro-batch any more after this action.
  bool ends_micro_batch() const { return kind == Kind::kWeightGradient || kind == Kind::kBackward; }
  /// The form in CSV files: "2F0", with I, W and B for the other kinds.
  std::string text() const;
  friend bool operator==(const Action&, const Action&) = default;
};

/// The actions of each rank of a pipeline, in order. Stages are numbered from the embedding to the head; a rank has the
/// stages that its row names.
struct PipelineSchedule {
  std::vector<std::vector<Action>> ranks;

  int stages() const;
  int micro_batches() const;
  /// The rank of each stage. Shapes: stages() entries.
  std::vector<int> rank_of_stage() const;
};

/// Throws: ConfigError that names rank and action, unless each rank has a stage, each stage is on one rank, each stage
/// computes each micro-batch once, forward before backward, and no action waits for ever for a result that it needs.
void validate(const PipelineSchedule& schedule);

/// For each rank, the largest number of micro-batches, over all its stages, that are between their forward pass and the
/// end of their backward pass.
std::vector<int> peaks(const PipelineSchedule& schedule);

enum class ScheduleKind : std::uint8_t {
  kGpipe,                  ///< all forward passes, then all backward passes (Huang et al. 2019)
  kOneForwardOneBackward,  ///< Narayanan et al., SOSP 2019; with a flush as in SC 2021
  kInterleaved,            ///< 1F1B with several chunks of layers on each rank (Narayanan et al., SC 2021)
  kZeroBubble,             ///< weight gradients fill the bubbles: ZB1P with one chunk (Qi et al., ICLR 2024, "ZB-H1")
  kRoundRobin,             ///< GPipe with several chunks: breadth first (Lamy-Poirier 2023)
};
struct ScheduleKindName {
  ScheduleKind kind;
  std::string_view name;  ///< name in specs
};
/// The names, in the order of the enumerators.
const std::vector<ScheduleKindName>& schedule_kinds();

/// Makes a schedule for P ranks and M micro-batches. A chunk is a stage of a rank: chunk c of rank r is stage c P + r.
/// The backward passes of a stage have the order of its forward passes. Throws: ConfigError that suggests valid
/// numbers, if there is no schedule for these numbers: kGpipe and kOneForwardOneBackward have one chunk; kInterleaved
/// and kZeroBubble have max(1, M / P) rounds (rounded down), and M must be a multiple of this number.
PipelineSchedule make_schedule(ScheduleKind kind, int ranks, int chunks, int micro_batches);

}  // namespace droptest::models
