// SPDX-License-Identifier: Apache-2.0
// AdamW and SGD, the global gradient norm, and the learning-rate schedule.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "models/gpt2/parameter_store.h"
#include "models/kernels/adamw.h"
#include "models/kernels/update_decision.h"
#include "models/ops/ops.h"
#include "models/state_visitor.h"

namespace droptest::models {

struct OptimizerConfig {
  double beta1 = 0.9;  ///< beta1, beta2 and epsilon are AdamW's
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  ///< only for matrices; decoupled in AdamW, part of the gradient in SGD
  enum class Rule : std::uint8_t { kAdamW, kSgd } rule = Rule::kAdamW;
  double momentum = 0.9;  ///< SGD's momentum

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("beta1", beta1);
    visit("beta2", beta2);
    visit("epsilon", epsilon);
    visit("weight_decay", weight_decay);
    visit("optimizer", rule, {{"adamw", Rule::kAdamW}, {"sgd", Rule::kSgd}});
    visit("momentum", momentum);
  }
  /// The number of moments (velocities with SGD) of each element.
  int moments() const { return rule == Rule::kAdamW ? 2 : 1; }
  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

/// The scalars of update number `step`, counted from 1, for tensors with weight decay.
AdamWStep adamw_step(const OptimizerConfig& config, std::uint64_t step, double learning_rate, double gradient_scale);

/// The optimizer of one rank's parameters. Source: AdamW: Loshchilov and Hutter 2019, Algorithm 2, with decay
/// multiplied by the learning rate as in PyTorch; SGD with momentum: Sutskever et al. 2013, as in PyTorch.
class Optimizer {
 public:
  /// The store and the operations are borrowed. Allocates the moments of the elements that this rank updates.
  Optimizer(ParameterStore& store, const OptimizerConfig& config, Ops& ops);
  /// One update with gradients multiplied by gradient_scale (clipping). The first call is step 1.
  void step(double learning_rate, double gradient_scale);
  /// One update with the gradient factor of the operations' last decide_update(), which the host does not need to know.
  void step_as_decided(double learning_rate);
  /// Sets the moments to zero; the next update is step 1 again.
  void reset();
  /// Frees the moments in memory. No update may follow.
  void release();
  /// Takes back the count of the last step_as_decided(), because that update was skipped.
  void take_back_step() { --step_; }
  void visit_state(StateVisitor& visitor);
  const OptimizerConfig& config() const { return config_; }
  /// The bytes of moments in memory.
  std::uint64_t memory_bytes() const { return first_moments_.bytes() + second_moments_.bytes(); }

 private:
  bool has_offloaded_moments() const { return store_.offloaded() != nullptr && store_.offloaded()->has_moments(); }
  void update(double learning_rate, double gradient_scale, Ops::GradientFactor factor);

  ParameterStore& store_;
  OptimizerConfig config_;
  Ops& ops_;
  std::uint64_t step_ = 0;
  ParameterArena first_moments_;                      ///< empty if moments are offloaded
  ParameterArena second_moments_;                     ///< empty if moments are offloaded, and with SGD
  std::vector<std::unique_ptr<Ops::Ranges>> ranges_;  ///< the ranges of each own part, or of each offloaded piece
};

/// Which tensors ranges_within() lists. kSharded: without replicated tensors.
enum class Counted : std::uint8_t { kAll, kSharded };
/// The ranges of trained tensors within [part.offset, part.offset + part.count) of the arena, relative to part.offset,
/// in the order of the arena.
std::vector<ParameterRange> ranges_within(const ParameterTable& table, const OwnPart& part, Counted counted);

/// The sum of the squares of a step's gradients. A rank that has a chunk of kNormChunkElems elements sums it; the sums
/// of chunks are then added up in the order of the arena. So the bits of the sum do not depend on which rank has which
/// chunk.
class GradientSquares {
 public:
  /// Replicated tensors count only on rank 0 of the tensor-parallel group. All arguments are borrowed; `data` may be
  /// null.
  GradientSquares(ParameterStore& store, Ops& ops, comm::Communicator* data);
  /// Sets Number::kGradientSquares of the operations to the sum. Ranks: all of the data-parallel group if optimizer
  /// state is sharded (ZeRO 1 to 3); class control.
  void sum();

 private:
  ParameterStore& store_;
  Ops& ops_;
  comm::Communicator* data_;
  std::unique_ptr<Ops::Memory> memory_;
  comm::Tensor sums_;  ///< the sum of each chunk
  struct Part {
    std::unique_ptr<Ops::Ranges> ranges;
    std::int64_t first_chunk = 0;
    std::int64_t chunks = 0;
  };
  std::vector<Part> parts_;  ///< one entry for each of the store's own parts
};

/// The learning rate of each step, counted from 0. All shapes except kTable begin with a linear warm-up to `peak` over
/// warmup_steps. All except kTable and kConstant have `floor` from total_steps on.
struct LearningRateSchedule {
  double peak = 1e-3;
  double floor = 1e-4;
  std::uint64_t warmup_steps = 0;
  std::uint64_t total_steps = 1;
  enum class Shape : std::uint8_t {
    kCosine,             ///< cosine from peak to floor
    kConstant,           ///< peak, also after total_steps
    kLinear,             ///< linear from peak to floor
    kWarmupStableDecay,  ///< peak, then linear to floor over the last decay_steps (Hu et al. 2024, MiniCPM)
    kTable,              ///< peak times a factor of the step
  } shape = Shape::kCosine;
  std::uint64_t decay_steps = 0;
  /// A factor of the table. The factor is linear between two points, and constant before the first and after the last
  /// one.
  struct Point {
    std::uint64_t step = 0;
    double factor = 1;

    /// The members by their names in a spec.
    void visit_members(const auto& visit) {
      visit("step", step);
      visit("factor", factor);
    }
  };
  std::vector<Point> points = {};  ///< kTable: at least one, in order of steps

  /// The members by their names in a spec.
  void visit_members(const auto& visit) {
    visit("learning_rate", peak);
    visit("final_learning_rate", floor);
    visit("warmup_steps", warmup_steps);
    visit("steps", total_steps);
    visit("schedule", [this](const auto& of_schedule) {
      of_schedule("kind", shape,
                  {{"cosine", Shape::kCosine},
                   {"constant", Shape::kConstant},
                   {"linear", Shape::kLinear},
                   {"warmup_stable_decay", Shape::kWarmupStableDecay},
                   {"table", Shape::kTable}});
      of_schedule("decay_steps", decay_steps);
      of_schedule("points", points);
    });
  }

  double at(std::uint64_t step) const;

 private:
  double factor_at(std::uint64_t step) const;
};

}  // namespace droptest::models
