// SPDX-License-Identifier: Apache-2.0
// Labelled sequences in tokens, and the batches that training and evaluation read from them (docs/classification.md).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "experiments/data/corpus.h"
#include "experiments/data/example_config.h"
#include "experiments/data/example_file.h"

namespace droptest::experiments {

/// Thread safety: const.
struct ExampleSet {
  std::vector<std::vector<std::int32_t>> tokens;  ///< tokens of each example, at least one
  std::vector<std::int32_t> labels;               ///< label of each example: a place in ExampleConfig::labels
  std::uint64_t cut = 0;                          ///< examples that were longer than a sequence

  std::uint64_t size() const { return labels.size(); }
  /// Number of examples of each class. Shapes: [classes].
  std::vector<std::uint64_t> counts(std::size_t classes) const;
};

struct ExampleSets {
  ExampleSet training, validation;
};

/// Rows as tokens and numbers of labels; the tokens of a text are its bytes. An example of more than `longest` tokens
/// loses the last ones, or is refused, as the config says. Throws: ConfigError that names file, line and reason, for a
/// label that is none of the config's, a token that is not below `vocabulary`, and a text if `vocabulary` is below 256.
ExampleSet make_examples(const std::vector<ExampleRow>& rows, const std::string& path, const ExampleConfig& config,
                         int vocabulary, int longest);

/// Both sets of the config's files: the validation file, or the last round(fraction x examples) of the training file.
/// Throws: ConfigError as above, and for a set without an example of a label, or without any.
ExampleSets load_examples(const ExampleConfig& config, double validation_fraction, int vocabulary, int longest);

/// Number of examples of load_examples() to train on. Throws: ConfigError if their file cannot be read.
std::uint64_t count_training_examples(const ExampleConfig& config, double validation_fraction);

/// A batch of these examples, each padded behind its last token. The label is the target at the last token of the
/// example (GPT2ForSequenceClassification's rule); all other targets are ignored. A number that is no example's gives a
/// sequence of padding without a target. Attention is causal, so padding changes nothing in front of it.
Batch batch_of(const ExampleSet& examples, std::span<const std::uint64_t> numbers, int length);
inline constexpr std::uint64_t kNoExample = ~std::uint64_t{0};

/// Each example once, in the order of the file. Thread safety: const.
class EvaluationExamples final : public EvaluationData {
 public:
  /// `examples` are borrowed.
  EvaluationExamples(const ExampleSet& examples, int sequences, int length)
      : examples_(examples), sequences_(sequences), length_(length) {}

  std::uint64_t count_targets() const override { return examples_.size(); }
  std::uint64_t batches() const override;
  /// All batches have one shape: behind the last example, sequences have no target.
  Batch batch(std::uint64_t index) const override;

 private:
  const ExampleSet& examples_;
  int sequences_;
  int length_;
};

}  // namespace droptest::experiments
