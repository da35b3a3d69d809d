// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/batch.h"

#include <algorithm>
#include <string>

#include "models/kernels/cross_entropy.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

enum class Ignored : std::uint8_t { kRefused, kTaken };

/// `wanted` is the beginning of the text of the allowed range, such as "a token in [0, vocabulary"; `count` is its end.
void check_tokens(std::span<const std::int32_t> tokens, const char* what, int count, const char* wanted,
                  Ignored ignored) {
  const bool taken = ignored == Ignored::kTaken;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (taken && tokens[i] == kIgnoredTarget) continue;
    if (tokens[i] < 0 || tokens[i] >= count) {
      throw ConfigError(std::string("GPT-2 forward: ") + what + "[" + std::to_string(i) + "]: got " +
                        std::to_string(tokens[i]) + ", want " + wanted + " = " + std::to_string(count) + ")" +
                        (taken ? " or " + std::to_string(kIgnoredTarget) + ", which is ignored" : ""));
    }
  }
}

}  // namespace

void check_batch(const MicroBatch& batch, const Gpt2Config& config) {
  const auto& [tokens, targets, shape, documents] = batch;
  const std::int64_t rows = shape.rows();
  if (shape.batch < 1 || shape.length < 1 || shape.length > config.context) {
    throw ConfigError(
        "GPT-2 forward: got batch " + std::to_string(shape.batch) + " of length " + std::to_string(shape.length) +
        ", want a batch of at least 1 and a length in [1, context = " + std::to_string(config.context) + "]");
  }
  if (shape.first_position < 0 || shape.first_position > config.context - shape.length) {
    throw ConfigError("GPT-2 forward: got " + std::to_string(shape.length) + " positions from " +
                      std::to_string(shape.first_position) +
                      " on, want them in [0, context = " + std::to_string(config.context) + ")");
  }
  if (static_cast<std::int64_t>(tokens.size()) != rows || static_cast<std::int64_t>(targets.size()) != rows) {
    throw ConfigError("GPT-2 forward: got " + std::to_string(tokens.size()) + " tokens and " +
                      std::to_string(targets.size()) + " targets, want batch x length = " + std::to_string(rows));
  }
  if (!documents.empty() && documents.size() != tokens.size()) {
    throw ConfigError("GPT-2 forward: got " + std::to_string(documents.size()) + " numbers of documents, want " +
                      std::to_string(tokens.size()) + ", one for each token");
  }
  constexpr const char* kToken = "a token in [0, vocabulary";
  check_tokens(tokens, "tokens", config.vocabulary, kToken, Ignored::kRefused);
  check_tokens(targets, "targets", config.outputs(), config.classifies() ? "a class in [0, classes" : kToken,
               Ignored::kTaken);
}

std::int64_t count_targets(std::span<const std::int32_t> targets) {
  return static_cast<std::int64_t>(targets.size()) - std::count(targets.begin(), targets.end(), kIgnoredTarget);
}

double weigh_targets(std::span<const std::int32_t> targets, std::span<const double> weights) {
  if (weights.empty()) return static_cast<double>(count_targets(targets));
  double sum = 0;
  for (const std::int32_t target : targets) {
    if (target != kIgnoredTarget) sum += weights[static_cast<std::size_t>(target)];
  }
  return sum;
}

}  // namespace droptest::models
