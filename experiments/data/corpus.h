// SPDX-License-Identifier: Apache-2.0
// The tokens of an experiment, split by position, and the batches that training and evaluation read from them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "experiments/data/sharded_data.h"
#include "experiments/data/token_source.h"

namespace droptest::experiments {

/// Inputs and, one position later, targets. Shapes: both [sequences, length].
struct Batch {
  int sequences = 0;
  int length = 0;
  std::vector<std::int32_t> tokens;
  std::vector<std::int32_t> targets;
  std::uint64_t step = 0;           ///< training step
  std::int64_t first_sample = 0;    ///< number of the first sequence in the global batch of the step
  std::int64_t first_position = 0;  ///< position of each sequence's first token in its sequence
  /// Places in `tokens`, in increasing order, at which another shard begins than the one of the token before.
  std::vector<std::size_t> shard_begins{};
};

/// The number of each token's document in its sequence. A document ends with `end_of_text`, or with its shard. Shapes:
/// as the tokens.
std::vector<std::int32_t> documents_of(const Batch& batch, std::int32_t end_of_text);

/// The sequences of each training step: a pure function of (seed, step, place in the step). Micro-batches continue one
/// stream of sequences, so that 2 x 4 sequences are the same text as 1 x 8. Thread safety: const.
class TrainingBatches {
 public:
  /// Throws: ConfigError if the tokens are fewer than a sequence and its last target.
  TrainingBatches(const Tokens& tokens, std::uint64_t seed, int sequences, int length);

  /// Micro-batch `micro_batch` of step `step`. Determinism: the same on every rank. Throws: as Tokens::read().
  Batch batch(std::uint64_t step, int micro_batch) const;

 private:
  Tokens tokens_;
  std::uint64_t seed_;
  int sequences_;
  int length_;
};

/// Batches that a model is evaluated on: the same at each evaluation. Thread safety: const.
class EvaluationData {
 public:
  virtual ~EvaluationData() = default;
  /// Number of targets that are not ignored, over all batches.
  virtual std::uint64_t count_targets() const = 0;
  virtual std::uint64_t batches() const = 0;
  /// Batch `index` < batches().
  virtual Batch batch(std::uint64_t index) const = 0;
};

/// Consecutive sequences that predict each token once. Thread safety: const.
class EvaluationBatches final : public EvaluationData {
 public:
  /// The first `count_targets` tokens after the first one are predicted, in sequences of `length`; the last sequence
  /// may be shorter. Throws: ConfigError unless 1 <= count_targets < tokens.size().
  EvaluationBatches(const Tokens& tokens, std::uint64_t count_targets, int sequences, int length);

  std::uint64_t count_targets() const override { return count_targets_; }
  std::uint64_t batches() const override;
  /// All batches but the last two are full. Throws: as Tokens::read().
  Batch batch(std::uint64_t index) const override;

 private:
  Tokens tokens_;
  std::uint64_t count_targets_;
  int sequences_;
  int length_;
};

struct ExampleSets;

struct Corpus {
  Tokens training;  ///< empty if the data is in shards, or labelled examples
  Tokens validation;
  std::shared_ptr<const ShardedData> shards = nullptr;    ///< shared by the ranks of a process; null: one file
  std::shared_ptr<const ExampleSets> examples = nullptr;  ///< shared by the ranks of a process; null: tokens
};

/// Splits the tokens: the last round(fraction x size) of them validate. `where` names the file in messages.
/// Throws: ConfigError, with the tokens needed, if a part is shorter than `training_needs` or `validation_needs`.
Corpus split_corpus(const Tokens& tokens, double validation_fraction, std::uint64_t training_needs,
                    std::uint64_t validation_needs, const std::string& where);

}  // namespace droptest::experiments
