// SPDX-License-Identifier: Apache-2.0
#include "comm/launch_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdlib.h>

#include "sim/error.h"

namespace droptest::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Environment kTorchrun = {{"RANK", "3"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"MASTER_ADDR", "node-1.example"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_RUN_ID", "none"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                              {"PMIX_NAMESPACE", "1234@1"}};
const Environment kPmi = {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "2"}, {"PMI_JOBID", "77.0"}};
const Environment kSlurm = {{"SLURM_PROCID", "5"},
                            {"SLURM_NTASKS", "6"},
                            {"SLURM_LOCALID", "1"},
                            {"SLURM_JOB_ID", "42"},
                            {"SLURM_STEP_ID", "3"}};

std::string error_of(const Environment& environment) {
  try {
    launch_environment(environment);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

void expect(const Environment& environment, const std::string& launcher, int rank, int world_size, int local_rank,
            const std::string& launch_id) {
  const auto launch = launch_environment(environment);
  ASSERT_TRUE(launch.has_value());
  EXPECT_EQ(launch->launcher, launcher);
  EXPECT_EQ(launch->rank, rank);
  EXPECT_EQ(launch->world_size, world_size);
  EXPECT_EQ(launch->local_rank, local_rank);
  EXPECT_EQ(launch->launch_id, launch_id);
}

TEST(LaunchEnvironment, ReadsEachLauncher) {
  expect(kTorchrun, "torchrun", 3, 8, 1, "torchrun-none.node-1_example.29500.restart-2");
  expect(kOpenMpi, "Open MPI", 1, 4, 0, "openmpi-1234_1");
  expect(kPmi, "PMI", 2, 3, 2, "pmi-77_0");
  expect(kSlurm, "Slurm", 5, 6, 1, "slurm-42.3");
}

TEST(LaunchEnvironment, IsNothingWhereNoLauncherSpeaks) {
  EXPECT_FALSE(launch_environment({}).has_value());
  EXPECT_FALSE(launch_environment({{"HOME", "/root"}, {"SLURM_JOB_ID", "42"}}).has_value());
}

TEST(LaunchEnvironment, TheFirstLauncherInOrderSpeaks) {
  Environment all = kTorchrun;
  for (const Environment& other : {kOpenMpi, kPmi, kSlurm}) all.insert(other.begin(), other.end());
  const auto launcher_without = [&all](const std::string& prefix) {
    for (auto it = all.begin(); it != all.end();) it = it->first.starts_with(prefix) ? all.erase(it) : std::next(it);
    return launch_environment(all)->launcher;
  };
  EXPECT_EQ(launch_environment(all)->launcher, "torchrun");
  all.erase("RANK");
  all.erase("WORLD_SIZE");
  EXPECT_EQ(launcher_without("LOCAL_RANK"), "Open MPI");
  EXPECT_EQ(launcher_without("OMPI_"), "PMI");
  EXPECT_EQ(launcher_without("PMI_"), "Slurm");
}

TEST(LaunchEnvironment, NamesTheVariableThatIsMissing) {
  for (const Environment& whole : {kTorchrun, kOpenMpi, kPmi, kSlurm}) {
    for (const char* name :
         {"RANK", "WORLD_SIZE", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
          "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"}) {
      Environment half = whole;
      if (half.erase(name) == 0) continue;
      EXPECT_THAT(error_of(half), AllOf(HasSubstr(std::string(name) + ": is not set"), HasSubstr("although")));
    }
  }
}

TEST(LaunchEnvironment, RefusesWhatIsNoRank) {
  for (const char* bad : {"8", "-1", "", "3x", "1.0", " 1", "99999999999"}) {
    Environment environment = kTorchrun;
    environment["RANK"] = bad;
    EXPECT_THAT(error_of(environment), HasSubstr("RANK: got \"" + std::string(bad) + "\", want an integer in [0, 7]"));
  }
  Environment empty_world = kTorchrun;
  empty_world["WORLD_SIZE"] = "0";
  EXPECT_THAT(error_of(empty_world), HasSubstr("WORLD_SIZE: got \"0\", want an integer in [1, "));
}

TEST(LaunchEnvironment, AShellOfAnAllocationIsNoRank) {
  for (const char* step : {"", "4294967291", "4294967290"}) {  // none, batch script, interactive
    Environment shell = kSlurm;
    shell.erase("SLURM_STEP_ID");
    if (*step != 0) shell["SLURM_STEP_ID"] = step;
    EXPECT_FALSE(launch_environment(shell).has_value()) << step;
  }
}

TEST(LaunchEnvironment, SeesTheVariablesOfThisProcess) {
  ASSERT_EQ(::setenv("DROPTEST_TEST_VARIABLE", "a=b", 1), 0);
  EXPECT_EQ(process_environment().at("DROPTEST_TEST_VARIABLE"), "a=b");
  ::unsetenv("DROPTEST_TEST_VARIABLE");
}

}  // namespace
}  // namespace droptest::comm
