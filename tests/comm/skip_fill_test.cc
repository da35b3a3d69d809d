// SPDX-License-Identifier: Apache-2.0
// The fill `skip`: a receiver has the values for the lost elements of a message from another message.
#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <vector>

#include "comm/run_ranks.h"
#include "sim/error.h"
#include "tests/comm/lossy_recovery.h"

namespace droptest::comm::skip_fill_test {
namespace {

constexpr std::size_t kFloats = 300;  // 19 packets, the last one short

ClassNetwork skip_network(double rate) {
  ClassNetwork network = recovery_network("direct", 0, rate);
  network.gather.fill = Fill::kSkip;
  return network;
}

/// What rank 1 has after a message from rank 0. The substitute is written between the start and the wait.
Floats received(const ClassNetwork& network, const Floats& substitute) {
  Floats result;
  run_ranks(2, kRecoveryTimeout, [&](Communicator& inner) {
    LossyCommunicator lossy(inner, recovery_options(network));
    Message message{kRecoveryClass, "activation", 0};
    const Floats sent = recovery_values(3, 0, kFloats);
    if (inner.rank() == 0) {
      lossy.start_send(std::span<const float>(sent), 1, message).wait();
      return;
    }
    Floats data(kFloats, -7);
    Floats past(substitute.size(), -8);
    message.substitute = std::span<const float>(past);
    Work work = lossy.start_recv(std::span(data), 0, message);
    past = substitute;
    work.wait();
    result = data;
  });
  return result;
}

TEST(SkipFill, PutsTheSubstituteInThePlaceOfLostValuesAlone) {
  const Floats sent = recovery_values(3, 0, kFloats);
  const Floats past = recovery_values(1, 5, kFloats);
  const Floats zeros = received(skip_network(0.4), {});
  const Floats got = received(skip_network(0.4), past);
  std::size_t lost = 0;
  for (std::size_t i = 0; i < kFloats; ++i) {
    EXPECT_EQ(got[i], zeros[i] == 0 ? past[i] : sent[i]) << i;
    if (zeros[i] == 0) ++lost;
  }
  EXPECT_GT(lost, 0U);
  EXPECT_LT(lost, kFloats);
  EXPECT_EQ(received(skip_network(1), past), past);
  EXPECT_EQ(received(skip_network(1), {}), Floats(kFloats, 0));
}

// Lost packets are missing from the transformed message, and the substitute's transform fills them.
TEST(SkipFill, StandsInForTransformedMessagesToo) {
  ClassNetwork network = skip_network(1);
  network.recovery.interleave_packets = 4;
  const Floats past = recovery_values(1, 5, kFloats);
  EXPECT_EQ(received(network, past), past);
  network.recovery.hadamard_block_elems = 64;
  const Floats got = received(network, past);
  for (std::size_t i = 0; i < kFloats; ++i) EXPECT_NEAR(got[i], past[i], 1e-5) << i;
}

TEST(SkipFill, RefusesASubstituteOfAnotherShape) {
  EXPECT_THROW(received(skip_network(1), Floats(kFloats - 1)), CheckError);
}

}  // namespace
}  // namespace droptest::comm::skip_fill_test
