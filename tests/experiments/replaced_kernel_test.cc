// SPDX-License-Identifier: Apache-2.0
// Runs with attention by cuDNN on machines that have it, and on others, on the fake device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/json/json_text.h"
#include "experiments/checkpoint/checkpoint_folder.h"
#include "experiments/files/weights_file.h"
#include "experiments/run/execute_run.h"
#include "experiments/training/attention_agreement.h"
#include "experiments/training/rank_model.h"
#include "tests/comm/error_text.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/resolved_spec.h"
#include "tests/experiments/tiny_run.h"
#include "tests/fake_cuda/fake_cuda.h"
#include "tests/fake_cuda/fake_cudnn.h"

namespace droptest::experiments::replaced_kernel_test {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::AnyOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// Sets the fake device and its cuDNN, and undoes both.
class Machine {
 public:
  explicit Machine(const fake_cuda::CudnnSettings& settings) { fake_cuda::configure(settings); }
  ~Machine() { fake_cuda::configure(fake_cuda::CudnnSettings()); }
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

 private:
  fake_cuda::Scope scope_;
};

const fake_cuda::CudnnSettings kWithout{.absence = "there is none"};

class ReplacedKernels : public testing::Test {
 protected:
  void SetUp() override {
    std::ofstream out(folder_.path() + "/corpus.txt");
    for (int i = 0; i < 400; ++i) out << "the " << i % 7 << " quick foxes ";
  }

  ResolvedRun run(const std::vector<std::string>& overrides = {}) const {
    const std::string text =
        R"({"name": "t", "device": "cuda", "model": {"layers": 1, "width": 16, "heads": 2, "context": 8},
            "training": {"steps": 3, "batch_sequences": 2, "precision": "bfloat16"}, "parallel": {"tensor": 2},
            "record": {"weights": "final"}, "validation": {"tokens": 16}, "data": {"text": ")" +
        folder_.path() + R"(/corpus.txt"}})";
    return resolved(text, overrides);
  }
  RunDirectory directory_of(const ResolvedRun& of) const { return run_directory(folder_.path(), "t", of.run_id); }

  json execute(const ResolvedRun& of) {
    ExecuteOptions options;
    options.say_problem = [this](const std::string& text) { said_.push_back(text); };
    return execute_run(of, directory_of(of), options);
  }

  const TemporaryFolder folder_;
  std::vector<std::string> said_;
};

TEST_F(ReplacedKernels, CudnnComputesWhereItIs) {
  const Machine machine({});
  const json summary = execute(run());
  EXPECT_EQ(summary.at("kernels").at("attention"), "cudnn");
  EXPECT_THAT(summary.at("warnings"), IsEmpty());
  EXPECT_THAT(said_, IsEmpty());
  EXPECT_GT(fake_cuda::launches("cudnn_forward"), 0U);
  EXPECT_GT(fake_cuda::launches("cudnn_backward"), 0U);
}

TEST_F(ReplacedKernels, FlashComputesWhereItIsNotAndThatIsSaid) {
  json replaced;
  {
    const Machine machine(kWithout);
    replaced = execute(run());
    EXPECT_EQ(fake_cuda::launches("cudnn_forward"), 0U);
  }
  EXPECT_EQ(replaced.at("status"), "completed");
  EXPECT_EQ(replaced.at("kernels").at("attention"), "flash");
  ASSERT_EQ(replaced.at("warnings").size(), 1U);
  const json& warning = replaced.at("warnings").at(0);
  EXPECT_EQ(warning.at("mark"), "other_kernel");
  EXPECT_EQ(warning.at("pointer"), "/kernels/attention");
  EXPECT_EQ(warning.at("message"), "attention is computed by flash in place of cudnn: rank 0: there is none");
  EXPECT_THAT(said_, ElementsAre("warning: /kernels/attention: " + warning.at("message").get<std::string>()));

  const Machine machine({});
  const ResolvedRun flash = run({"/kernels={\"attention\": \"flash\"}"});
  EXPECT_NE(flash.run_id, run().run_id);
  const json asked_for = execute(flash);
  EXPECT_EQ(asked_for.at("train"), replaced.at("train"));
  EXPECT_EQ(asked_for.at("validation"), replaced.at("validation"));
  EXPECT_THAT(asked_for.at("warnings"), IsEmpty());
}

TEST_F(ReplacedKernels, ALibraryThatRefusesTheShapeIsReplaced) {
  const Machine machine({.refusal = "no engine for T 8"});
  const json summary = execute(run());
  EXPECT_EQ(summary.at("kernels").at("attention"), "flash");
  EXPECT_THAT(summary.at("warnings").at(0).at("message").get<std::string>(), HasSubstr("rank 0: no engine for T 8"));
}

TEST_F(ReplacedKernels, ARunThatFailsBeforeItsRanksAgreeDoesNotClaimAKernel) {
  const Machine machine({});
  const ResolvedRun of = run();
  std::filesystem::remove(folder_.path() + "/corpus.txt");
  EXPECT_ANY_THROW(execute(of));
  const json summary = comm::load_json(directory_of(of).summary());
  EXPECT_EQ(summary.at("status"), "failed");
  EXPECT_FALSE(summary.at("kernels").contains("attention"));
  EXPECT_TRUE(summary.at("kernels").contains("matmul"));
}

TEST_F(ReplacedKernels, OneRankWithoutItMakesAllTakeFlash) {
  const Machine machine({.refusal = "no engine", .refused_graphs = 1});
  const RunConfig config = run().config;
  std::vector<std::string> reasons(2);
  comm::run_ranks(2, std::chrono::seconds(30), [&](comm::Communicator& group) {
    RunConfig own = config;
    const auto replaced = agree_on_attention(own, std::nullopt, group);
    ASSERT_TRUE(replaced.has_value());
    reasons[static_cast<std::size_t>(group.rank())] = replaced->reason;
    EXPECT_EQ(own.kernels.at("attention").name, "flash");
  });
  EXPECT_THAT(reasons[0], AnyOf("rank 0: no engine", "rank 1: no engine"));
  EXPECT_EQ(reasons[0], reasons[1]);
}

TEST_F(ReplacedKernels, ARunGoesOnWithTheKernelOfItsCheckpoint) {
  const std::vector<std::string> saving = {R"(/checkpoint={"every_steps": 2})"};
  const ResolvedRun of = run(saving);
  const CheckpointFolder checkpoints(directory_of(of).checkpoints());
  {
    const Machine machine({});
    (void)execute(of);
    EXPECT_EQ(checkpoints.manifest(2).attention, "cudnn");
  }
  std::filesystem::remove(directory_of(of).summary());
  {
    const Machine machine(kWithout);
    EXPECT_THAT(config_error_of([&] { execute(of); }),
                AllOf(HasSubstr("attention was computed by cudnn, and here it is by flash"),
                      HasSubstr("droptest resume " + directory_of(of).path + " --set /kernels/attention=flash")));
    EXPECT_EQ(checkpoints.steps(), std::vector<std::uint64_t>{2}) << "the checkpoint stays";
  }
  std::filesystem::remove(directory_of(of).summary());
  const Machine machine({});
  EXPECT_EQ(execute(of).at("status"), "completed");
  const ResolvedRun flash = run({saving[0], "/kernels={\"attention\": \"flash\"}"});
  (void)execute(flash);
  EXPECT_EQ(CheckpointFolder(directory_of(flash).checkpoints()).manifest(2).attention, "flash");
  const ResolvedRun in_float = run({saving[0], "/training/precision=float32"});
  (void)execute(in_float);
  EXPECT_EQ(CheckpointFolder(directory_of(in_float).checkpoints()).manifest(2).attention, "");
}

// The one machine without cuDNN is no longer among the run's.
TEST_F(ReplacedKernels, ARunThatFlashBeganGoesOnWithFlash) {
  const ResolvedRun of = run({R"(/checkpoint={"every_steps": 2})"});
  json whole;
  {
    const Machine machine(kWithout);
    whole = execute(of);
  }
  std::filesystem::remove(directory_of(of).summary());
  const Machine machine({});
  const json resumed = execute(of);
  EXPECT_EQ(fake_cuda::launches("cudnn_forward"), 0U);
  EXPECT_EQ(resumed.at("kernels").at("attention"), "flash");
  EXPECT_EQ(resumed.at("train"), whole.at("train"));
  EXPECT_EQ(resumed.at("warnings").at(0).at("message"),
            "attention is computed by flash in place of cudnn: flash computed the checkpoint of step 2");
}

TEST_F(ReplacedKernels, ARunOfItsOwnMayNameFlashForACheckpointOfCudnn) {
  const ResolvedRun of = run({R"(/checkpoint={"every_steps": 2})"});
  {
    const Machine machine({});
    (void)execute(of);
  }
  const std::string start =
      "/start={\"manifest\": \"" + CheckpointFolder(directory_of(of).checkpoints()).of_step(2) + "/manifest.json\"}";
  const Machine machine(kWithout);
  EXPECT_THAT(config_error_of([&] { execute(run({start})); }),
              HasSubstr("attention was computed by cudnn, which a rank's machine does not have"));
  const json named = execute(run({start, "/kernels={\"attention\": \"flash\"}"}));
  EXPECT_EQ(named.at("status"), "completed");
  EXPECT_EQ(named.at("started_from").at("step"), 2);
}

// Rank 0 has two of three heads: requests to the library have the shapes of the rank.
TEST_F(ReplacedKernels, ARankAsksForTheShapesThatItComputes) {
  const Machine machine({});
  const ResolvedRun of = run({"/model/width=24", "/model/heads=3"});
  EXPECT_EQ(execute(of).at("kernels").at("attention"), "cudnn");
  std::set<std::int64_t> heads;
  for (const auto& dims : fake_cuda::planned_queries()) heads.insert(dims[1]);
  EXPECT_EQ(heads, (std::set<std::int64_t>{1, 2}));
  fake_cuda::configure({.refusal = "no two heads", .refused_heads = 2});
  EXPECT_EQ(execute(run({"/model/width=24", "/model/heads=3", "/seed=5"})).at("warnings").at(0).at("message"),
            "attention is computed by flash in place of cudnn: rank 0: no two heads");
}

// 13 sequences of 8 tokens in batches of 2 leave one, of which only forward passes are asked for.
TEST_F(ReplacedKernels, TheLastBatchOfAnEvaluationIsAskedForToo) {
  const auto planned_batches = [this](const std::string& tokens) {
    const Machine machine({});
    RunConfig config = run({"/parallel/tensor=1", "/validation/tokens=" + tokens}).config;
    comm::run_ranks(1, std::chrono::seconds(30),
                    [&](comm::Communicator& group) { EXPECT_FALSE(agree_on_attention(config, std::nullopt, group)); });
    std::vector<std::int64_t> batches;
    for (const auto& dims : fake_cuda::planned_queries()) batches.push_back(dims[0]);
    return batches;
  };
  EXPECT_THAT(planned_batches("96"), ElementsAre(2, 2));
  EXPECT_THAT(planned_batches("104"), ElementsAre(2, 2, 1));
}

TEST_F(ReplacedKernels, GenerationTakesFlash) {
  const ResolvedRun of = run();
  const Machine machine({});
  (void)execute(of);
  const models::StoredTensors weights = read_weights(directory_of(of).weights());
  const std::vector<std::int32_t> prompt = {1, 2, 3};
  GenerationOptions options;
  options.tokens = 2;
  options.cache = GenerationOptions::Cache::kUnused;
  fake_cuda::reset();
  EXPECT_EQ(generate(of.config, weights, "w", prompt, options).tokens.size(), 2U);
  EXPECT_EQ(fake_cuda::launches("cudnn_forward"), 0U);
}

}  // namespace
}  // namespace droptest::experiments::replaced_kernel_test
