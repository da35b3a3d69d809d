// SPDX-License-Identifier: Apache-2.0
// A few training steps of a small model in any layout of ranks, and comparisons of the results.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "models/gpt2/gpt2.h"
#include "models/gpt2/shard_plan.h"
#include "models/pipeline/schedule.h"
#include "models/training_step.h"
#include "tests/models/formula_model.h"

namespace droptest::models {

/// A bucket of 2^17 bytes has 4 chunks of doubles, so there are several buckets.
ShardOptions small_buckets(int zero, ShardOptions::Reduce reduce = ShardOptions::Reduce::kAfterLast);

struct Training {
  static constexpr int kLength = 9;
  static constexpr double kMaxNorm = 0.5;  ///< gradients are larger, so they are clipped to it
  Gpt2Config config{4, 32, 4, 12, 97};
  int pipeline = 1;
  int chunks = 1;
  ScheduleKind kind = ScheduleKind::kOneForwardOneBackward;
  int data = 1;
  int tensor = 1;
  int micro_batches = 1;      ///< micro-batches of each data-parallel rank
  int sequences = 1;          ///< sequences of a micro-batch
  int length = kLength;       ///< tokens of a sequence
  bool documents = false;     ///< a sequence has several documents of at most 4 tokens
  std::vector<int> layers{};  ///< blocks of each stage; empty: equal numbers
  ShardOptions sharding{};
  bool ignores = false;        ///< some targets are ignored, more on some ranks than on others
  const char* file = nullptr;  ///< file with a schedule of torch, instead of `kind`
  int steps = 5;
  OptimizerConfig optimizer{.epsilon = 1e-3};
  UpdateRule::Norm norm = UpdateRule::Norm::kAgreed;
  double loss_rate = 0;  ///< loss rate of activations and gradients between stages
  /// The loss rate in both halves of the collectives over tensor-parallel ranks. Negative: no loss layer.
  double tensor_loss_rate = -1;
  SentPast sent_past{};  ///< inputs sent past stages, with the fill `skip`
  /// The losses in pp_activation and in pp_gradient, instead of loss_rate.
  std::vector<std::shared_ptr<const sim::LossProcess>> losses{};
  std::vector<int> identities{};  ///< blocks with their last weights zero, so that the output is the input
  double max_norm = kMaxNorm;
  SlotOptions memory{};  ///< a single policy in `recompute` holds for all blocks
  bool records = false;  ///< records the messages of the pipeline; its calls are then blocking
  /// Wraps the data-parallel group; empty: it is not wrapped.
  std::function<std::unique_ptr<comm::Communicator>(comm::Communicator&)> data_wire{};
  /// Only this replica of `data`, on its part of the batches.
  std::optional<int> alone{};
};

PipelineSchedule schedule_of(const Training& run);

struct TrainingResult {
  std::vector<StepResult> steps;
  double evaluation = 0;  ///< evaluation of the first sequence, without packet loss
  std::vector<Tensors> of_replica;
  std::uint64_t bytes = 0;                  ///< Gpt2::memory_bytes() of rank 0
  std::vector<int> most_in_flight;          ///< maximum for each pipeline rank
  std::vector<std::vector<double>> tokens;  ///< wte of each pipeline rank of the first replica; may be empty
  std::vector<comm::ClassStatistics> statistics;
  std::vector<std::string> calls;  ///< calls of rank 0
  std::vector<std::optional<std::uint64_t>> ordinals;
};

/// Trains. A step reads the same sequences in any layout. T is float or double.
template <class T>
TrainingResult train(const Training& run);

/// Expects the losses, norms and weights of one rank that computes all sequences of a step at once, up to a relative
/// error.
template <class T>
void expect_equal_to_one_rank(const Training& many, double bound);

/// Expects that all replicas of `got` equal the first replica of `want`, bit for bit.
void expect_equal_bits(const TrainingResult& got, const TrainingResult& want);

/// A layout, for the name of a parameterised test.
struct TrainingCase {
  const char* name;
  Training run;
};
void PrintTo(const TrainingCase& item, std::ostream* out);

}  // namespace droptest::models
