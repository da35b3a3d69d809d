// SPDX-License-Identifier: Apache-2.0
#include "comm/backend_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "sim/error.h"

namespace droptest::comm::backend_registry_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(BackendRegistry, ListsTheBackendsInOrder) {
  std::vector<std::string> names;
  for (const BackendEntry& entry : backends()) names.emplace_back(entry.name);
  EXPECT_EQ(names, (std::vector<std::string>{"local", "gloo", "nccl", "udp"}));
  EXPECT_TRUE(backend_entry("local").built);
  EXPECT_EQ(backend_entry("local").rank_kind, RankKind::kThreads);
  EXPECT_EQ(backend_entry("gloo").rank_kind, RankKind::kProcesses);
}

TEST(BackendRegistry, AnUnknownNameListsTheKnownOnes) {
  EXPECT_EQ(error_of([] { backend_entry("mpi"); }), "backend: got \"mpi\", want one of local, gloo, nccl, udp");
}

TEST(BackendRegistry, ABackendThatIsNotBuiltSaysWhatIs) {
  for (const BackendEntry& entry : backends()) {
    if (entry.built && entry.rank_kind == RankKind::kProcesses) continue;
    EXPECT_THAT(error_of([&] { entry.connect({}); }),
                AllOf(HasSubstr(std::string(entry.name) + ": "), HasSubstr("built: " + built_backends_text())));
  }
  EXPECT_THAT(built_backends_text(), HasSubstr("local"));
  EXPECT_FALSE(backend_entry("udp").built);
}

}  // namespace
}  // namespace droptest::comm::backend_registry_test
