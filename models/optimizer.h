// SPDX-License-Identifier: Apache-2.0
// AdamW, the global gradient norm, and the learning-rate schedule.
#pragma once

#include <cstdint>
#include <memory>

#include "comm/communicator.h"
#include "models/gpt2/parameter_store.h"
#include "models/kernels/adamw.h"
#include "models/kernels/update_decision.h"
#include "models/ops/ops.h"
#include "models/state_visitor.h"

namespace droptest::models {

struct AdamWConfig {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  ///< decoupled, on matrices only
};

/// The scalars of update number `step`, which counts from 1, for tensors that decay.
AdamWStep adamw_step(const AdamWConfig& config, std::uint64_t step, double learning_rate, double gradient_scale);

/// Source: Loshchilov and Hutter 2019, Algorithm 2 (decay multiplied by the learning rate, as PyTorch does).
class AdamW {
 public:
  /// The store and the operations are borrowed. Moments are taken here, in arenas like the store's.
  AdamW(ParameterStore& store, const AdamWConfig& config, Ops& ops);
  /// One update with gradients multiplied by gradient_scale (clipping). The first call is step 1.
  void step(double learning_rate, double gradient_scale);
  /// The same with the factor of the operations' last decide_update(), which the host need not know.
  void step_as_decided(double learning_rate);
  /// The last step_as_decided() was one that is skipped: it does not count.
  void take_back_step() { --step_; }
  /// Number::kGradientSquares of the operations becomes the sum of the squares of the gradients that this rank counts:
  /// of sharded tensors its part, of replicated ones on rank 0 alone.
  void sum_gradient_squares();
  void visit_state(StateVisitor& visitor);

 private:
  void update(double learning_rate, double gradient_scale, Ops::GradientFactor factor);

  ParameterStore& store_;
  AdamWConfig config_;
  Ops& ops_;
  std::uint64_t step_ = 0;
  ParameterStorage first_moments_;
  ParameterStorage second_moments_;
  std::unique_ptr<Ops::Ranges> all_;
  std::unique_ptr<Ops::Ranges> counted_;  ///< in the gradient norm, on this rank
};

/// The square root of the ranks' sums of squares, added up; the same value on every rank. Ranks: all.
double norm_over_ranks(double squares, comm::Communicator& tensor_group);

/// Linear warm-up over warmup_steps, then cosine from `peak` to `floor` at total_steps. step counts from 0.
struct LearningRateSchedule {
  double peak = 1e-3;
  double floor = 1e-4;
  std::uint64_t warmup_steps = 0;
  std::uint64_t total_steps = 1;
  double at(std::uint64_t step) const;
};

}  // namespace droptest::models
