// SPDX-License-Identifier: Apache-2.0
// The parts of `droptest doctor` that need no machine: findings from a survey, from variables and from facts of ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "comm/run_ranks.h"
#include "experiments/doctor/device_checks.h"
#include "experiments/doctor/finding.h"
#include "experiments/doctor/group_checks.h"
#include "experiments/doctor/launch_checks.h"
#include "experiments/doctor/machine_checks.h"
#include "experiments/files/atomic_file.h"
#include "models/gpt2/planned_memory.h"
#include "models/ops/host_ops.h"
#include "sim/loss/bernoulli.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments::doctor_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// The finding of this check. There is one.
Finding finding_of(const std::vector<Finding>& findings, const std::string& check) {
  const auto found =
      std::find_if(findings.begin(), findings.end(), [&](const Finding& finding) { return finding.check == check; });
  if (found != findings.end()) return *found;
  ADD_FAILURE() << "there is no finding \"" << check << "\"";
  return {};
}

comm::DeviceSurvey survey_of(int devices) {
  comm::DeviceSurvey survey;
  survey.built = true;
  survey.architectures = "80-real, 90";
  survey.runtime_version = "13.0";
  survey.driver_version = "13.0";
  for (int i = 0; i < devices; ++i) {
    survey.devices.push_back({i, "Card", 9, 0, std::uint64_t{80} << 30, 132, "0000:0" + std::to_string(i), ""});
  }
  return survey;
}

const std::map<std::string, std::string> kLibraries = {{"NCCL", "2.28.9"}, {"cuBLASLt", "13.1.0"}, {"cuDNN", "9.19.0"}};

constexpr std::chrono::milliseconds kTimeout{20000};

TEST(DeviceChecks, OnTheCpuNothingIsWanted) {
  comm::DeviceSurvey none;
  none.absence = "no driver";
  for (const comm::DeviceSurvey& survey : {none, survey_of(2)}) {
    const std::vector<Finding> findings = check_devices(0, survey, {});
    EXPECT_EQ(finding_of(findings, "devices").health, Health::kOk);
    EXPECT_EQ(finding_of(findings, "driver").health, Health::kOk);
    EXPECT_EQ(findings.size(), 2u);
  }
}

TEST(DeviceChecks, EnoughDevicesAreOk) {
  const std::vector<Finding> findings = check_devices(2, survey_of(2), kLibraries);
  EXPECT_FALSE(any_failed(findings));
  EXPECT_THAT(finding_of(findings, "devices").seen, AllOf(HasSubstr("2 wanted"), HasSubstr("1: Card")));
  EXPECT_THAT(finding_of(findings, "device libraries").seen, HasSubstr("NCCL 2.28.9"));
}

TEST(DeviceChecks, TooFewDevicesFail) {
  const Finding finding = finding_of(check_devices(3, survey_of(2), kLibraries), "devices");
  EXPECT_EQ(finding.health, Health::kFailed);
  EXPECT_THAT(finding.seen, AllOf(HasSubstr("3 wanted"), HasSubstr("2 devices: 0: Card")));
}

TEST(DeviceChecks, TheReasonWhyThereIsNoDeviceIsSaid) {
  comm::DeviceSurvey survey = survey_of(0);
  survey.driver_version = "";
  survey.absence = "there is no driver";
  const std::vector<Finding> findings = check_devices(1, survey, kLibraries);
  EXPECT_EQ(finding_of(findings, "devices").health, Health::kFailed);
  EXPECT_THAT(finding_of(findings, "devices").seen, HasSubstr("1 device wanted; there is no driver"));
  EXPECT_EQ(finding_of(findings, "driver").health, Health::kFailed);
}

TEST(DeviceChecks, ADriverOlderThanTheRuntimeIsNamed) {
  comm::DeviceSurvey survey = survey_of(1);
  survey.driver_version = "12.9";
  EXPECT_EQ(finding_of(check_devices(1, survey, kLibraries), "driver").health, Health::kFailed);
  survey.runtime_version = "12.10";
  const Finding minor = finding_of(check_devices(1, survey, kLibraries), "driver");
  EXPECT_EQ(minor.health, Health::kWarning);
  EXPECT_THAT(minor.seen, HasSubstr("driver is older than the runtime"));
  survey.driver_version = "13.1";
  EXPECT_EQ(finding_of(check_devices(1, survey, kLibraries), "driver").health, Health::kOk);
}

TEST(DeviceChecks, ADeviceThatIsUsedMustWorkAndHaveCode) {
  comm::DeviceSurvey survey = survey_of(3);
  survey.devices[1].compute_major = 7;
  survey.devices[1].compute_minor = 5;
  survey.devices[2].trouble = "cudaGetDeviceProperties: unknown error";
  EXPECT_EQ(finding_of(check_devices(1, survey, kLibraries), "devices").health, Health::kOk);
  const Finding finding = finding_of(check_devices(3, survey, kLibraries), "devices");
  EXPECT_EQ(finding.health, Health::kFailed);
  EXPECT_THAT(finding.seen, AllOf(HasSubstr("device 1: this build has code for 80-real, 90 only"),
                                  HasSubstr("-DCMAKE_CUDA_ARCHITECTURES=75"), HasSubstr("device 2: cudaGet")));
}

TEST(DeviceChecks, MissingLibrariesAreAWarning) {
  const Finding finding = finding_of(check_devices(1, survey_of(1), {{"NCCL", "2.28.9"}}), "device libraries");
  EXPECT_EQ(finding.health, Health::kWarning);
  EXPECT_THAT(finding.seen, HasSubstr("not found: cuBLASLt, cuDNN"));
}

TEST(DeviceChecks, AttentionByCudnnIsNamedOrItsReplacement) {
  const Finding there = check_cudnn({"/lib/libcudnn.so.9", "9.19.0", ""});
  EXPECT_EQ(there.health, Health::kOk);
  EXPECT_EQ(there.seen, "cuDNN 9.19.0, /lib/libcudnn.so.9");
  const Finding absent = check_cudnn({"", "", "libcudnn.so.9 is not found"});
  EXPECT_EQ(absent.health, Health::kWarning);
  EXPECT_THAT(absent.seen, AllOf(HasSubstr("libcudnn.so.9 is not found"), HasSubstr("\"flash\" in its place")));
}

TEST(DeviceChecks, MachineCodeRunsOnItsMajorVersionAndPtxOnNewerOnes) {
  EXPECT_TRUE(runs_on("80-real, 90", 8, 0));
  EXPECT_TRUE(runs_on("80-real, 90", 8, 9));
  EXPECT_TRUE(runs_on("80-real, 90", 9, 0));
  EXPECT_TRUE(runs_on("80-real, 90", 12, 0));
  EXPECT_FALSE(runs_on("80-real, 90", 7, 5));
  EXPECT_FALSE(runs_on("90-real", 8, 0));
  EXPECT_FALSE(runs_on("90-real", 10, 0));
  EXPECT_FALSE(runs_on("86-real", 8, 0));
  EXPECT_TRUE(runs_on("70-virtual", 9, 0));
  EXPECT_TRUE(runs_on("90a", 9, 0));
  EXPECT_FALSE(runs_on("90a", 10, 0));
  EXPECT_TRUE(runs_on("100f", 10, 3));
  EXPECT_FALSE(runs_on("100f", 12, 0));
  EXPECT_TRUE(runs_on("native", 7, 5));
  EXPECT_FALSE(runs_on("", 9, 0));
}

TEST(DeviceChecks, VersionsAreComparedByNumbers) {
  EXPECT_TRUE(is_older("12.9", "13.0"));
  EXPECT_TRUE(is_older("12.9", "12.10"));
  EXPECT_FALSE(is_older("13.0", "13.0"));
  EXPECT_FALSE(is_older("13.1", "13.0"));
  EXPECT_TRUE(is_older("13", "13.1"));
  EXPECT_FALSE(is_older("13.0", "13"));
}

TEST(DeviceChecks, RanksAsThreadsShareADeviceAndProcessesHaveOneEach) {
  ResolvedRun run = resolved(kTwoRanks, {"/parallel/tensor=4"});
  EXPECT_EQ(wanted_devices(run, std::nullopt), 0);
  run.spec["device"] = "cuda";
  EXPECT_EQ(wanted_devices(run, std::nullopt), 1);
  run.config.backend.name = "nccl";
  EXPECT_EQ(wanted_devices(run, std::nullopt), 4);
  comm::LaunchEnvironment launch;
  EXPECT_EQ(wanted_devices(run, launch), 1);
  launch.local_rank = 2;
  EXPECT_EQ(wanted_devices(run, launch), 3);
  run.spec.erase("device");
  EXPECT_EQ(wanted_devices(run, launch), 3);
}

TEST(LaunchChecks, VariablesSetByHalfFail) {
  const LaunchChecks checks = read_launch({{"RANK", "0"}});
  EXPECT_FALSE(checks.launch.has_value());
  EXPECT_EQ(finding_of(checks.findings, "launch").health, Health::kFailed);
  EXPECT_THAT(finding_of(checks.findings, "launch").seen, HasSubstr("WORLD_SIZE"));
}

TEST(LaunchChecks, AJobOfSeveralNodesWithoutSrunIsAWarning) {
  EXPECT_EQ(finding_of(read_launch({}).findings, "launch").health, Health::kOk);
  EXPECT_EQ(finding_of(read_launch({{"SLURM_JOB_NUM_NODES", "1"}}).findings, "launch").health, Health::kOk);
  const Finding finding = finding_of(read_launch({{"SLURM_JOB_NUM_NODES", "4"}}).findings, "launch");
  EXPECT_EQ(finding.health, Health::kWarning);
  EXPECT_THAT(finding.advice, HasSubstr("srun"));
}

TEST(LaunchChecks, TheWorldSizeIsTheRanksOfTheRun) {
  const LaunchChecks checks = read_launch({{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"LOCAL_RANK", "1"}});
  EXPECT_THAT(checks.findings, IsEmpty());
  ASSERT_TRUE(checks.launch.has_value());
  EXPECT_EQ(check_launch(*checks.launch, comm::RankKind::kProcesses, 3).health, Health::kOk);
  const Finding wrong = check_launch(*checks.launch, comm::RankKind::kProcesses, 2);
  EXPECT_EQ(wrong.health, Health::kFailed);
  EXPECT_THAT(wrong.seen, AllOf(HasSubstr("rank 1 of 3"), HasSubstr("the spec has 2 ranks")));
  EXPECT_EQ(check_launch(*checks.launch, comm::RankKind::kThreads, 3).health, Health::kWarning);
}

TEST(MachineChecks, MemoryIsComparedWithWhatARunHoldsAtLeast) {
  constexpr std::uint64_t kGiB = std::uint64_t{1} << 30;
  EXPECT_EQ(check_memory(kGiB, 4 * kGiB).health, Health::kOk);
  EXPECT_EQ(check_memory(3 * kGiB, 4 * kGiB).health, Health::kWarning);
  EXPECT_EQ(check_memory(5 * kGiB, 4 * kGiB).health, Health::kFailed);
  EXPECT_EQ(check_memory(kGiB, std::nullopt).health, Health::kWarning);

  RunConfig config;
  config.parallel.tensor = 4;
  const std::uint64_t all = least_memory_bytes(config, {4, 1});
  models::HostOpsOptions options;
  options.threads = config.backend.threads_per_rank;
  const std::uint64_t activations =
      models::pass_use(config.model, {.tensor_ranks = 4}, *models::host_ops_form(options, 4),
                       {config.training.batch_sequences, config.training.sequence_tokens})
          .memory;
  EXPECT_GT(activations, 0U);
  std::uint64_t elems = 0;  // elements of a rank, with its copies of replicated tensors
  for (const models::Gpt2Tensor& tensor : models::gpt2_tensors(config.model, 4, 0)) elems += tensor.slice.local_elems();
  EXPECT_EQ(all, 4 * (16 * elems + activations));
  EXPECT_EQ(least_memory_bytes(config, {1, 1}), all / 4);
  // Two stages share the layers, but not the slots of four micro-batches between their passes.
  RunConfig stages = config;
  stages.parallel.pipeline = 2;
  stages.training.accumulation = 4;
  stages.pipeline.schedule = models::ScheduleKind::kGpipe;
  const std::uint64_t gpipe = least_memory_bytes(stages, {1, 1});
  stages.pipeline.schedule = models::ScheduleKind::kOneForwardOneBackward;
  const std::uint64_t alternating = least_memory_bytes(stages, {1, 1});
  EXPECT_LT(alternating, gpipe);
  EXPECT_GT(gpipe - 8 * elems, activations);
  config.device = Device::kCuda;
  EXPECT_EQ(least_memory_bytes(config, {4, 1}), 4 * 16 * elems);
  // Replicas that shard the optimizer state, and remember all parameters if these can be stale.
  config.parallel.data = 2;
  const std::uint64_t whole = least_memory_bytes(config, {1, 1});
  config.sharding.zero = 1;
  const std::uint64_t sharded = least_memory_bytes(config, {1, 1});
  EXPECT_NEAR(static_cast<double>(whole - sharded), 4.0 * static_cast<double>(elems),
              0.05 * static_cast<double>(elems));
  comm::HalfNetwork& gather = config.network.of(sim::TrafficClass::kParameterGather).emplace().gather;
  gather.fill = comm::Fill::kStale;
  gather.loss = std::make_shared<sim::Bernoulli>(0.1);
  EXPECT_NEAR(static_cast<double>(least_memory_bytes(config, {1, 1}) - sharded), 4.0 * static_cast<double>(elems),
              0.05 * static_cast<double>(elems));
}

TEST(MachineChecks, MemoryIsReadFromTheSystemsText) {
  const std::string key = "MemAvailable:";
  EXPECT_EQ(meminfo_bytes("MemTotal:  2 kB\nMemAvailable:     12 kB\n", key), 12 * 1024u);
  EXPECT_EQ(meminfo_bytes("MemTotal:  2 kB\nMemAvailable:     12 kB\n", "MemTotal:"), 2 * 1024u);
  EXPECT_EQ(meminfo_bytes("MemTotal:  2 kB\n", key), std::nullopt);
  EXPECT_EQ(meminfo_bytes("MemAvailable: x kB\n", key), std::nullopt);
  EXPECT_EQ(meminfo_bytes("MemAvailable:", key), std::nullopt);
  EXPECT_GT(available_memory_bytes().value_or(0), 0u);
  EXPECT_GE(total_memory_bytes().value_or(0), available_memory_bytes().value_or(1));
}

TEST(MachineChecks, TheSmallestLimitOfAJobsControlGroupsCounts) {
  const TemporaryFolder folder;
  const std::string& root = folder.path();
  const auto put = [&root](const std::string& file, const std::string& text) {
    write_file_atomically(root + "/" + file, text + "\n");
  };
  EXPECT_EQ(memory_limit_bytes("0::/slurm/job/step\n", root), std::nullopt);
  put("slurm/job/step/memory.max", "max");
  EXPECT_EQ(memory_limit_bytes("0::/slurm/job/step\n", root), std::nullopt);
  put("slurm/job/memory.max", "3000");
  put("slurm/memory.max", "4000");
  put("other/memory.max", "1");
  EXPECT_EQ(memory_limit_bytes("0::/slurm/job/step\n", root), 3000u);
  EXPECT_EQ(memory_limit_bytes("0::/slurm\n", root), 4000u);
  put("memory.max", "2000");  // limit of the container; paths are those of the host
  EXPECT_EQ(memory_limit_bytes("0::/nowhere\n", root), 2000u);
  put("memory/job/memory.limit_in_bytes", "500");
  EXPECT_EQ(memory_limit_bytes("4:cpu,memory:/job\n3:cpu:/job\n", root), 500u);
  EXPECT_EQ(memory_limit_bytes("3:cpu:/job\nrubbish\n", root), std::nullopt);
}

TEST(MachineChecks, BytesHaveThreeFigures) {
  EXPECT_EQ(bytes_text(1023), "1023 bytes");
  EXPECT_EQ(bytes_text(1024), "1 KiB");
  EXPECT_EQ(bytes_text(std::uint64_t{64} << 20), "64 MiB");
  EXPECT_EQ(bytes_text(std::uint64_t{3} << 29), "1.5 GiB");
}

TEST(MachineChecks, ADiskThatIsTooSmallFails) {
  EXPECT_EQ(check_disk("/", 1).health, Health::kOk);
  EXPECT_EQ(check_disk("/no/such/folder", ~std::uint64_t{0}).health, Health::kFailed);
}

GroupReport report_of(const std::vector<std::string>& hosts) {
  GroupReport report;
  for (const std::string& host : hosts) {
    report.ranks.push_back({host, {0, 1}, "droptest 1", {}});
    report.clock_offsets_seconds.push_back(0);
  }
  report.points.push_back({1024, 5, 1e-3, 0});
  return report;
}

TEST(GroupChecks, AGroupInOrderIsOk) {
  const std::vector<Finding> findings = group_findings(report_of({"a", "a", "b", "b"}), 1);
  EXPECT_THAT(finding_of(findings, "hosts").seen, HasSubstr("4 ranks on 2 machines: a (2), b (2)"));
  for (const Finding& finding : findings) EXPECT_EQ(finding.health, Health::kOk) << finding.check;
}

TEST(GroupChecks, MoreThreadsThanCoresOfAMachineAreAWarning) {
  GroupReport report = report_of({"a", "a", "b"});
  EXPECT_EQ(finding_of(group_findings(report, 2), "cores").health, Health::kWarning);
  // The separate cores of ranks add up.
  report.ranks[1].cores = {2, 3};
  const Finding finding = finding_of(group_findings(report, 2), "cores");
  EXPECT_EQ(finding.health, Health::kOk);
  EXPECT_THAT(finding.seen, HasSubstr("a: 2 x 2 threads on 4 cores; b: 1 x 2 threads on 2 cores"));
}

TEST(GroupChecks, AnotherBuildOnOneRankFails) {
  GroupReport report = report_of({"a", "b", "c"});
  report.ranks[2].build = "droptest 2";
  const Finding finding = finding_of(group_findings(report, 1), "builds");
  EXPECT_EQ(finding.health, Health::kFailed);
  EXPECT_THAT(finding.seen, HasSubstr("rank 2 on c has droptest 2"));
}

TEST(GroupChecks, AClockThatIsOffByMoreThanASecondIsAWarning) {
  GroupReport report = report_of({"a", "b", "c"});
  report.clock_offsets_seconds = {0, 0.9, -1};
  EXPECT_EQ(finding_of(group_findings(report, 1), "clocks").health, Health::kOk);
  report.clock_offsets_seconds[2] = -1.5;
  const Finding finding = finding_of(group_findings(report, 1), "clocks");
  EXPECT_EQ(finding.health, Health::kWarning);
  EXPECT_THAT(finding.seen, HasSubstr("rank 2 on c is 1.5 s behind"));
}

TEST(GroupChecks, WrongSumsFail) {
  GroupReport report = report_of({"a", "a"});
  report.points.push_back({4096, 5, 1e-3, 2});
  const Finding finding = finding_of(group_findings(report, 1), "all-reduce");
  EXPECT_EQ(finding.health, Health::kFailed);
  EXPECT_THAT(finding.seen, HasSubstr("4 KiB: 2 elements are not the sum"));
}

TEST(GroupChecks, WhatOtherRanksFoundIsNamedAfterThem) {
  GroupReport report = report_of({"a", "b"});
  report.ranks[0].findings = {{"corpus", "", Health::kFailed, "x: no such file", ""}};
  report.ranks[1].findings = {{"corpus", "", Health::kFailed, "x: no such file", ""},
                              {"corpus", "", Health::kFailed, "y: no such file", "copy it"},
                              {std::string(kHostNameCheck), "", Health::kWarning, "loopback", ""}};
  std::vector<Finding> findings = group_findings(report, 1);
  EXPECT_EQ(finding_of(findings, "corpus").about, "rank 1 on b");
  EXPECT_EQ(finding_of(findings, "corpus").seen, "y: no such file");
  EXPECT_EQ(finding_of(findings, "host name").health, Health::kWarning);
  EXPECT_FALSE(on_one_host(report));

  report.ranks[1].host = "a";
  EXPECT_TRUE(on_one_host(report));
  findings = group_findings(report, 1);
  EXPECT_THAT(findings, Not(::testing::Contains(::testing::Field(&Finding::check, kHostNameCheck))));
}

TEST(GroupChecks, RanksTellEachOtherWhatTheyAreAndMeasure) {
  comm::run_ranks(3, kTimeout, [](comm::Communicator& group) {
    RankFacts own = own_facts();
    own.host = std::string(static_cast<std::size_t>(group.rank()) * 7, 'h');  // texts of several lengths, one empty
    if (group.rank() == 1) own.findings.push_back({"corpus", "", Health::kFailed, "\xff", ""});
    // Rank 0's plan counts.
    const BandwidthPlan plan{
        .from_bytes = 64, .to_bytes = group.rank() == 0 ? std::uint64_t{256} : 4096, .repetitions = 2};
    const GroupReport report = examine_group(group, own, plan);
    ASSERT_EQ(report.ranks.size(), 3u);
    EXPECT_EQ(report.ranks[0].host, "");
    EXPECT_EQ(report.ranks[2].host, "hhhhhhhhhhhhhh");
    EXPECT_EQ(report.ranks[1].findings.size(), 1u);
    EXPECT_EQ(report.ranks[2].cores, own.cores);
    EXPECT_EQ(report.clock_offsets_seconds.at(0), 0);
    // One clock, which all read between a barrier and a gathering that must end within the timeout.
    EXPECT_LT(std::abs(report.clock_offsets_seconds.at(2)), std::chrono::duration<double>(kTimeout).count());
    ASSERT_EQ(report.points.size(), 2u);
    EXPECT_EQ(report.points.back().wrong_elements, 0u);

    const GroupReport copy = group_report_from_json(nlohmann::json::parse(to_json(report).dump()));
    EXPECT_EQ(to_json(copy), to_json(report));
  });
}

TEST(Finding, ItsRecordReadsBack) {
  for (const Health health : {Health::kOk, Health::kWarning, Health::kFailed, Health::kSkipped}) {
    const Finding finding{"corpus", "rank 1", health, "seen", "advice"};
    const Finding copy = finding_from_json(to_json(finding));
    EXPECT_EQ(to_json(copy), to_json(finding));
    EXPECT_EQ(copy.health, health);
  }
}

}  // namespace
}  // namespace droptest::experiments::doctor_test
