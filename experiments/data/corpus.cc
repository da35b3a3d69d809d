// SPDX-License-Identifier: Apache-2.0
#include "experiments/data/corpus.h"

#include <algorithm>
#include <cmath>

#include "sim/error.h"
#include "sim/random/philox.h"

namespace droptest::experiments {
namespace {

/// Appends the sequence that starts at `start` and its targets.
void append_sequence(const Tokens& tokens, std::uint64_t start, int length, Batch& batch) {
  std::vector<std::int32_t> read(static_cast<std::size_t>(length) + 1);
  tokens.read(start, read);
  for (const std::uint64_t place : tokens.files_in(start, static_cast<std::uint64_t>(length))) {
    if (place > start) batch.shard_begins.push_back(batch.tokens.size() + static_cast<std::size_t>(place - start));
  }
  batch.tokens.insert(batch.tokens.end(), read.begin(), read.end() - 1);
  batch.targets.insert(batch.targets.end(), read.begin() + 1, read.end());
  ++batch.sequences;
}

/// Uniform in [0, range): the high word of a 64-bit draw times the range, so at most 2^-40 off for any corpus.
std::uint64_t uniform_below(sim::PhiloxEngine& engine, std::uint64_t range) {
  const std::uint64_t high = engine();
  const std::uint64_t draw = (high << 32) | engine();
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(draw) * range) >> 64);
}

}  // namespace

TrainingBatches::TrainingBatches(const Tokens& tokens, std::uint64_t seed, int sequences, int length)
    : tokens_(tokens), seed_(seed), sequences_(sequences), length_(length) {
  if (tokens.size() < static_cast<std::size_t>(length) + 1) {
    throw ConfigError("training data: " + std::to_string(tokens.size()) + " tokens, want at least " +
                      std::to_string(length + 1) + " (one sequence and its last target)");
  }
}

Batch TrainingBatches::batch(std::uint64_t step, int micro_batch) const {
  constexpr std::uint64_t kDrawsPerSequence = 2;
  sim::PhiloxEngine engine(seed_, sim::Purpose::kBatches, step);
  engine.seek(kDrawsPerSequence * static_cast<std::uint64_t>(micro_batch) * static_cast<std::uint64_t>(sequences_));
  Batch batch;
  batch.length = length_;
  batch.step = step;
  batch.first_sample = std::int64_t{micro_batch} * sequences_;
  const std::uint64_t starts = tokens_.size() - static_cast<std::uint64_t>(length_);
  for (int i = 0; i < sequences_; ++i) append_sequence(tokens_, uniform_below(engine, starts), length_, batch);
  return batch;
}

EvaluationBatches::EvaluationBatches(const Tokens& tokens, std::uint64_t count_targets, int sequences, int length)
    : tokens_(tokens), count_targets_(count_targets), sequences_(sequences), length_(length) {
  if (count_targets == 0 || count_targets >= tokens.size()) {
    throw ConfigError("evaluation data: " + std::to_string(tokens.size()) + " tokens, want at least " +
                      std::to_string(std::max<std::uint64_t>(count_targets, 1) + 1));
  }
}

std::vector<std::int32_t> documents_of(const Batch& batch, std::int32_t end_of_text) {
  std::vector<std::int32_t> documents;
  documents.reserve(batch.tokens.size());
  std::int32_t document = 0;
  auto begin = batch.shard_begins.begin();
  for (const std::int32_t token : batch.tokens) {
    if (documents.size() % static_cast<std::size_t>(batch.length) == 0) document = 0;
    if (begin != batch.shard_begins.end() && *begin == documents.size()) {
      ++document;
      ++begin;
    }
    documents.push_back(document);
    if (token == end_of_text) ++document;
  }
  return documents;
}

std::uint64_t EvaluationBatches::batches() const {
  const std::uint64_t length = static_cast<std::uint64_t>(length_);
  const std::uint64_t sequences = static_cast<std::uint64_t>(sequences_);
  const std::uint64_t whole = count_targets_ / length;
  return (whole + sequences - 1) / sequences + (count_targets_ % length != 0 ? 1 : 0);
}

Batch EvaluationBatches::batch(std::uint64_t index) const {
  const std::uint64_t length = static_cast<std::uint64_t>(length_);
  const std::uint64_t whole = count_targets_ / length;
  const std::uint64_t first = index * static_cast<std::uint64_t>(sequences_);
  Batch batch;
  if (first >= whole) {
    // The rest is a batch of its own: sequences of one batch have one length.
    batch.length = static_cast<int>(count_targets_ % length);
    append_sequence(tokens_, whole * length, batch.length, batch);
    return batch;
  }
  batch.length = length_;
  const std::uint64_t end = std::min(whole, first + static_cast<std::uint64_t>(sequences_));
  for (std::uint64_t s = first; s < end; ++s) append_sequence(tokens_, s * length, length_, batch);
  return batch;
}

Corpus split_corpus(const Tokens& tokens, double validation_fraction, std::uint64_t training_needs,
                    std::uint64_t validation_needs, const std::string& where) {
  const auto validation_size =
      static_cast<std::uint64_t>(std::llround(validation_fraction * static_cast<double>(tokens.size())));
  const std::uint64_t training_size = tokens.size() - validation_size;
  if (training_size < training_needs || validation_size < validation_needs) {
    const char* part = training_size < training_needs ? "training" : "validation";
    const std::uint64_t got = training_size < training_needs ? training_size : validation_size;
    const std::uint64_t need = training_size < training_needs ? training_needs : validation_needs;
    const double share = training_size < training_needs ? 1 - validation_fraction : validation_fraction;
    const auto file_need = static_cast<std::uint64_t>(std::ceil(static_cast<double>(need) / share));
    throw ConfigError(where + ": " + std::to_string(tokens.size()) + " tokens leave " + std::to_string(got) + " for " +
                      part + ", want at least " + std::to_string(need) + ": a file of about " +
                      std::to_string(file_need) + " tokens, or another " +
                      (need == training_needs ? "/training/sequence_tokens" : "/validation/tokens") +
                      " or /data/validation_fraction");
  }
  return {tokens.part(0, training_size), tokens.part(training_size, validation_size)};
}

}  // namespace droptest::experiments
