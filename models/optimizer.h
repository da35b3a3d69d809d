// SPDX-License-Identifier: Apache-2.0
// AdamW, the global gradient norm, and the learning-rate schedule.
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
  double beta1 = 0.9;  ///< AdamW's, as the next two
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  ///< on matrices only: AdamW's is decoupled, SGD's is part of the gradient
  enum class Rule : std::uint8_t { kAdamW, kSgd } rule = Rule::kAdamW;
  double momentum = 0.9;  ///< SGD's

  /// Numbers of optimizer state for each element.
  int moments() const { return rule == Rule::kAdamW ? 2 : 1; }
  friend bool operator==(const OptimizerConfig&, const OptimizerConfig&) = default;
};

/// The scalars of update number `step`, which counts from 1, for tensors that decay.
AdamWStep adamw_step(const OptimizerConfig& config, std::uint64_t step, double learning_rate, double gradient_scale);

/// AdamW: Loshchilov and Hutter 2019, Algorithm 2 (decay multiplied by the learning rate, as PyTorch does). SGD with
/// momentum: Sutskever et al. 2013, as PyTorch has it.
class Optimizer {
 public:
  /// The store and the operations are borrowed. Moments of the elements that this rank updates are taken here.
  Optimizer(ParameterStore& store, const OptimizerConfig& config, Ops& ops);
  /// One update with gradients multiplied by gradient_scale (clipping). The first call is step 1.
  void step(double learning_rate, double gradient_scale);
  /// The same with the factor of the operations' last decide_update(), which the host need not know.
  void step_as_decided(double learning_rate);
  /// The next update is the first one again, with moments of zero.
  void reset();
  /// No update follows: frees the moments in memory.
  void release();
  /// The last step_as_decided() was one that is skipped: it does not count.
  void take_back_step() { --step_; }
  void visit_state(StateVisitor& visitor);
  const OptimizerConfig& config() const { return config_; }
  /// Moments in memory.
  std::uint64_t memory_bytes() const { return first_moments_.bytes() + second_moments_.bytes(); }

 private:
  bool has_offloaded_moments() const { return store_.offloaded() != nullptr && store_.offloaded()->has_moments(); }
  void update(double learning_rate, double gradient_scale, Ops::GradientFactor factor);

  ParameterStore& store_;
  OptimizerConfig config_;
  Ops& ops_;
  std::uint64_t step_ = 0;
  ParameterArena first_moments_;                      ///< empty where moments are outside of memory
  ParameterArena second_moments_;                     ///< likewise, and with SGD, whose velocities are the first ones
  std::vector<std::unique_ptr<Ops::Ranges>> ranges_;  ///< of each own part, or of each piece of those outside of memory
};

/// The ranges of the trained tensors that reach into [offset, offset + count) of the arena, from `offset` on, in its
/// order. kSharded: without replicated tensors.
enum class Counted : std::uint8_t { kAll, kSharded };
std::vector<ParameterRange> ranges_within(const ParameterTable& table, const OwnPart& part, Counted counted);

/// The sum of the squares of a step's gradients. Each chunk of kNormChunkElems is added up by a rank that has it, and
/// the chunks in the order of the arena: the sum has the same bits with any choice of these ranks.
class GradientSquares {
 public:
  /// Replicated tensors count on rank 0 of the tensor-parallel group alone. All are borrowed; `data` may be null.
  GradientSquares(ParameterStore& store, Ops& ops, comm::Communicator* data);
  /// Number::kGradientSquares of the operations becomes the sum. Ranks: of the data-parallel group where gradients are
  /// sharded; class control.
  void sum();

 private:
  ParameterStore& store_;
  Ops& ops_;
  comm::Communicator* data_;
  std::unique_ptr<Ops::Memory> memory_;
  comm::Tensor sums_;  ///< of each chunk
  struct Part {
    std::unique_ptr<Ops::Ranges> ranges;
    std::int64_t first_chunk = 0;
    std::int64_t chunks = 0;
  };
  std::vector<Part> parts_;  ///< of the store's own parts
};

/// The learning rate of each step, which counts from 0. But for a table: linear warm-up to `peak` over warmup_steps,
/// then the shape; `floor` from total_steps on.
struct LearningRateSchedule {
  double peak = 1e-3;
  double floor = 1e-4;
  std::uint64_t warmup_steps = 0;
  std::uint64_t total_steps = 1;
  enum class Shape : std::uint8_t {
    kCosine,             ///< from peak to floor
    kConstant,           ///< peak, without an end
    kLinear,             ///< from peak to floor
    kWarmupStableDecay,  ///< peak, and over the last decay_steps linearly to floor (Hu et al. 2024, MiniCPM)
    kTable,              ///< peak times a factor of the step
  } shape = Shape::kCosine;
  std::uint64_t decay_steps = 0;
  /// A factor of the table; between two of them it is linear, before the first and after the last one constant.
  struct Point {
    std::uint64_t step = 0;
    double factor = 1;
  };
  std::vector<Point> points = {};  ///< kTable: at least one, in order of steps
  double at(std::uint64_t step) const;

 private:
  double factor_at(std::uint64_t step) const;
};

}  // namespace droptest::models
