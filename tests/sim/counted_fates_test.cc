// SPDX-License-Identifier: Apache-2.0
#include "sim/loss/counted_fates.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "sim/error.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/pattern.h"

namespace droptest::sim::counted_fates_test {
namespace {

const Link kLink{TrafficClass::kTpForward, Half::kGather, 3, 1};
constexpr std::uint64_t kSeed = 21;

/// The digest and the bursts of CountedFates, counted message by message: its reference.
class OneByOne {
 public:
  PacketMask draw(const LossProcess& process, std::uint64_t first_packet, std::uint64_t packets) {
    PacketMask lost(packets);
    process.draw(kSeed, kLink, first_packet, lost);
    add(first_packet, lost);
    return lost;
  }
  void add(std::uint64_t first_packet, const PacketMask& lost) {
    digest_.add(first_packet, lost);
    bursts_.add(lost);
  }
  void interrupt() { bursts_.interrupt(); }
  void expect_same(const CountedFates& fates) const {
    EXPECT_EQ(fates.digest(), digest_.value());
    EXPECT_EQ(fates.bursts().counts(), bursts_.counts());
    EXPECT_EQ(fates.bursts().gaps(), bursts_.gaps());
    EXPECT_EQ(fates.bursts().stretches(), bursts_.stretches());
    EXPECT_EQ(fates.bursts().bursts(), bursts_.bursts());
  }

 private:
  FateDigest digest_{kLink};
  BurstHistogram bursts_;
};

std::vector<std::unique_ptr<LossProcess>> processes() {
  std::vector<std::unique_ptr<LossProcess>> all;
  for (const double p : {0.0, 0.01, 0.4, 1.0}) all.push_back(std::make_unique<Bernoulli>(p));
  all.push_back(std::make_unique<GilbertElliott>(rates_of_burst(0.05, 8)));
  all.push_back(std::make_unique<GilbertElliott>(GilbertElliottRates{0.7, 0.8, 0.1, 0.9}));
  return all;
}

class Twins {
 public:
  explicit Twins(std::uint64_t first_packet) : next_(first_packet) {}

  void message(const LossProcess& process, std::uint64_t packets) {
    PacketMask lost(packets);
    fates_.draw(process, kSeed, next_, lost);
    ASSERT_EQ(lost, twin_.draw(process, next_, packets)) << process.describe() << " from " << next_;
    next_ += packets;
  }
  void add(const LossProcess& process, std::uint64_t packets) {
    const PacketMask lost = twin_.draw(process, next_, packets);
    fates_.add(next_, next_, lost);
    next_ += packets;
  }
  /// Packets that all arrive.
  void skip(std::uint64_t packets) {
    if (packets > 0) twin_.interrupt();
    next_ += packets;
  }
  void expect_same() const { twin_.expect_same(fates_); }

 private:
  std::uint64_t next_;
  CountedFates fates_{kLink};
  OneByOne twin_;
};

TEST(CountedFates, AreThoseOfMessagesOneByOne) {
  std::mt19937 sizes(1);  // NOLINT(cert-msc32-c,cert-msc51-cpp): the same sizes each time
  for (const auto& process : processes()) {
    // The last link runs over the end of the index.
    for (const std::uint64_t first :
         {std::uint64_t{0}, std::uint64_t{37}, std::uint64_t{5} << 48, ~std::uint64_t{2000}}) {
      for (const std::uint64_t most : {3U, 372U, 1279U, 1280U, 1281U, 3000U, 6000U}) {
        Twins twins(first);
        for (int message = 0; message < 60; ++message) {
          ASSERT_NO_FATAL_FAILURE(twins.message(*process, message % 7 == 3 ? most : sizes() % (most + 1)));
          if (message % 17 == 0) twins.expect_same();
        }
        twins.expect_same();
      }
    }
  }
}

TEST(CountedFates, MayChangeTheProcessAndLeavePacketsOut) {
  const auto all = processes();
  std::mt19937 choices(2);  // NOLINT(cert-msc32-c,cert-msc51-cpp)
  for (int link = 0; link < 20; ++link) {
    Twins twins(1000);
    for (int message = 0; message < 200; ++message) {
      const LossProcess& process = *all[message / 9 % all.size()];
      const std::uint64_t packets = choices() % 500;
      switch (choices() % 8) {
        case 0:
          twins.skip(packets);
          break;
        case 1:
          twins.add(process, packets);
          break;
        default:
          ASSERT_NO_FATAL_FAILURE(twins.message(process, packets));
      }
      if (choices() % 16 == 0) twins.expect_same();
    }
    twins.expect_same();
  }
}

TEST(CountedFates, AnotherSeedBeginsAnew) {
  const Bernoulli process(0.3);
  CountedFates fates(kLink);
  std::uint64_t next = 0;
  for (const std::uint64_t seed : {1U, 1U, 2U, 1U}) {
    PacketMask lost(100);
    PacketMask expected(100);
    fates.draw(process, seed, next, lost);
    process.draw(seed, kLink, next, expected);
    EXPECT_EQ(lost, expected) << seed;
    next += 100;
  }
}

/// Says how many packets it was asked for.
class Asked final : public LossProcess {
 public:
  void draw(std::uint64_t seed, const Link& link, std::uint64_t first_packet, PacketMask& lost) const override {
    packets += lost.size();
    ++calls;
    process_.draw(seed, link, first_packet, lost);
  }
  double loss_rate() const override { return process_.loss_rate(); }
  double mean_burst_packets() const override { return process_.mean_burst_packets(); }
  double mean_gap_packets() const override { return process_.mean_gap_packets(); }
  double burst_at_least(std::uint64_t p) const override { return process_.burst_at_least(p); }
  double lost_count_variance(std::uint64_t n) const override { return process_.lost_count_variance(n); }
  std::string describe() const override { return process_.describe(); }

  mutable std::uint64_t packets = 0;
  mutable int calls = 0;

 private:
  Bernoulli process_{0.01};
};

TEST(CountedFates, DrawManyMessagesAtATimeButNeverMoreThanWereUsed) {
  Asked process;
  CountedFates fates(kLink);
  for (std::uint64_t message = 0; message < 400; ++message) {
    PacketMask lost(100);
    fates.draw(process, kSeed, 100 * message, lost);
    const std::uint64_t used = 100 * (message + 1);
    EXPECT_LE(process.packets, 2 * used + 63) << "message " << message;
    EXPECT_LE(process.packets, used + 64 * 80);
  }
  EXPECT_LT(process.calls, 400 / 16);
}

TEST(CountedFates, RefuseAProcessThatLooksAtMoreThanTheIndex) {
  const Pattern every_tenth(1, 9, 0);
  PacketMask lost(10);
  EXPECT_THROW(CountedFates(kLink).draw(every_tenth, kSeed, 0, lost), CheckError);
}

}  // namespace
}  // namespace droptest::sim::counted_fates_test
