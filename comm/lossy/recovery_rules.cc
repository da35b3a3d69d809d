// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/recovery_rules.h"

#include <bit>
#include <string>

#include "comm/lossy/path_registry.h"
#include "sim/recovery/hadamard.h"

namespace droptest::comm {
namespace {

void refuse_half(const HalfNetwork& half, const std::string& name, std::vector<RecoveryRefusal>& refusals) {
  if (half.recovery == nullptr) return;
  const std::string pointer = "/" + name + "/recovery";
  if (half.recovery->is_reliable() && can_lose_all(half)) {
    refusals.push_back({pointer + "/retransmit",
                        "got no budget of rounds on links that lose everything, where no number of rounds is enough; "
                        "want rounds, or a loss rate below 1"});
  }
  if (half.loss == nullptr) return;
  if (half.fill == Fill::kInverseProbability && !residual_rate(half).has_value()) {
    refusals.push_back({pointer, "got " + half.recovery->describe() + " under " + half.loss->describe() +
                                     ", whose rate of missing packets has no closed form, beside the fill " +
                                     "inverse_probability, which divides by it; want another fill"});
  }
}

}  // namespace

std::optional<double> residual_rate(const HalfNetwork& half) {
  if (half.loss == nullptr || !half.loss->can_lose()) return 0;
  return half.recovery == nullptr ? half.loss->loss_rate() : half.recovery->residual_rate(*half.loss);
}

std::optional<double> residual_rate(const HalfNetwork& half, std::uint64_t packets) {
  if (half.loss == nullptr || !half.loss->can_lose()) return 0;
  return half.recovery == nullptr ? half.loss->loss_rate() : half.recovery->residual_rate(*half.loss, packets);
}

std::vector<RecoveryRefusal> recovery_refusals(const ClassNetwork& network) {
  std::vector<RecoveryRefusal> refusals;
  refuse_half(network.reduce, "reduce", refusals);
  refuse_half(network.gather, "gather", refusals);
  const ClassRecovery& recovery = network.recovery;
  if (recovery.interleave_packets == 0) refusals.push_back({"/recovery/interleave", "got 0, want at least 1"});
  const std::uint64_t block = recovery.hadamard_block_elems;
  if (block != 0 && (!std::has_single_bit(block) || block < 2 || block > sim::RandomisedHadamard::kMostBlock)) {
    refusals.push_back({"/recovery/hadamard/block", "got " + std::to_string(block) + ", want a power of two in [2, " +
                                                        std::to_string(sim::RandomisedHadamard::kMostBlock) + "]"});
  }
  if (recovery.error_feedback == ClassRecovery::ErrorFeedback::kOn) {
    const std::string pointer = "/recovery/error_feedback";
    if (path_entry(network.path).feedback == SenderFeedback::kNone) {
      refusals.push_back({pointer, "got true on path " + std::string(network.path) +
                                       ", whose senders do not know which of their own values were lost; want false"});
    }
    if (network.reduce.fill != Fill::kZero) {
      refusals.push_back({pointer, "got true beside the fill " + std::string(fill_entry(network.reduce.fill).name) +
                                       " of the reduce half, which makes up for a lost contribution at once, so that "
                                       "it would be counted twice; want the fill zero"});
    }
  }
  return refusals;
}

}  // namespace droptest::comm
