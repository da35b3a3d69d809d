// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/recovery_rules.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdio>
#include <string>

#include "comm/lossy/paths/path_registry.h"
#include "sim/recovery/hadamard.h"
#include "sim/recovery/retransmission.h"

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
  if (half.rule().scale == FillRule::Scale::kByRate && !residual_rate(half).has_value()) {
    refusals.push_back({pointer, "got " + half.recovery->describe() + " under " + half.loss->describe() +
                                     ", whose rate of missing packets has no closed form, with the fill " +
                                     "inverse_probability, which divides by it; want another fill"});
  }
}

std::string number_text(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", value);
  return text.data();
}

// Data packets of the largest message of each half, by sim::Half.
std::array<std::uint64_t, 2> largest_messages(const ClassNetwork& network, const AllReduceSize& size) {
  std::array<std::uint64_t, 2> largest = {0, 0};
  PathMessages messages(network, path_in(network, size.elements), size.ranks);
  const CallShape all_reduce{Operation::kAllReduce, size.type, size.elements};
  messages.visit(all_reduce, [&](const PathMessage& message) {
    std::uint64_t& of_half = largest[static_cast<std::size_t>(message.half)];
    of_half = std::max(of_half, message.packets.packets());
  });
  return largest;
}

// EF21: messages carry compressed differences, which both ends add to their states.
std::vector<RecoveryRefusal> with_states(const ClassNetwork& network, const std::string& pointer,
                                         std::vector<RecoveryRefusal> refusals) {
  const bool acknowledged = network.recovery.error_feedback == ClassRecovery::ErrorFeedback::kEf21Acknowledged;
  const std::string got = acknowledged ? "got \"ef21_acknowledged\"" : "got \"ef21\"";
  const Compression& compression = network.compression;
  const std::string want = "; want the compression float16, bfloat16, int8, int4 or top_k, or another error_feedback";
  if (compression.kind == CompressionKind::kNone) {
    refusals.push_back({pointer, got + ", which sends compressed differences, without a compression" + want});
  } else if (compression.kind == CompressionKind::kPowerSgd) {
    refusals.push_back({pointer, got +
                                     " with the compression power_sgd, whose factors are sums over ranks, so that a "
                                     "receiver has no difference of one sender" +
                                     want});
  }
  if (network.reduce.rule() != FillRule{}) {
    refusals.push_back({pointer, got + " with the fill " + std::string(fill_entry(network.reduce.fill).name) +
                                     " of the reduce half, but the values for a lost difference are those of the "
                                     "receiver's state; want the fill zero"});
  }
  return refusals;
}

}  // namespace

std::optional<std::string> endless_repetition(const ClassNetwork& network, const AllReduceSize& size) {
  if (size.ranks < 2) return std::nullopt;
  for (const sim::Half half : {sim::Half::kReduce, sim::Half::kGather}) {
    const HalfNetwork& of_half = network.of(half);
    const sim::LinkRecovery* recovery = of_half.recovery.get();
    if (recovery == nullptr || !recovery->is_reliable()) continue;
    const std::uint64_t packets = largest_messages(network, size)[static_cast<std::size_t>(half)];
    if (packets == 0) continue;  // no message of this half
    std::vector<const sim::LossProcess*> processes = {of_half.loss.get()};
    for (const LinkOverride& link : of_half.links) processes.push_back(link.loss.get());
    for (const sim::LossProcess* process : processes) {
      if (process == nullptr || !process->can_lose()) continue;
      const double tries = recovery->expected_tries(*process, packets);
      if (tries <= sim::kMostExpectedTries) continue;
      return "takes " + number_text(tries) + " tries on average for messages of up to " + std::to_string(packets) +
             " packets under " + process->describe() + "; want at most " + number_text(sim::kMostExpectedTries) +
             ": a lower loss rate, shorter messages, a budget of rounds, or a protocol that sends only lost packets "
             "(selective_repeat)";
    }
  }
  return std::nullopt;
}

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
  if (recovery.error_feedback != ClassRecovery::ErrorFeedback::kOff) {
    const std::string pointer = "/recovery/error_feedback";
    if (recovery.keeps_states()) return with_states(network, pointer, std::move(refusals));
    if (path_entry(network.path).feedback == SenderFeedback::kNone) {
      refusals.push_back({pointer, "got true on path " + std::string(network.path) +
                                       ", whose senders do not know which of their own values were lost; want false"});
    }
    if (network.reduce.rule() != FillRule{}) {
      refusals.push_back({pointer, "got true with the fill " + std::string(fill_entry(network.reduce.fill).name) +
                                       " of the reduce half, which makes up for a lost contribution at once, so that "
                                       "it would be counted twice; want the fill zero"});
    }
  }
  return refusals;
}

}  // namespace droptest::comm
