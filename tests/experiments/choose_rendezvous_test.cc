// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/choose_rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sim/error.h"

namespace droptest::experiments::choose_rendezvous_test {
namespace {

using comm::Environment;
using comm::Rendezvous;
using Kind = comm::Rendezvous::Kind;
using ::testing::HasSubstr;

const Environment kMaster = {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "29500"}};

Rendezvous tcp(const std::string& host, int port) {
  return {.kind = Kind::kTcp, .directory = "", .host = host, .port = port, .launch_id = ""};
}

std::string error_of(const std::optional<Rendezvous>& named, const Environment& environment) {
  try {
    choose_rendezvous(named, environment, "folder");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ChooseRendezvous, TheLauncherDecidesWhereTheSpecDoesNot) {
  const Rendezvous by_tcp = choose_rendezvous(std::nullopt, kMaster, "folder");
  EXPECT_EQ(by_tcp.kind, Kind::kTcp);
  EXPECT_EQ(by_tcp.host, "node1");
  EXPECT_EQ(by_tcp.port, 29500);
  const Rendezvous by_file = choose_rendezvous(std::nullopt, {{"RANK", "1"}}, "folder");
  EXPECT_EQ(by_file.kind, Kind::kFile);
  EXPECT_EQ(by_file.directory, "folder");
}

TEST(ChooseRendezvous, TheSpecOverridesTheLauncher) {
  EXPECT_EQ(choose_rendezvous(Rendezvous{}, kMaster, "folder").directory, "folder");
  Rendezvous named;
  named.directory = "shared";
  EXPECT_EQ(choose_rendezvous(named, kMaster, "folder").directory, "shared");
  named.kind = Kind::kRedis;
  named.host = "cache";
  EXPECT_EQ(choose_rendezvous(named, {{"MASTER_PORT", "bad"}}, "folder").host, "cache");
  const Rendezvous both = choose_rendezvous(tcp("node7", 12345), {{"MASTER_PORT", "bad"}}, "folder");
  EXPECT_EQ(both.host, "node7");
  EXPECT_EQ(both.port, 12345);
  EXPECT_EQ(choose_rendezvous(tcp("node7", 0), kMaster, "folder").port, 29500);
  EXPECT_EQ(choose_rendezvous(tcp("", 12345), kMaster, "folder").host, "node1");
}

TEST(ChooseRendezvous, WhatIsMissingOrWrongIsNamed) {
  EXPECT_THAT(error_of(std::nullopt, {{"MASTER_ADDR", "node1"}}), HasSubstr("as MASTER_PORT in the environment"));
  EXPECT_THAT(error_of(std::nullopt, {{"MASTER_PORT", "29500"}}), HasSubstr("as MASTER_ADDR in the environment"));
  EXPECT_THAT(error_of(tcp("", 1), {}), HasSubstr("/backend/rendezvous/host: a rendezvous by TCP needs it"));
  EXPECT_THAT(error_of(tcp("h", 0), {}), HasSubstr("/backend/rendezvous/port: a rendezvous by TCP needs it"));
  EXPECT_THAT(error_of(std::nullopt, {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "http"}}),
              HasSubstr("MASTER_PORT: got \"http\", want an integer in [1, 65535]"));
}

}  // namespace
}  // namespace droptest::experiments::choose_rendezvous_test
