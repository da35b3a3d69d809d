// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/example_set.h"

#include <algorithm>
#include <cmath>

#include "models/kernels/cross_entropy.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

constexpr std::int32_t kPadding = 0;  ///< any token: nothing reads it

std::vector<std::int32_t> bytes_as_tokens(const std::string& text) {
  std::vector<std::int32_t> tokens;
  tokens.reserve(text.size());
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

std::string names_in_short(const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 20;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) text += (i == 0 ? "" : ", ") + names[i];
  return text + (names.size() > kMost ? ", ..." : "");
}

}  // namespace

std::vector<std::uint64_t> ExampleSet::counts(std::size_t classes) const {
  std::vector<std::uint64_t> counts(classes);
  for (const std::int32_t label : labels) ++counts[static_cast<std::size_t>(label)];
  return counts;
}

ExampleSet make_examples(const std::vector<ExampleRow>& rows, const std::string& path, const ExampleConfig& config,
                         int vocabulary, int longest) {
  ExampleSet set;
  for (const ExampleRow& row : rows) {
    const auto fail = [&](const std::string& what) {
      throw ConfigError(path + ": line " + std::to_string(row.line) + ": " + what);
    };
    const auto label = std::find(config.labels.begin(), config.labels.end(), row.label);
    if (label == config.labels.end()) fail("label \"" + row.label + "\", want one of " + names_in_short(config.labels));
    if (row.tokens.empty() && vocabulary < 256) {
      fail("the tokens of a text are its bytes: want a vocabulary of at least 256, got " + std::to_string(vocabulary));
    }
    std::vector<std::int32_t> tokens = row.tokens.empty() ? bytes_as_tokens(row.text) : row.tokens;
    for (const std::int32_t token : tokens) {
      if (token < vocabulary) continue;
      fail("token " + std::to_string(token) + ", want tokens below the model's vocabulary of " +
           std::to_string(vocabulary));
    }
    if (tokens.size() > static_cast<std::size_t>(longest)) {
      if (config.too_long == ExampleConfig::TooLong::kRefused) {
        fail(std::to_string(tokens.size()) + " tokens, want at most " + std::to_string(longest) +
             " (/training/sequence_tokens), or /data/too_long \"cut\"");
      }
      tokens.resize(static_cast<std::size_t>(longest));
      ++set.cut;
    }
    set.labels.push_back(static_cast<std::int32_t>(label - config.labels.begin()));
    set.tokens.push_back(std::move(tokens));
  }
  return set;
}

namespace {

/// Number of examples in a file that are kept for validation.
std::uint64_t held_out_examples(const ExampleConfig& config, double validation_fraction, std::uint64_t examples) {
  if (!config.validation.empty()) return 0;
  return static_cast<std::uint64_t>(std::llround(validation_fraction * static_cast<double>(examples)));
}

}  // namespace

std::uint64_t count_training_examples(const ExampleConfig& config, double validation_fraction) {
  const std::uint64_t examples = read_examples(config.training, config.layout, config.separator).size();
  return examples - held_out_examples(config, validation_fraction, examples);
}

ExampleSets load_examples(const ExampleConfig& config, double validation_fraction, int vocabulary, int longest) {
  std::vector<ExampleRow> training = read_examples(config.training, config.layout, config.separator);
  std::vector<ExampleRow> validation;
  const std::string& validation_file = config.validation.empty() ? config.training : config.validation;
  if (config.validation.empty()) {
    const auto count = static_cast<std::ptrdiff_t>(held_out_examples(config, validation_fraction, training.size()));
    validation.assign(std::make_move_iterator(training.end() - count), std::make_move_iterator(training.end()));
    training.resize(training.size() - static_cast<std::size_t>(count));
  } else {
    validation = read_examples(config.validation, config.layout, config.separator);
  }
  ExampleSets sets{make_examples(training, config.training, config, vocabulary, longest),
                   make_examples(validation, validation_file, config, vocabulary, longest)};
  if (sets.training.size() == 0 || sets.validation.size() == 0) {
    throw ConfigError(config.training + ": " + std::to_string(sets.training.size() + sets.validation.size()) +
                      " examples leave none for " + (sets.training.size() == 0 ? "training" : "validation") +
                      "; want another /data/validation_fraction, or /data/validation_examples");
  }
  const auto require_all = [&](const ExampleSet& set, const std::string& path, const std::string& purpose) {
    const std::vector<std::uint64_t> counts = set.counts(config.labels.size());
    const auto lacking = std::find(counts.begin(), counts.end(), 0);
    if (lacking == counts.end()) return;
    throw ConfigError(path + ": no example to " + purpose + " on has the label \"" +
                      config.labels[static_cast<std::size_t>(lacking - counts.begin())] +
                      "\"; want one at least of each of " + names_in_short(config.labels) +
                      (config.validation.empty()
                           ? ": the last part of the file validates, so its lines must be in no order of labels"
                           : ""));
  };
  require_all(sets.training, config.training, "train");
  require_all(sets.validation, validation_file, "validate");
  return sets;
}

Batch batch_of(const ExampleSet& examples, std::span<const std::uint64_t> numbers, int length) {
  Batch batch;
  batch.length = length;
  for (const std::uint64_t number : numbers) {
    const auto begin = static_cast<std::size_t>(batch.sequences++) * static_cast<std::size_t>(length);
    batch.tokens.resize(begin + static_cast<std::size_t>(length), kPadding);
    batch.targets.resize(begin + static_cast<std::size_t>(length), models::kIgnoredTarget);
    if (number == kNoExample) continue;
    const std::vector<std::int32_t>& tokens = examples.tokens[number];
    std::copy(tokens.begin(), tokens.end(), batch.tokens.begin() + static_cast<std::ptrdiff_t>(begin));
    batch.targets[begin + tokens.size() - 1] = examples.labels[number];
  }
  return batch;
}

std::uint64_t EvaluationExamples::batches() const {
  const auto sequences = static_cast<std::uint64_t>(sequences_);
  return (examples_.size() + sequences - 1) / sequences;
}

Batch EvaluationExamples::batch(std::uint64_t index) const {
  std::vector<std::uint64_t> numbers;
  for (int i = 0; i < sequences_; ++i) {
    const std::uint64_t number = index * static_cast<std::uint64_t>(sequences_) + static_cast<std::uint64_t>(i);
    numbers.push_back(number < examples_.size() ? number : kNoExample);
  }
  return batch_of(examples_, numbers, length_);
}

}  // namespace droptest::experiments
