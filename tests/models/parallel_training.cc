// SPDX-License-Identifier: Apache-2.0
#include "tests/models/parallel_training.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <mutex>
#include <ostream>
#include <sstream>
#include <utility>

#include "comm/parallel_layout.h"
#include "models/ops/host_ops.h"
#include "models/pipeline/schedule_csv.h"
#include "sim/loss/bernoulli.h"
#include "tests/comm/recording_communicator.h"

namespace droptest::models {
namespace {

std::shared_ptr<const PipelinePlan> plan_of(const Training& run) {
  auto plan = std::make_shared<PipelinePlan>();
  const PipelineSchedule schedule = schedule_of(run);
  validate(schedule);
  plan->program = make_program(schedule, run.sent_past);
  const int stages = schedule.stages();
  int first = 0;
  for (int s = 0; s < stages; ++s) {
    const int count = run.layers.empty() ? run.config.layers / stages : run.layers[static_cast<std::size_t>(s)];
    plan->stages.push_back({first, first + count, run.config.layers});
    first += count;
  }
  return plan;
}

comm::LossyOptions losing(const Training& run) {
  comm::LossyOptions options;
  const auto give = [&](std::size_t i, sim::TrafficClass of, bool skips) {
    comm::HalfNetwork& gather = options.network.of(of).emplace().gather;
    gather.loss = run.losses.empty() ? std::make_shared<sim::Bernoulli>(run.loss_rate) : run.losses.at(i);
    if (skips) gather.fill = comm::Fill::kSkip;
  };
  if (run.tensor_loss_rate >= 0) {
    for (const sim::TrafficClass of :
         {sim::TrafficClass::kTpForward, sim::TrafficClass::kTpBackward, sim::TrafficClass::kSequenceBackward}) {
      comm::ClassNetwork& network = options.network.of(of).emplace();
      network.payload_bytes = 64;
      for (comm::HalfNetwork* half : {&network.reduce, &network.gather}) {
        half->loss = std::make_shared<sim::Bernoulli>(run.tensor_loss_rate);
      }
    }
    return options;
  }
  give(0, sim::TrafficClass::kPpActivation, run.sent_past.activations);
  give(1, sim::TrafficClass::kPpGradient, run.sent_past.gradients);
  return options;
}

template <class T>
void set_identities(std::span<Parameter<T>> parameters, const std::vector<int>& blocks) {
  for (const int block : blocks) {
    const std::string prefix = "h." + std::to_string(block) + ".";
    for (const Parameter<T>& parameter : parameters) {
      if (!parameter.name.starts_with(prefix) || parameter.name.find("c_proj") == std::string::npos) continue;
      std::ranges::fill(parameter.value, T{0});
    }
  }
}

/// The micro-batches of one data-parallel rank in a step.
class Batches {
 public:
  Batches(const Training& run, int data_rank, int step) : length_(run.length) {
    for (int m = 0; m < run.micro_batches; ++m) {
      const int first = (m * run.data + data_rank) * run.sequences * length_;
      tokens_.push_back(part(run, 2 * static_cast<std::uint64_t>(step), first));
      targets_.push_back(part(run, 2 * static_cast<std::uint64_t>(step) + 1, first));
      documents_.emplace_back();
      for (int i = first; run.documents && i < first + run.sequences * length_; ++i) {
        documents_.back().push_back((i % length_ + i / length_) / 4);
      }
      for (int i = 0; run.ignores && i < static_cast<int>(targets_.back().size()); ++i) {
        const int place = first + i;
        if (place % 5 == 0 || place < length_ - 1) targets_.back()[static_cast<std::size_t>(i)] = kIgnoredTarget;
      }
    }
    if (run.config.classifies()) keep_one_target_of_each(run.config.classes);
    for (std::size_t m = 0; m < tokens_.size(); ++m) {
      const std::int64_t first = (static_cast<std::int64_t>(m) * run.data + data_rank) * run.sequences;
      all_.push_back({tokens_[m],
                      targets_[m],
                      {run.sequences, length_, 0, static_cast<std::uint64_t>(step) + 1, first},
                      documents_[m]});
    }
  }
  Batches(const Batches&) = delete;
  Batches& operator=(const Batches&) = delete;

  const std::vector<MicroBatch>& all() const { return all_; }
  MicroBatch first_sequence() const {
    const auto length = static_cast<std::size_t>(length_);
    return {std::span(tokens_.front()).first(length),
            std::span(targets_.front()).first(length),
            {1, length_},
            std::span(documents_.front()).first(documents_.front().empty() ? 0 : length)};
  }

 private:
  static std::vector<std::int32_t> part(const Training& run, std::uint64_t stream, int first) {
    const std::vector<std::int32_t> whole =
        formula_tokens(stream, run.data * run.micro_batches * run.sequences * run.length, run.config.vocabulary);
    return {whole.begin() + first, whole.begin() + first + run.sequences * run.length};
  }

  /// A class at some token of each sequence, as if the sequence ended there; by what its tokens are, so that it is the
  /// same in any layout.
  void keep_one_target_of_each(int classes) {
    const auto length = static_cast<std::size_t>(length_);
    for (std::size_t m = 0; m < targets_.size(); ++m) {
      std::vector<std::int32_t>& targets = targets_[m];
      for (std::size_t begin = 0; begin < targets.size(); begin += length) {
        const auto label = static_cast<std::int32_t>(targets[begin] % classes);
        const std::size_t last = static_cast<std::size_t>(tokens_[m][begin]) % length;
        std::fill_n(targets.begin() + static_cast<std::ptrdiff_t>(begin), length, kIgnoredTarget);
        targets[begin + last] = label;
      }
    }
  }

  int length_;
  std::vector<std::vector<std::int32_t>> tokens_;
  std::vector<std::vector<std::int32_t>> targets_;
  std::vector<std::vector<std::int32_t>> documents_;
  std::vector<MicroBatch> all_;
};

}  // namespace

ShardOptions small_buckets(int zero, ShardOptions::Reduce reduce) {
  return {.zero = zero,
          .bucket_bytes = std::uint64_t{1} << 17U,
          .first_bucket_bytes = 1,
          .gather_bucket_bytes = std::uint64_t{1} << 16U,
          .reduce = reduce};
}

PipelineSchedule schedule_of(const Training& run) {
  if (run.file == nullptr) return make_schedule(run.kind, run.pipeline, run.chunks, run.micro_batches);
  std::ifstream file(std::string(DROPTEST_VECTORS) + "/pipeline/" + run.file);
  std::stringstream text;
  text << file.rdbuf();
  return schedule_from_csv(text.str(), run.file);
}

SlotOptions memory_of(const Training& run) {
  SlotOptions memory = run.memory;
  if (memory.recompute.size() == 1) {
    memory.recompute.resize(static_cast<std::size_t>(run.config.layers), memory.recompute.front());
  }
  return memory;
}

template <class T>
TrainingResult train(const Training& run) {
  TrainingResult result;
  const int sequence_ranks = run.config.attention.sequence.ranks();
  result.of_replica.resize(static_cast<std::size_t>(run.data * sequence_ranks));
  result.most_in_flight.resize(static_cast<std::size_t>(run.pipeline));
  result.tokens.resize(static_cast<std::size_t>(run.pipeline));
  std::mutex mutex;
  comm::ParallelLayout layout;
  layout.pipeline = run.pipeline;
  layout.data = run.alone ? 1 : run.data;
  layout.tensor = run.tensor;
  layout.sequence = sequence_ranks;
  comm::run_ranks(layout.world_size(), kTestTimeout, [&](comm::Communicator& plain) {
    std::optional<comm::LossyCommunicator> lossy;
    if (run.loss_rate > 0 || !run.losses.empty() || run.tensor_loss_rate >= 0) lossy.emplace(plain, losing(run));
    comm::Communicator& world = lossy ? *lossy : plain;
    const comm::ParallelGroups groups(layout, world);
    const std::unique_ptr<comm::Communicator> alone = world.split(world.rank(), 0);
    comm::Communicator* const shared = groups.group(comm::ParallelDimension::kTensor);
    comm::Communicator& tensor = shared == nullptr ? *alone : *shared;
    ModelRanks ranks;
    ranks.data.group = groups.gradient_group();
    std::unique_ptr<comm::Communicator> wire;
    if (run.data_wire && ranks.data.group != nullptr) wire = run.data_wire(*ranks.data.group);
    if (wire != nullptr) ranks.data.group = wire.get();
    ranks.data.sharding = run.sharding;
    ranks.data.sharding.micro_batches = run.micro_batches;
    ranks.data_stride = layout.stride(comm::ParallelDimension::kData);
    ranks.sequence = {groups.group(comm::ParallelDimension::kSequence),
                      layout.stride(comm::ParallelDimension::kSequence)};
    ranks.pipeline.group = groups.group(comm::ParallelDimension::kPipeline);
    std::unique_ptr<comm::RecordingCommunicator> recorder;
    if (run.records) recorder = std::make_unique<comm::RecordingCommunicator>(*ranks.pipeline.group);
    if (run.records) ranks.pipeline.group = recorder.get();
    ranks.pipeline.stride = layout.stride(comm::ParallelDimension::kPipeline);
    if (run.file != nullptr || run.pipeline * run.chunks > 1) ranks.pipeline.plan = plan_of(run);
    ranks.all = &world;
    Gpt2 model(run.config, make_host_ops({.type = comm::element_type_of<T>()}, tensor), run.optimizer, memory_of(run),
               ranks);
    set_formula_weights<T>(run.config, model.template parameters<T>(), tensor);
    set_identities(model.template parameters<T>(), run.identities);
    model.upload_values();
    TrainingStep step(model, run.max_norm, run.norm);
    const int data_rank = run.alone.value_or(groups.coordinates().data);
    for (int s = 0; s < run.steps; ++s) {
      world.begin_step(static_cast<std::uint64_t>(s) + 1);
      const Batches batches(run, data_rank, s);
      const StepResult got = step.take(batches.all(), 0.01);
      model.spread_embedding();
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) result.steps.push_back(got);
    }
    const std::uint64_t bytes = model.memory_bytes();
    const Batches batches(run, data_rank, 0);
    double evaluation = 0;
    {
      std::optional<comm::LossyCommunicator::LosslessScope> lossless;
      if (lossy) lossless.emplace(*lossy);
      const MicroBatch first = batches.first_sequence();
      evaluation = model.evaluate(first.tokens, first.targets, first.shape);
    }
    std::vector<comm::ClassStatistics> statistics;
    if (lossy) statistics = lossy->collect_statistics(comm::LossyCommunicator::LinkDetail::kOmit);
    model.download(Gpt2::Fields::kValues);
    const std::lock_guard lock(mutex);
    add_to_whole<T>(
        run.config, model.template parameters<T>(), tensor, &Parameter<T>::value,
        result.of_replica[static_cast<std::size_t>(data_rank * sequence_ranks + groups.coordinates().sequence)]);
    const auto place = static_cast<std::size_t>(groups.coordinates().pipeline);
    result.most_in_flight[place] = model.most_in_flight();
    const bool is_first = data_rank == 0 && groups.coordinates().sequence == 0;
    if (evaluation != 0 && is_first) result.evaluation = evaluation;
    for (const Parameter<T>& parameter : model.template parameters<T>()) {
      if (parameter.name == "wte.weight" && is_first && tensor.rank() == 0)
        result.tokens[place].assign(parameter.value.begin(), parameter.value.end());
    }
    if (world.rank() != 0) return;
    result.bytes = bytes;
    result.statistics = std::move(statistics);
    if (run.records) {
      result.calls = recorder->calls;
      result.ordinals = recorder->ordinals;
    }
  });
  return result;
}

template <class T>
void expect_equal_to_one_rank(const Training& many, double bound) {
  Training one = many;
  one.pipeline = one.chunks = one.data = one.tensor = 1;
  one.kind = ScheduleKind::kOneForwardOneBackward;
  one.file = nullptr;
  one.layers = {};
  one.config.attention.sequence = {};
  one.sharding = {};
  one.sequences = many.data * many.micro_batches * many.sequences;
  one.micro_batches = 1;
  const TrainingResult want = train<T>(one);
  const TrainingResult got = train<T>(many);
  for (std::size_t s = 0; s < want.steps.size(); ++s) {
    EXPECT_NEAR(got.steps[s].loss / want.steps[s].loss, 1, bound) << "step " << s;
    EXPECT_NEAR(got.steps[s].gradient_norm / want.steps[s].gradient_norm, 1, 10 * bound) << "step " << s;
    EXPECT_GT(want.steps[s].gradient_norm, Training::kMaxNorm) << "is clipped";
  }
  EXPECT_NEAR(got.evaluation / want.evaluation, 1, bound);
  for (const auto& [name, values] : want.of_replica[0]) {
    for (const Tensors& replica : got.of_replica)
      EXPECT_LE(relative_difference(replica.at(name), values), bound) << name;
  }
}

void expect_equal_bits(const TrainingResult& got, const TrainingResult& want) {
  for (std::size_t s = 0; s < want.steps.size(); ++s) {
    EXPECT_EQ(got.steps[s].loss, want.steps[s].loss) << "step " << s;
    EXPECT_EQ(got.steps[s].gradient_norm, want.steps[s].gradient_norm) << "step " << s;
  }
  EXPECT_EQ(got.evaluation, want.evaluation);
  for (const Tensors& replica : got.of_replica) EXPECT_EQ(replica, want.of_replica[0]);
}

void PrintTo(const TrainingCase& item, std::ostream* out) { *out << item.name; }

template TrainingResult train<float>(const Training& run);
template TrainingResult train<double>(const Training& run);
template void expect_equal_to_one_rank<float>(const Training& many, double bound);
template void expect_equal_to_one_rank<double>(const Training& many, double bound);

}  // namespace droptest::models
