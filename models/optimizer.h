// SPDX-License-Identifier: Apache-2.0
// AdamW, the global gradient norm, and the learning-rate schedule.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "models/host_buffer.h"
#include "models/kernels/adamw.h"
#include "models/parameter.h"
#include "models/team.h"

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
template <class T>
class AdamW {
 public:
  /// The parameters are borrowed. `team`: the threads that step may use; they do not change its bits.
  AdamW(std::span<Parameter<T>> parameters, const AdamWConfig& config, const Team& team = 1);
  /// One update with gradients multiplied by gradient_scale (clipping). The first call is step 1.
  void step(double learning_rate, double gradient_scale);

 private:
  std::span<Parameter<T>> parameters_;
  AdamWConfig config_;
  Team team_;
  std::uint64_t step_ = 0;
  std::vector<HostBuffer<T>> first_moments_;
  std::vector<HostBuffer<T>> second_moments_;
};

/// L2 norm of the whole model's gradient: sharded parts of all ranks, replicated ones once (rank 0's).
/// Ranks: all. Accumulates in double, in parameter order; the team does not change its bits. The same value on every
/// rank.
template <class T>
double global_gradient_norm(std::span<const Parameter<T>> parameters, comm::Communicator& tensor_group,
                            const Team& team = 1);

/// The square root of the ranks' sums of squares, added up; the same value on every rank. Ranks: all.
double norm_over_ranks(double squares, comm::Communicator& tensor_group);

/// What to multiply gradients by so that their norm is at most max_norm: max_norm / (norm + 1e-6), at most 1.
double clip_scale(double norm, double max_norm);

/// Linear warm-up over warmup_steps, then cosine from `peak` to `floor` at total_steps. step counts from 0.
struct LearningRateSchedule {
  double peak = 1e-3;
  double floor = 1e-4;
  std::uint64_t warmup_steps = 0;
  std::uint64_t total_steps = 1;
  double at(std::uint64_t step) const;
};

}  // namespace droptest::models
