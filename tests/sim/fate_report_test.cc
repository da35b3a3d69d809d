// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/fate_report.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/no_loss.h"

namespace droptest::sim::fate_report_test {
namespace {

const Link kLink{TrafficClass::kTpForward, Half::kReduce, 1, 2};

TEST(FateReport, CountsAndScales) {
  const GilbertElliott process({0.01, 0.25, 0, 1});
  const FateReport report = report_fates(process, 1, kLink, 500, 100000);
  PacketMask mask(100000);
  process.draw(1, kLink, 500, mask);
  EXPECT_EQ(report.fates, mask);
  EXPECT_EQ(report.lost, mask.lost_count());
  std::uint64_t bursts = 0;
  for (std::uint64_t i = 0; i < mask.size(); ++i) bursts += mask.lost(i) && (i == 0 || !mask.lost(i - 1)) ? 1 : 0;
  EXPECT_EQ(report.bursts, bursts);
  EXPECT_DOUBLE_EQ(report.realised_rate, static_cast<double>(report.lost) / 1e5);
  EXPECT_DOUBLE_EQ(report.mean_burst_packets, static_cast<double>(report.lost) / static_cast<double>(bursts));
  EXPECT_DOUBLE_EQ(report.z,
                   (static_cast<double>(report.lost) - 1e5 / 26) / std::sqrt(process.lost_count_variance(100000)));
  EXPECT_LT(std::fabs(report.z), 5);
  EXPECT_DOUBLE_EQ(report.configured_rate, 1.0 / 26);
  EXPECT_DOUBLE_EQ(report.configured_mean_burst_packets, 4);
  EXPECT_NE(report.digest, 0U);
}

TEST(FateReport, HasNoDeviationWhereNothingIsRandom) {
  EXPECT_EQ(report_fates(NoLoss(), 1, kLink, 0, 1000).z, 0);
  const FateReport all = report_fates(Bernoulli(1), 1, kLink, 0, 1000);
  EXPECT_EQ(all.z, 0);
  EXPECT_EQ(all.mean_burst_packets, 1000);
  const FateReport none = report_fates(Bernoulli(0.1), 1, kLink, 0, 0);
  EXPECT_EQ(none.z, 0);
  EXPECT_EQ(none.realised_rate, 0);
  EXPECT_EQ(render_runs(none), "first_packet burst_packets\n");
  EXPECT_EQ(render_bits(none), "");
}

TEST(FateReport, RendersRunsAndBits) {
  FateReport report;
  report.first_packet = 1000;
  report.packets = 200;
  report.fates.resize(200);
  for (const std::uint64_t lost : {0, 1, 5, 62, 63, 64, 65, 198, 199}) report.fates.set_lost(lost);
  EXPECT_EQ(render_runs(report), "first_packet burst_packets\n1000 2\n1005 1\n1062 4\n1198 2\n");
  const std::string bits = render_bits(report);
  EXPECT_EQ(bits, "11000100" + std::string(54, '0') + "11\n11" + std::string(62, '0') + "\n" + std::string(64, '0') +
                      "\n" + std::string(6, '0') + "11\n");
}

TEST(FateReport, RunsAndBitsTellTheSameStory) {
  const FateReport report = report_fates(GilbertElliott({0.05, 0.2, 0.01, 0.9}), 3, kLink, 0, 5000);
  std::string from_runs(5000, '0');
  const std::string runs = render_runs(report);
  std::size_t line = runs.find('\n') + 1;
  while (line < runs.size()) {
    const std::size_t space = runs.find(' ', line);
    const std::size_t end = runs.find('\n', line);
    const auto first = static_cast<std::size_t>(std::stoul(runs.substr(line, space - line)));
    const auto length = static_cast<std::size_t>(std::stoul(runs.substr(space + 1, end - space - 1)));
    from_runs.replace(first, length, length, '1');
    line = end + 1;
  }
  std::string bits = render_bits(report);
  bits.erase(std::remove(bits.begin(), bits.end(), '\n'), bits.end());
  EXPECT_EQ(bits, from_runs);
}

TEST(FateReport, RefusesMorePacketsThanAMaskMayHold) {
  EXPECT_THROW(report_fates(NoLoss(), 1, kLink, 0, kMostReportedPackets + 1), ConfigError);
}

}  // namespace
}  // namespace droptest::sim::fate_report_test
