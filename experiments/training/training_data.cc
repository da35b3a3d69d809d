// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/training_data.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "comm/json/json_text.h"
#include "comm/rank_agreement.h"
#include "experiments/data/example_set.h"
#include "experiments/data/read_ahead.h"
#include "experiments/data/sample_plan.h"
#include "experiments/data/shard_list.h"
#include "experiments/files/crc32c.h"
#include "experiments/spec/run_traffic.h"
#include "models/kernels/cross_entropy.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// Requests under way: the samples of the current step and of two more.
constexpr std::size_t kRequestsAhead = 3;

/// The state of data in shards.
struct ShardProgress {
  std::uint64_t fingerprint = 0;  ///< fingerprint of the samples and their order
  std::uint64_t position = 0;
  std::uint64_t lost_samples = 0;
  std::vector<LostShard> lost;
  void visit_state(sim::StateVisitor& visitor) { visit_values(visitor, fingerprint, position, lost_samples, lost); }
};

std::uint64_t step_sequences(const RunConfig& config, const ReplicaShare& share) {
  return global_batch_sequences(config) / static_cast<std::uint64_t>(config.parallel.data) *
         static_cast<std::uint64_t>(share.replicas);
}

/// Sequences at random places of one file.
class RandomPlaces final : public TrainingData {
 public:
  RandomPlaces(const RunConfig& config, const Corpus& corpus, std::function<ReplicaShare(std::uint64_t)> share_of)
      : config_(config),
        batches_(corpus.training, config.seeds.data, config.training.batch_sequences, config.training.sequence_tokens),
        share_of_(std::move(share_of)) {}

  StepData take(std::uint64_t step) override {
    StepData data;
    const ReplicaShare share = share_of_(step);
    data.sequences = step_sequences(config_, share);
    if (!share.own) return data;
    // Replicas take micro-batches in turn: equal global batches are the same text.
    for (int m = 0; m < config_.training.accumulation; ++m) {
      data.micro_batches.push_back(batches_.batch(step, m * share.replicas + *share.own));
    }
    return data;
  }
  std::optional<std::uint64_t> steps_left() const override { return std::nullopt; }
  void visit_state(sim::StateVisitor& visitor) override {
    bool in_shards = false;
    visit_value(visitor, in_shards);
    if (in_shards) ShardProgress{}.visit_state(visitor);
  }
  std::optional<DataRecord> record() const override { return std::nullopt; }

 private:
  const RunConfig& config_;
  TrainingBatches batches_;
  std::function<ReplicaShare(std::uint64_t)> share_of_;
};

/// Training data in shards: each sample comes once in an epoch.
class ShardedSamples final : public TrainingData {
 public:
  ShardedSamples(const RunConfig& config, std::shared_ptr<const ShardedData> data, comm::Communicator& group,
                 std::function<ReplicaShare(std::uint64_t)> share_of, std::function<void(const LostShard&)> on_lost)
      : config_(config),
        group_(group),
        share_of_(std::move(share_of)),
        on_lost_(std::move(on_lost)),
        data_(std::move(data)),
        plan_(plan_rules(config), data_->table().samples(), global_batch_sequences(config)),
        reader_(data_, group.rank()),
        is_lost_(data_->table().files().size(), 0) {
    progress_.fingerprint = fingerprint();
  }

  StepData take(std::uint64_t step) override {
    if (!begun_) begin(step);
    const std::uint64_t sequences = step_sequences(config_, share_of_(step));
    const std::uint64_t first = plan_.begin(progress_.position, sequences);
    while (ahead_ < kRequestsAhead) request();
    ReadSamples read = reader_.take();
    --ahead_;
    read.failures.insert(read.failures.begin(), std::make_move_iterator(found_first_.begin()),
                         std::make_move_iterator(found_first_.end()));
    found_first_.clear();
    agree(read.failures, step);
    progress_.position = first + sequences;
    StepData data;
    for (std::uint64_t k = 0; k < sequences; ++k) {
      const std::optional<std::uint64_t> sample = plan_.sample(first + k);
      if (!sample) continue;
      ++(is_lost(*sample) ? progress_.lost_samples : data.sequences);
    }
    data.micro_batches = batches(own_samples(first, step), read, step);
    return data;
  }

  std::optional<std::uint64_t> steps_left() const override { return plan_.steps_left(progress_.position); }

  void visit_state(sim::StateVisitor& visitor) override {
    bool in_shards = true;
    visit_value(visitor, in_shards);
    if (!in_shards) return;
    ShardProgress progress = progress_;
    progress.visit_state(visitor);
    if (visitor.turn() == sim::StateVisitor::Turn::kRestore && progress.fingerprint == fingerprint()) {
      progress_ = std::move(progress);
    }
  }

  std::optional<DataRecord> record() const override {
    // The last step of the last epoch may reach beyond it.
    const std::uint64_t epochs = config_.training.epochs;
    const std::uint64_t position =
        epochs == 0 ? progress_.position : std::min(progress_.position, epochs * plan_.samples());
    return DataRecord{data_->table().files().size(), plan_.samples(), position, progress_.lost_samples, progress_.lost};
  }

 private:
  static SamplePlan::Rules plan_rules(const RunConfig& config) {
    return {config.seeds.data, config.data.shards->order, config.training.last_batch, config.training.epochs};
  }

  std::uint64_t fingerprint() const {
    const auto order = static_cast<std::uint64_t>(config_.data.shards->order);
    return (std::uint64_t{data_->table().fingerprint()} << 1U | order) ^ config_.seeds.data << 33U;
  }

  bool is_lost(std::uint64_t sample) const { return is_lost_[data_->table().place(sample).shard] != 0; }

  /// Applies the restored state, and the failures that were found when the shards were opened.
  void begin(std::uint64_t step) {
    begun_ = true;
    next_step_ = step;
    next_request_ = progress_.position;
    for (const LostShard& lost : progress_.lost) leave_out(static_cast<std::size_t>(lost.shard));
    found_first_ = data_->damaged();
    for (const ShardFailure& failure : found_first_) reader_.set_aside(failure.shard);
  }

  void leave_out(std::size_t shard) {
    is_lost_[shard] = 1;
    reader_.set_aside(shard);
  }

  /// The samples of this rank's micro-batches. Replicas take micro-batches in turn.
  SampleRequest own_samples(std::uint64_t first, std::uint64_t step) const {
    const TrainingConfig& training = config_.training;
    const ReplicaShare share = share_of_(step);
    SampleRequest samples;
    if (!share.own) return samples;
    for (int m = 0; m < training.accumulation; ++m) {
      const auto micro_batch = static_cast<std::uint64_t>(m * share.replicas + *share.own);
      for (int i = 0; i < training.batch_sequences; ++i) {
        const auto sequences = static_cast<std::uint64_t>(training.batch_sequences);
        samples.push_back(plan_.sample(first + micro_batch * sequences + static_cast<std::uint64_t>(i)));
      }
    }
    return samples;
  }

  void request() {
    const std::uint64_t sequences = step_sequences(config_, share_of_(next_step_));
    const std::uint64_t first = plan_.begin(next_request_, sequences);
    reader_.request(own_samples(first, next_step_));
    next_request_ = first + sequences;
    ++next_step_;
    ++ahead_;
  }

  /// All ranks set the same shards aside before the same step. Ranks: all.
  void agree(const std::vector<ShardFailure>& own, std::uint64_t step) {
    nlohmann::json failures = nlohmann::json::array();
    for (const ShardFailure& failure : own) failures.push_back({failure.shard, failure.error});
    const std::string text = own.empty() ? "" : failures.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    for (const std::string& of_rank : comm::gather_texts(text, group_, "failed shards")) {
      if (of_rank.empty()) continue;
      for (const nlohmann::json& failure : comm::parse_json(of_rank, "failed shards")) {
        const auto shard = failure.at(0).get<std::size_t>();
        if (is_lost_[shard] == 0) lose(shard, failure.at(1), step);
      }
    }
  }

  void lose(std::size_t shard, const std::string& error, std::uint64_t step) {
    leave_out(shard);
    const SampleTable& table = data_->table();
    progress_.lost.push_back({table.files()[shard].file, shard, table.samples_of(shard), step, error});
    std::uint64_t samples = 0;
    for (const LostShard& lost : progress_.lost) samples += lost.samples;
    if (static_cast<double>(samples) <= data_->lost_limit() * static_cast<double>(table.samples())) {
      if (group_.rank() == 0) on_lost_(progress_.lost.back());
      return;
    }
    throw ConfigError(table.files()[shard].file + ": " + error + "; without it " + std::to_string(samples) + " of " +
                      std::to_string(table.samples()) + " samples are lost, more than /data/lost_limit allows");
  }

  std::vector<Batch> batches(const SampleRequest& samples, const ReadSamples& read, std::uint64_t step) const {
    const TrainingConfig& training = config_.training;
    const auto length = static_cast<std::size_t>(training.sequence_tokens);
    std::vector<Batch> result;
    if (samples.empty()) return result;
    std::size_t i = 0;
    for (int m = 0; m < training.accumulation; ++m) {
      Batch& batch = result.emplace_back();
      batch.sequences = training.batch_sequences;
      batch.length = training.sequence_tokens;
      const ReplicaShare share = share_of_(step);
      batch.step = step;
      batch.first_sample = std::int64_t{m * share.replicas + share.own.value_or(0)} * training.batch_sequences;
      for (int s = 0; s < training.batch_sequences; ++s, ++i) {
        const bool there = samples[i] && !is_lost(*samples[i]);
        const std::vector<std::int32_t>& tokens = read.tokens[i];
        DROPTEST_CHECK(!there || tokens.size() == length + 1, "a sample that was neither read nor lost");
        if (there) {
          batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end() - 1);
          batch.targets.insert(batch.targets.end(), tokens.begin() + 1, tokens.end());
        } else {
          batch.tokens.insert(batch.tokens.end(), length, 0);
          batch.targets.insert(batch.targets.end(), length, models::kIgnoredTarget);
        }
      }
    }
    return result;
  }

  const RunConfig& config_;
  comm::Communicator& group_;
  std::function<ReplicaShare(std::uint64_t)> share_of_;
  std::function<void(const LostShard&)> on_lost_;
  std::shared_ptr<const ShardedData> data_;  ///< shared by the ranks of the process
  SamplePlan plan_;
  ReadAhead reader_;
  ShardProgress progress_;
  std::vector<char> is_lost_;              ///< whether a shard is lost, by shard; the same on every rank
  std::vector<ShardFailure> found_first_;  ///< the failures found when the shards were opened
  bool begun_ = false;
  std::uint64_t next_request_ = 0;  ///< position of the next request
  std::uint64_t next_step_ = 0;     ///< step of the next request
  std::size_t ahead_ = 0;           ///< requests with answers that were not taken yet
};

/// Labelled examples: each one comes once in an epoch.
class LabelledSamples final : public TrainingData {
 public:
  LabelledSamples(const RunConfig& config, std::shared_ptr<const ExampleSets> sets,
                  std::function<ReplicaShare(std::uint64_t)> share_of)
      : config_(config),
        sets_(std::move(sets)),
        share_of_(std::move(share_of)),
        plan_({config.seeds.data, ShardConfig::Order::kShuffled, config.training.last_batch, config.training.epochs},
              sets_->training.size(), global_batch_sequences(config)) {}

  StepData take(std::uint64_t step) override {
    const TrainingConfig& training = config_.training;
    const ReplicaShare share = share_of_(step);
    const std::uint64_t sequences = step_sequences(config_, share);
    const std::uint64_t first = plan_.begin(progress_.position, sequences);
    progress_.position = first + sequences;
    StepData data;
    for (std::uint64_t k = 0; k < sequences; ++k) data.sequences += plan_.sample(first + k) ? 1 : 0;
    if (!share.own) return data;
    const auto of_batch = static_cast<std::uint64_t>(training.batch_sequences);
    for (int m = 0; m < training.accumulation; ++m) {  // replicas take micro-batches in turn
      const auto begin = static_cast<std::uint64_t>(m * share.replicas + *share.own) * of_batch;
      std::vector<std::uint64_t> numbers;
      for (std::uint64_t i = 0; i < of_batch; ++i) {
        numbers.push_back(plan_.sample(first + begin + i).value_or(kNoExample));
      }
      Batch& batch = data.micro_batches.emplace_back(batch_of(sets_->training, numbers, training.sequence_tokens));
      batch.step = step;
      batch.first_sample = static_cast<std::int64_t>(begin);
    }
    return data;
  }
  std::optional<std::uint64_t> steps_left() const override { return plan_.steps_left(progress_.position); }
  void visit_state(sim::StateVisitor& visitor) override {
    bool in_samples = true;
    visit_value(visitor, in_samples);
    if (!in_samples) return;
    progress_.fingerprint = fingerprint();
    ShardProgress progress = progress_;
    progress.visit_state(visitor);
    if (visitor.turn() == sim::StateVisitor::Turn::kRestore && progress.fingerprint == fingerprint()) {
      progress_ = std::move(progress);
    }
  }
  std::optional<DataRecord> record() const override { return std::nullopt; }

 private:
  /// The fingerprint of the examples and their order.
  std::uint64_t fingerprint() const {
    std::uint32_t crc = crc32c(std::as_bytes(std::span(sets_->training.labels)));
    for (const std::vector<std::int32_t>& tokens : sets_->training.tokens) {
      crc = crc32c_continued(crc, std::as_bytes(std::span(tokens)));
    }
    return std::uint64_t{crc} ^ config_.seeds.data << 33U;
  }

  const RunConfig& config_;
  std::shared_ptr<const ExampleSets> sets_;  ///< shared by the ranks of the process
  std::function<ReplicaShare(std::uint64_t)> share_of_;
  SamplePlan plan_;
  ShardProgress progress_;
};

}  // namespace

std::unique_ptr<TrainingData> make_training_data(const RunConfig& config, const Corpus& corpus,
                                                 comm::Communicator& group,
                                                 std::function<ReplicaShare(std::uint64_t)> share_of,
                                                 std::function<void(const LostShard&)> on_lost) {
  if (corpus.examples != nullptr)
    return std::make_unique<LabelledSamples>(config, corpus.examples, std::move(share_of));
  if (corpus.shards == nullptr) return std::make_unique<RandomPlaces>(config, corpus, std::move(share_of));
  return std::make_unique<ShardedSamples>(config, corpus.shards, group, std::move(share_of), std::move(on_lost));
}

std::uint64_t global_batch_sequences(const RunConfig& config) {
  return static_cast<std::uint64_t>(config.parallel.data) * static_cast<std::uint64_t>(config.training.accumulation) *
         static_cast<std::uint64_t>(config.training.batch_sequences);
}

Corpus load_corpus(const RunConfig& config, const FileAccess& access) {
  const std::uint64_t validation_needs = validation_targets(config) + selection_targets(config) + 1;
  if (config.data.examples) {
    Corpus corpus;
    corpus.examples =
        std::make_shared<const ExampleSets>(load_examples(*config.data.examples, config.data.validation_fraction,
                                                          config.model.vocabulary, config.training.sequence_tokens));
    return corpus;
  }
  if (config.data.shards) {
    DataConfig data = config.data;
    list_shards(data);
    Corpus corpus;
    corpus.validation = read_validation_tokens(*data.shards, data.validation_fraction, config.model.vocabulary,
                                               validation_needs, access);
    corpus.shards = std::make_shared<const ShardedData>(
        *data.shards, data.validation_fraction, config.training.sequence_tokens, config.model.vocabulary, access);
    return corpus;
  }
  const Tokens tokens = open_tokens(config.data, config.model.vocabulary);
  const std::string& where = config.data.text.empty() ? config.data.tokens : config.data.text;
  return split_corpus(tokens, config.data.validation_fraction,
                      static_cast<std::uint64_t>(config.training.sequence_tokens) + 1, validation_needs, where);
}

}  // namespace droptest::experiments
