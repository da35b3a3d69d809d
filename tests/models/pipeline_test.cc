// SPDX-License-Identifier: Apache-2.0
// A model whose stages are on several ranks is the model that one rank trains, whatever the schedule.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "comm/lossy/lossy_communicator.h"
#include "comm/parallel_layout.h"
#include "models/gpt2/gpt2.h"
#include "models/ops/host_ops.h"
#include "models/pipeline/schedule_csv.h"
#include "models/training_step.h"
#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/loss_process.h"
#include "tests/models/formula_model.h"
#include "tests/models/recording_communicator.h"

namespace droptest::models {
namespace {

using enum ScheduleKind;

constexpr int kLength = 9;
constexpr double kMaxNorm = 0.5;

struct Training {
  Gpt2Config config{4, 32, 4, 12, 97};
  int pipeline = 1;
  int chunks = 1;
  ScheduleKind kind = kOneForwardOneBackward;
  int data = 1;
  int tensor = 1;
  int micro_batches = 4;
  std::vector<int> layers{};  ///< of each stage; empty: equal numbers
  int zero = 0;
  bool ignores = false;
  const char* file = nullptr;  ///< of torch's schedules, in place of `kind`
  int steps = 5;
  OptimizerConfig optimizer{.epsilon = 1e-3};
  double loss_rate = 0;  ///< of activations and their gradients between stages
  SentPast sent_past{};  ///< and the fill `skip`
  enum class Loses { kPackets, kResults, kResultsForEnds } loses = Loses::kPackets;  ///< results: all of them
  std::vector<int> identities{};  ///< blocks whose output is their input: their last weights are zero
  bool clips = true;
  bool records = false;  ///< messages of the pipeline; its calls are then blocking
};

PipelineSchedule schedule_of(const Training& run) {
  if (run.file == nullptr) return make_schedule(run.kind, run.pipeline, run.chunks, run.micro_batches);
  std::ifstream file(std::string(DROPTEST_VECTORS) + "/pipeline/" + run.file);
  std::stringstream text;
  text << file.rdbuf();
  return schedule_from_csv(text.str(), run.file);
}

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

struct Result {
  std::vector<StepResult> steps;
  double evaluation = 0;
  std::vector<Tensors> of_replica;
  std::vector<int> most_in_flight;          ///< of each pipeline rank
  std::vector<std::vector<double>> tokens;  ///< wte of each pipeline rank of the first replica; may be empty
  std::vector<comm::ClassStatistics> statistics;
  std::vector<std::string> calls;  ///< of rank 0
  std::vector<std::optional<std::uint64_t>> ordinals;
};

/// Loses the messages in the first half of a link's places: those of results, not those sent past a stage.
class LossOfResults final : public sim::LossProcess {
 public:
  explicit LossOfResults(int destination) : destination_(destination) {}
  void draw(std::uint64_t /*seed*/, const sim::Link& link, std::uint64_t first, sim::PacketMask& lost) const override {
    const bool is_result = first < std::uint64_t{1} << 31U;
    const bool loses = is_result && (destination_ < 0 || link.destination == destination_);
    lost.resize(lost.size());
    for (std::uint64_t i = 0; loses && i < lost.size(); ++i) lost.set_lost(i);
  }
  double loss_rate() const override { return 0.5; }
  double mean_burst_packets() const override { return 1; }
  double mean_gap_packets() const override { return 1; }
  double burst_at_least(std::uint64_t /*packets*/) const override { return 0.5; }
  double lost_count_variance(std::uint64_t n) const override { return static_cast<double>(n); }
  std::string describe() const override { return "results"; }

 private:
  int destination_;
};

comm::LossyOptions losing(const Training& run) {
  comm::LossyOptions options;
  if (run.loss_rate == 0 && run.loses == Training::Loses::kPackets) return options;
  const auto give = [&](sim::TrafficClass of, bool skips, int end) {
    comm::HalfNetwork& gather = options.network.of(of).emplace().gather;
    gather.loss = std::make_shared<sim::Bernoulli>(run.loss_rate);
    if (run.loses == Training::Loses::kResults) gather.loss = std::make_shared<LossOfResults>(-1);
    if (run.loses == Training::Loses::kResultsForEnds) gather.loss = std::make_shared<LossOfResults>(end);
    if (skips) gather.fill = comm::Fill::kSkip;
  };
  give(sim::TrafficClass::kPpActivation, run.sent_past.activations, run.pipeline - 1);
  give(sim::TrafficClass::kPpGradient, run.sent_past.gradients, 0);
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

/// Whatever the layout is, a step reads the same sequences.
template <class T>
Result train(const Training& run) {
  Result result;
  result.of_replica.resize(static_cast<std::size_t>(run.data));
  result.most_in_flight.resize(static_cast<std::size_t>(run.pipeline));
  result.tokens.resize(static_cast<std::size_t>(run.pipeline));
  std::mutex mutex;
  comm::ParallelLayout layout;
  layout.pipeline = run.pipeline;
  layout.data = run.data;
  layout.tensor = run.tensor;
  comm::run_ranks(layout.world_size(), kTestTimeout, [&](comm::Communicator& plain) {
    comm::LossyCommunicator world(plain, losing(run));
    const comm::ParallelGroups groups(layout, world);
    const std::unique_ptr<comm::Communicator> alone = world.split(world.rank(), 0);
    comm::Communicator* const shared = groups.group(comm::ParallelDimension::kTensor);
    comm::Communicator& tensor = shared == nullptr ? *alone : *shared;
    ModelRanks ranks;
    ranks.data.group = groups.group(comm::ParallelDimension::kData);
    ranks.data.sharding = {.zero = run.zero, .bucket_bytes = std::uint64_t{1} << 17U, .first_bucket_bytes = 1};
    ranks.pipeline.group = groups.group(comm::ParallelDimension::kPipeline);
    std::unique_ptr<RecordingCommunicator> recorder;
    if (run.records) recorder = std::make_unique<RecordingCommunicator>(*ranks.pipeline.group);
    if (run.records) ranks.pipeline.group = recorder.get();
    ranks.pipeline.stride = layout.stride(comm::ParallelDimension::kPipeline);
    ranks.pipeline.plan = plan_of(run);
    ranks.all = &world;
    ranks.data_stride = layout.stride(comm::ParallelDimension::kData);
    Gpt2 model(run.config, make_host_ops({.type = comm::element_type_of<T>()}, tensor), run.optimizer, {}, ranks);
    set_formula_weights<T>(run.config, model.template parameters<T>(), tensor);
    set_identities(model.template parameters<T>(), run.identities);
    model.upload_values();
    TrainingStep step(model, run.clips ? kMaxNorm : 1e9);
    const int data_rank = groups.coordinates().data;
    const auto batches_of = [&](int s, std::vector<std::vector<std::int32_t>>& texts) {
      std::vector<MicroBatch> batches;
      texts.clear();
      texts.reserve(2 * static_cast<std::size_t>(run.micro_batches));
      for (int m = 0; m < run.micro_batches; ++m) {
        const auto place = static_cast<std::ptrdiff_t>((m * run.data + data_rank) * kLength);
        for (const int stream : {2 * s, 2 * s + 1}) {
          const std::vector<std::int32_t> whole = formula_tokens(
              static_cast<std::uint64_t>(stream), run.data * run.micro_batches * kLength, run.config.vocabulary);
          texts.emplace_back(whole.begin() + place, whole.begin() + place + kLength);
        }
        if (run.ignores) {
          for (int i = 0; i < kLength; ++i) {
            if ((place + i) % 5 == 0 || place + i < kLength - 1)
              texts.back()[static_cast<std::size_t>(i)] = kIgnoredTarget;
          }
        }
        batches.push_back({texts[texts.size() - 2], texts.back(), {1, kLength}});
      }
      return batches;
    };
    std::vector<std::vector<std::int32_t>> texts;
    for (int s = 0; s < run.steps; ++s) {
      world.begin_step(static_cast<std::uint64_t>(s) + 1);
      const std::vector<MicroBatch> batches = batches_of(s, texts);
      const StepResult got = step.take(batches, 0.01);
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) result.steps.push_back(got);
    }
    const std::vector<MicroBatch> batches = batches_of(0, texts);
    double evaluation = 0;
    {
      const comm::LossyCommunicator::LosslessScope lossless(world);
      evaluation = model.evaluate(batches[0].tokens, batches[0].targets, batches[0].shape);
    }
    std::vector<comm::ClassStatistics> statistics =
        world.collect_statistics(comm::LossyCommunicator::LinkDetail::kOmit);
    model.download(Gpt2::Fields::kValues);
    const std::lock_guard lock(mutex);
    add_to_whole<T>(run.config, model.template parameters<T>(), tensor, &Parameter<T>::value,
                    result.of_replica[static_cast<std::size_t>(data_rank)]);
    const auto place = static_cast<std::size_t>(groups.coordinates().pipeline);
    result.most_in_flight[place] = model.most_in_flight();
    if (evaluation != 0 && data_rank == 0) result.evaluation = evaluation;
    if (world.rank() == 0) result.statistics = std::move(statistics);
    if (world.rank() == 0 && run.records) {
      result.calls = recorder->calls;
      result.ordinals = recorder->ordinals;
    }
    for (const Parameter<T>& parameter : model.template parameters<T>()) {
      if (parameter.name == "wte.weight" && data_rank == 0 && tensor.rank() == 0)
        result.tokens[place].assign(parameter.value.begin(), parameter.value.end());
    }
  });
  return result;
}

template <class T>
void expect_equal_to_one_rank(const Training& many, double bound) {
  Training one = many;
  one.pipeline = one.chunks = one.data = one.tensor = 1;
  one.kind = kOneForwardOneBackward;
  one.file = nullptr;
  one.layers = {};
  one.zero = 0;
  one.micro_batches = many.data * many.micro_batches;
  const Result want = train<T>(one);
  const Result got = train<T>(many);
  for (std::size_t s = 0; s < want.steps.size(); ++s) {
    EXPECT_NEAR(got.steps[s].loss / want.steps[s].loss, 1, bound) << "step " << s;
    EXPECT_NEAR(got.steps[s].gradient_norm / want.steps[s].gradient_norm, 1, 10 * bound) << "step " << s;
    EXPECT_GT(want.steps[s].gradient_norm, kMaxNorm) << "is clipped";
  }
  EXPECT_NEAR(got.evaluation / want.evaluation, 1, bound);
  for (const auto& [name, values] : want.of_replica[0]) {
    for (const Tensors& replica : got.of_replica)
      EXPECT_LE(relative_difference(replica.at(name), values), bound) << name;
  }
}

struct Case {
  const char* name;
  Training run;
};
void PrintTo(const Case& item, std::ostream* out) { *out << item.name; }

const std::vector<Case> kCases = {
    {"gpipe2", {.pipeline = 2, .kind = kGpipe}},
    {"gpipe4", {.pipeline = 4, .kind = kGpipe}},
    {"one_forward_one_backward2", {.pipeline = 2}},
    {"one_forward_one_backward4", {.pipeline = 4, .micro_batches = 6}},
    {"fewer_micro_batches_than_ranks", {.pipeline = 4, .micro_batches = 2}},
    {"interleaved2", {.pipeline = 2, .chunks = 2, .kind = kInterleaved}},
    {"interleaved4", {.config = {8, 32, 4, 12, 97}, .pipeline = 4, .chunks = 2, .kind = kInterleaved}},
    {"zero_bubble2", {.pipeline = 2, .kind = kZeroBubble}},
    {"zero_bubble4", {.pipeline = 4, .kind = kZeroBubble, .micro_batches = 8}},
    {"zero_bubble_chunks", {.pipeline = 2, .chunks = 2, .kind = kZeroBubble}},
    {"round_robin2", {.pipeline = 2, .chunks = 2, .kind = kRoundRobin}},
    {"chunks_on_one_rank", {.chunks = 4, .kind = kInterleaved}},
    {"weight_gradients_apart_on_one_rank", {.chunks = 2, .kind = kZeroBubble}},
    {"uneven", {.config = {5, 32, 4, 12, 97}, .pipeline = 3, .layers = {1, 3, 1}}},
    {"uneven_zero_bubble", {.config = {5, 32, 4, 12, 97}, .pipeline = 2, .kind = kZeroBubble, .layers = {4, 1}}},
    {"data2", {.pipeline = 2, .data = 2, .micro_batches = 2}},
    {"data2_zero1", {.pipeline = 2, .data = 2, .micro_batches = 2, .zero = 1}},
    {"data2_chunks_zero1", {.pipeline = 2, .chunks = 2, .kind = kZeroBubble, .data = 2, .micro_batches = 2, .zero = 1}},
    {"tensor2", {.pipeline = 2, .tensor = 2}},
    {"data2_tensor2_zero1", {.pipeline = 2, .data = 2, .tensor = 2, .micro_batches = 2, .zero = 1}},
    {"ignored_targets", {.pipeline = 2, .data = 2, .micro_batches = 3, .ignores = true}},
    {"dual_pipe_v", {.config = {8, 32, 4, 12, 97}, .pipeline = 4, .micro_batches = 10, .file = "dualpipev_4x10.csv"}},
    {"zero_bubble_v", {.config = {8, 32, 4, 12, 97}, .pipeline = 4, .micro_batches = 8, .file = "zbv_4x8.csv"}},
    {"torchs_looped_bfs", {.pipeline = 2, .file = "looped_bfs_2x2x4.csv"}},
};

class PipelineParallelism : public testing::TestWithParam<Case> {};

TEST_P(PipelineParallelism, EqualsOneRankInDouble) { expect_equal_to_one_rank<double>(GetParam().run, 1e-12); }

// AdamW divides by small second moments, and hides errors of scale; SGD does neither.
TEST_P(PipelineParallelism, EqualsOneRankInFloatWithSgd) {
  Training run = GetParam().run;
  run.optimizer = {.rule = OptimizerConfig::Rule::kSgd};
  expect_equal_to_one_rank<float>(run, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(Layouts, PipelineParallelism, testing::ValuesIn(kCases),
                         [](const auto& item) { return std::string(item.param.name); });

void expect_equal_bits(const Result& got, const Result& want) {
  for (std::size_t s = 0; s < want.steps.size(); ++s) {
    EXPECT_EQ(got.steps[s].loss, want.steps[s].loss) << "step " << s;
    EXPECT_EQ(got.steps[s].gradient_norm, want.steps[s].gradient_norm) << "step " << s;
  }
  EXPECT_EQ(got.evaluation, want.evaluation);
  EXPECT_EQ(got.of_replica, want.of_replica);
}

/// Packets sent and lost in a class.
std::pair<std::uint64_t, std::uint64_t> packets(const Result& result, sim::TrafficClass of) {
  for (const comm::ClassStatistics& statistics : result.statistics) {
    if (statistics.traffic_class == of) return {statistics.total().packets, statistics.total().lost_packets};
  }
  return {0, 0};
}

// The same stages on the same ranks: the order of the schedule changes neither sums nor fates.
TEST(PipelineSchedules, OfOnePlacementGiveTheSameBits) {
  for (const double loss_rate : {0.0, 0.05}) {
    SCOPED_TRACE(loss_rate);
    Training run{.pipeline = 2, .micro_batches = 6, .loss_rate = loss_rate};
    const Result want = train<float>(run);
    for (const ScheduleKind kind : {kGpipe, kZeroBubble}) {
      run.kind = kind;
      expect_equal_bits(train<float>(run), want);
    }
    Training chunks{.pipeline = 2, .chunks = 2, .kind = kInterleaved, .micro_batches = 4, .loss_rate = loss_rate};
    const Result want_chunks = train<float>(chunks);
    for (const ScheduleKind kind : {kRoundRobin, kZeroBubble}) {
      chunks.kind = kind;
      expect_equal_bits(train<float>(chunks), want_chunks);
    }
    if (loss_rate > 0) {
      EXPECT_NE(want.steps.back().loss, train<float>({.pipeline = 2, .micro_batches = 6}).steps.back().loss);
      // A message of 9 rows of 32 floats is one packet: one hop, six micro-batches, five steps.
      EXPECT_EQ(packets(want, sim::TrafficClass::kPpActivation).first, 30U);
      EXPECT_EQ(packets(want, sim::TrafficClass::kPpGradient).first, 30U);
      EXPECT_GT(packets(want, sim::TrafficClass::kPpActivation).second, 0U);
    }
  }
}

// Where blocks are identities, a stage's input is its output, in both directions: what is lost is nothing.
TEST(Skip, WhereStagesAreIdentitiesNothingIsMissing) {
  const std::vector<Training> runs = {
      {.pipeline = 2},
      {.pipeline = 4, .kind = kGpipe},
      {.config = {3, 32, 4, 12, 97}, .pipeline = 3},
      {.pipeline = 2, .chunks = 2, .kind = kInterleaved},
      {.pipeline = 2, .kind = kZeroBubble},
      {.config = {8, 32, 4, 12, 97}, .pipeline = 4, .micro_batches = 8, .file = "zbv_4x8.csv"}};
  for (Training run : runs) {
    for (int block = 0; block < run.config.layers; ++block) run.identities.push_back(block);
    run.steps = 1;
    const Result want = train<double>(run);
    run.loses = Training::Loses::kResults;
    run.sent_past = {.activations = true, .gradients = true};
    const Result got = train<double>(run);
    for (const auto& [name, values] : want.of_replica[0]) {
      EXPECT_LE(relative_difference(got.of_replica[0].at(name), values), 1e-13) << name;
    }
    const auto [packets_sent, packets_lost] = packets(got, sim::TrafficClass::kPpActivation);
    EXPECT_GT(packets_lost, 0U);
    const bool all_travel = run.chunks == 1;  // else some inputs are on their user's rank
    EXPECT_LE(packets_sent, 2 * packets_lost);
    EXPECT_EQ(packets_sent == 2 * packets_lost, all_travel);
    run.sent_past = {};
    EXPECT_NE(train<double>(run).steps[0].loss, want.steps[0].loss) << "without skip";
  }
}

// The stage with block 1 is left out: the others train as they would around a block that does nothing.
TEST(Skip, AStageIsLeftOutWhereItsResultsAreLost) {
  Training run{.config = {3, 32, 4, 12, 97}, .pipeline = 3, .steps = 1, .clips = false};
  run.identities = {1};
  const Result want = train<double>(run);
  run.identities = {};
  run.sent_past = {.activations = true, .gradients = true};
  run.loses = Training::Loses::kResultsForEnds;
  const Result got = train<double>(run);
  EXPECT_NEAR(got.steps[0].loss, want.steps[0].loss, 1e-12);
  for (const auto& [name, values] : want.of_replica[0]) {
    if (name.find("h.1.") != std::string::npos) continue;
    EXPECT_LE(relative_difference(got.of_replica[0].at(name), values), 1e-12) << name;
  }
}

// Ordinals of a link and class must differ, or messages would lose the same packets.
TEST(PipelineSchedules, GiveEachMessageAPlaceOfItsOwn) {
  const Result got = train<float>({.pipeline = 2, .kind = kGpipe, .micro_batches = 3, .steps = 2, .records = true});
  std::vector<std::string> calls;
  std::vector<std::uint64_t> ordinals;
  for (std::size_t i = 0; i < got.calls.size(); ++i) {
    if (!got.ordinals[i]) continue;
    calls.push_back(got.calls[i].substr(0, got.calls[i].find(" layer")));
    ordinals.push_back(*got.ordinals[i]);
  }
  EXPECT_THAT(calls, testing::ElementsAre(
                         "send stage.0.output.0", "send stage.0.output.1", "send stage.0.output.2",
                         "recv stage.1.input_gradient.0", "recv stage.1.input_gradient.1",
                         "recv stage.1.input_gradient.2", "send stage.0.output.0", "send stage.0.output.1",
                         "send stage.0.output.2", "recv stage.1.input_gradient.0", "recv stage.1.input_gradient.1",
                         "recv stage.1.input_gradient.2", "send stage.0.output.0"));  // the last one: an evaluation
  // Two stages: 2 m + stage, from 6 on in the second step, from 12 on in the evaluation.
  EXPECT_THAT(ordinals, testing::ElementsAre(0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11, 12));
}

TEST(PipelineSchedules, HoldAsManyMicroBatchesAsTheyShould) {
  const auto of = [](const Training& run) {
    const Result got = train<float>(run);
    EXPECT_EQ(got.most_in_flight, peaks(schedule_of(run)));
    return got.most_in_flight;
  };
  EXPECT_THAT(of({.pipeline = 4, .kind = kGpipe, .micro_batches = 8, .steps = 2}), testing::ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(of({.pipeline = 4, .micro_batches = 8, .steps = 2}), testing::ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(of({.pipeline = 4, .kind = kZeroBubble, .micro_batches = 8, .steps = 2}),
              testing::ElementsAre(4, 4, 4, 4));
  EXPECT_THAT(of({.config = {8, 32, 4, 12, 97},
                  .pipeline = 4,
                  .chunks = 2,
                  .kind = kInterleaved,
                  .micro_batches = 8,
                  .steps = 2}),
              testing::ElementsAre(11, 9, 7, 5));
}

TEST(TiedEmbedding, IsTheSameAtBothEndsOfAPipeline) {
  const Result got = train<double>({.pipeline = 3, .layers = {1, 2, 1}});
  EXPECT_FALSE(got.tokens[0].empty());
  EXPECT_TRUE(got.tokens[1].empty());
  EXPECT_EQ(got.tokens[0], got.tokens[2]);
}

}  // namespace
}  // namespace droptest::models
