// SPDX-License-Identifier: Apache-2.0
// A few steps of a small model on the ranks of any layout, and comparisons of their results.
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

/// 4 chunks of parameters fit into a bucket of 2^17 bytes of doubles, so there are several of them.
ShardOptions small_buckets(int zero, ShardOptions::Reduce reduce = ShardOptions::Reduce::kAfterLast);

struct Training {
  static constexpr int kLength = 9;
  static constexpr double kMaxNorm = 0.5;  ///< gradients are clipped to it, and are larger
  Gpt2Config config{4, 32, 4, 12, 97};
  int pipeline = 1;
  int chunks = 1;
  ScheduleKind kind = ScheduleKind::kOneForwardOneBackward;
  int data = 1;
  int tensor = 1;
  int micro_batches = 1;      ///< of each data-parallel rank
  int sequences = 1;          ///< of a micro-batch
  int length = kLength;       ///< tokens of a sequence
  bool documents = false;     ///< a sequence has several, of 4 tokens or fewer
  std::vector<int> layers{};  ///< of each stage; empty: equal numbers
  ShardOptions sharding{};
  bool ignores = false;        ///< targets, more on some ranks than on others
  const char* file = nullptr;  ///< of torch's schedules, in place of `kind`
  int steps = 5;
  OptimizerConfig optimizer{.epsilon = 1e-3};
  UpdateRule::Norm norm = UpdateRule::Norm::kAgreed;
  double loss_rate = 0;  ///< of activations and their gradients between stages
  /// Of both halves of the collectives over tensor-parallel ranks. Negative: no loss layer.
  double tensor_loss_rate = -1;
  SentPast sent_past{};  ///< and the fill `skip` there
  /// In place of the rate: the losses in pp_activation and in pp_gradient.
  std::vector<std::shared_ptr<const sim::LossProcess>> losses{};
  std::vector<int> identities{};  ///< blocks whose output is their input: their last weights are zero
  double max_norm = kMaxNorm;
  SlotOptions memory{};  ///< `recompute` of one policy holds for all blocks
  bool records = false;  ///< messages of the pipeline; its calls are then blocking
  /// What the data-parallel group is wrapped in; empty: nothing.
  std::function<std::unique_ptr<comm::Communicator>(comm::Communicator&)> data_wire{};
  /// One replica of `data` alone, on its part of the batches.
  std::optional<int> alone{};
};

PipelineSchedule schedule_of(const Training& run);

struct TrainingResult {
  std::vector<StepResult> steps;
  double evaluation = 0;  ///< of the first sequence, without loss
  std::vector<Tensors> of_replica;
  std::uint64_t bytes = 0;                  ///< Gpt2::memory_bytes() of rank 0
  std::vector<int> most_in_flight;          ///< of each pipeline rank
  std::vector<std::vector<double>> tokens;  ///< wte of each pipeline rank of the first replica; may be empty
  std::vector<comm::ClassStatistics> statistics;
  std::vector<std::string> calls;  ///< of rank 0
  std::vector<std::optional<std::uint64_t>> ordinals;
};

/// Whatever the layout is, a step reads the same sequences. T is float or double.
template <class T>
TrainingResult train(const Training& run);

/// Losses, norms and weights of one rank that computes all sequences of a step at once, to a relative error.
template <class T>
void expect_equal_to_one_rank(const Training& many, double bound);

/// All replicas of `got` are the first one of `want`, bit for bit.
void expect_equal_bits(const TrainingResult& got, const TrainingResult& want);

/// A layout among the parameters of a test.
struct TrainingCase {
  const char* name;
  Training run;
};
void PrintTo(const TrainingCase& item, std::ostream* out);

}  // namespace droptest::models
