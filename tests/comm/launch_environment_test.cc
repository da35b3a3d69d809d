// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/launch_environment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stdlib.h>

#include "sim/error.h"

namespace droptest::comm::launch_environment_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const Environment kTorchrun = {{"RANK", "3"},
                               {"WORLD_SIZE", "8"},
                               {"LOCAL_RANK", "1"},
                               {"LOCAL_WORLD_SIZE", "4"},
                               {"MASTER_ADDR", "node-1.example"},
                               {"MASTER_PORT", "29500"},
                               {"TORCHELASTIC_RUN_ID", "none"},
                               {"TORCHELASTIC_RESTART_COUNT", "2"}};
const Environment kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                              {"OMPI_COMM_WORLD_SIZE", "4"},
                              {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                              {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                              {"PMIX_NAMESPACE", "1234@1"}};
const Environment kPmi = {
    {"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "2"}, {"MPI_LOCALNRANKS", "3"}, {"PMI_JOBID", "77.0"}};
const Environment kSlurm = {{"SLURM_PROCID", "5"},
                            {"SLURM_NTASKS", "7"},
                            {"SLURM_LOCALID", "1"},
                            {"SLURM_NODEID", "2"},
                            {"SLURM_STEP_TASKS_PER_NODE", "2(x2),3"},
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
            int local_world_size, const std::string& launch_id) {
  const auto launch = launch_environment(environment);
  ASSERT_TRUE(launch.has_value());
  EXPECT_EQ(launch->launcher, launcher);
  EXPECT_EQ(launch->rank, rank);
  EXPECT_EQ(launch->world_size, world_size);
  EXPECT_EQ(launch->local_rank, local_rank);
  EXPECT_EQ(launch->local_world_size, local_world_size);
  EXPECT_EQ(launch->launch_id, launch_id);
}

TEST(LaunchEnvironment, ReadsEachLauncher) {
  expect(kTorchrun, "torchrun", 3, 8, 1, 4, "torchrun-none.node-1_example.29500.restart-2");
  expect(kOpenMpi, "Open MPI", 1, 4, 0, 2, "openmpi-1234_1");
  expect(kPmi, "PMI", 2, 3, 2, 3, "pmi-77_0");
  expect(kSlurm, "Slurm", 5, 7, 1, 3, "slurm-42.3");
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
         {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
          "PMI_RANK", "PMI_SIZE", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"}) {
      Environment half = whole;
      if (half.erase(name) == 0) continue;
      EXPECT_THAT(error_of(half), AllOf(HasSubstr(std::string(name) + ": is not set"), HasSubstr("although")));
    }
  }
}

TEST(LaunchEnvironment, WhoSetsRankByHandNeedNotSayWhichOfItsNode) {
  expect({{"RANK", "1"}, {"WORLD_SIZE", "2"}}, "torchrun", 1, 2, -1, -1, "");
  expect({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}, "PMI", 1, 2, -1, -1, "");
}

TEST(LaunchEnvironment, LocalRanksFitTheirNode) {
  Environment environment = kTorchrun;
  environment["LOCAL_RANK"] = "4";
  EXPECT_THAT(error_of(environment), HasSubstr("LOCAL_RANK: got \"4\", want an integer in [0, 3]"));
  environment["LOCAL_WORLD_SIZE"] = "9";
  EXPECT_THAT(error_of(environment), HasSubstr("LOCAL_WORLD_SIZE: got \"9\", want an integer in [1, 8]"));
}

TEST(LaunchEnvironment, SlurmSaysTheRanksOfAllNodesInOneList) {
  const auto of_node = [](const std::string& list, const std::string& node) {
    Environment environment = kSlurm;
    environment["SLURM_STEP_TASKS_PER_NODE"] = list;
    environment["SLURM_NODEID"] = node;
    return launch_environment(environment)->local_world_size;
  };
  EXPECT_EQ(of_node("4", "0"), 4);
  EXPECT_EQ(of_node("1,2,3", "1"), 2);
  EXPECT_EQ(of_node("2(x3),1", "2"), 2);
  EXPECT_EQ(of_node("2(x3),1", "3"), 1);
  for (const char* bad : {"", "2", "2(x", "2(x1),x", "0(x9)", "2(xx9)", "2(x9"}) {
    EXPECT_THROW(of_node(bad, "2"), ConfigError) << bad;
  }
  Environment silent = kSlurm;
  silent.erase("SLURM_STEP_TASKS_PER_NODE");
  EXPECT_EQ(launch_environment(silent)->local_world_size, -1);
}

TEST(LaunchEnvironment, TheMasterIsWhereRankZeroIs) {
  EXPECT_EQ(master_host(kTorchrun), "node-1.example");
  EXPECT_EQ(master_port(kTorchrun), 29500);
  EXPECT_FALSE(master_host({}).has_value());
  EXPECT_FALSE(master_port({}).has_value());
  EXPECT_THROW(master_host({{"MASTER_ADDR", ""}}), ConfigError);
  for (const char* bad : {"", "0", "65536", "x", "29500 ", "-1"}) {
    try {
      master_port({{"MASTER_PORT", bad}});
      ADD_FAILURE() << bad;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr("MASTER_PORT: got \"" + std::string(bad) + "\", want an integer in [1, 65535]"));
    }
  }
}

TEST(LaunchEnvironment, ThePortOfTorchrunsAgentIsLeftToIt) {
  Environment environment = kTorchrun;
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_EQ(master_port(environment), 29500);
  environment["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_EQ(master_port(environment), 29501);
  environment["MASTER_PORT"] = "65535";
  EXPECT_THROW(master_port(environment), ConfigError);
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

TEST(LaunchEnvironment, AnInterfaceIsOneOfThisMachine) {
  EXPECT_EQ(gloo_interface({}), "");
  EXPECT_EQ(gloo_interface({{"GLOO_SOCKET_IFNAME", ""}}), "");
  EXPECT_EQ(gloo_interface({{"GLOO_SOCKET_IFNAME", "lo"}}), "lo");
  for (const std::string name : {"nosuch0", "lo,eth0", "lo,lo", " lo", "=lo"}) {
    try {
      (void)gloo_interface({{"GLOO_SOCKET_IFNAME", name}});
      ADD_FAILURE() << name;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr("GLOO_SOCKET_IFNAME: got \"" + name +
                                                "\", want the name of one interface of this machine: "),
                                      HasSubstr("lo")));
    }
  }
}

}  // namespace
}  // namespace droptest::comm::launch_environment_test
