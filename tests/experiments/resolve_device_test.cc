// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "comm/device/device_info.h"
#include "experiments/spec/resolve.h"
#include "tests/comm/error_text.h"
#include "tests/experiments/resolved_spec.h"

namespace droptest::experiments::resolve_device_test {
namespace {

using ::testing::HasSubstr;

TEST(ResolveDevice, IsNamedWhereItIsNotTheCpu) {
  EXPECT_FALSE(resolved(kTwoRanks).spec.contains("device"));
  EXPECT_FALSE(resolved(kTwoRanks, {"/device=cpu"}).spec.contains("device"));
  EXPECT_EQ(resolved(kTwoRanks, {"/device=cpu"}).config.device, Device::kCpu);
  // Whether there is one here is asked when the run starts: specs are checked on machines that will not run them.
  const ResolvedRun cuda = resolved(kTwoRanks, {"/device=cuda"});
  EXPECT_EQ(cuda.spec.at("device"), "cuda");
  EXPECT_EQ(cuda.config.device, Device::kCuda);
  EXPECT_EQ(resolve(cuda.spec, "again").run_id, cuda.run_id);
}

TEST(ResolveDevice, CudaTakesDropout) {
  for (const char* kernel : {"flash", "plain"}) {
    const std::string attention = std::string("/kernels={\"attention\": \"") + kernel + "\"}";
    const ResolvedRun run = resolved(kTwoRanks, {"/device=cuda", "/training/dropout=0.1", attention});
    EXPECT_EQ(run.config.model.dropout.attention, 0.1);
    EXPECT_EQ(run.config.model.dropout.residual, 0.1);
    EXPECT_EQ(run.config.model.dropout.embedding, 0.1);
    EXPECT_EQ(resolve(run.spec, "again").run_id, run.run_id);
  }
  (void)resolved(kTwoRanks, {"/device=cuda", "/training/dropout=0.1", "/parallel/sequence=2"});
}

TEST(ResolveDevice, AutoBecomesWhatThisMachineHas) {
  const bool here = comm::survey_devices().absence.empty();
  const ResolvedRun run = resolved(kTwoRanks, {"/device=auto"});
  EXPECT_EQ(run.config.device, here ? Device::kCuda : Device::kCpu);
  EXPECT_EQ(run.run_id, resolved(kTwoRanks, {here ? "/device=cuda" : "/device=cpu"}).run_id);
  EXPECT_EQ(resolved(kTwoRanks, {"/device=auto", "/backend/name=gloo"}).config.device, Device::kCpu);
  EXPECT_EQ(resolved(kTwoRanks, {"/device=auto", "/backend/name=nccl"}).config.device, Device::kCuda);
}

TEST(ResolveDevice, BackendsThatCannotUseTheDeviceAreRefused) {
  EXPECT_THAT(config_error_of([] { resolved(kTwoRanks, {"/backend/name=nccl"}); }),
              HasSubstr(R"(s.json: /device: got "cpu", want "cuda" with backend "nccl")"));
  for (const char* host_only : {"gloo", "udp"}) {
    const std::string backend = std::string("/backend/name=") + host_only;
    EXPECT_THAT(config_error_of([&] {
                  resolved(kTwoRanks, {backend, "/device=cuda"});
                }),
                HasSubstr(std::string("s.json: /backend/name: got \"") + host_only + "\" with device \"cuda\""));
  }
}

}  // namespace
}  // namespace droptest::experiments::resolve_device_test
