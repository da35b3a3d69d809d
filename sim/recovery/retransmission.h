// SPDX-License-Identifier: Apache-2.0
// Sending again what was lost: selective repeat and go-back-N, with a budget of rounds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/recovery/link_recovery.h"
#include "sim/recovery/parity.h"

namespace droptest::sim {

/// Times that a sender may send again; nothing: as often as it takes.
using RoundBudget = std::optional<std::uint64_t>;

/// Each round sends the packets that are still missing, and only those. Together with a parity code, the packets of
/// blocks that cannot be repaired yet: a block is repaired as soon as at most m of its k + m packets are missing.
/// Source: selective-repeat ARQ, e.g. Bertsekas and Gallager, Data Networks, 2nd ed., section 2.4.3.
class SelectiveRepeat final : public LinkRecovery {
 public:
  explicit SelectiveRepeat(RoundBudget rounds, std::optional<Parity> parity = std::nullopt);

  std::uint64_t first_packets(std::uint64_t data_packets) const override;
  std::uint64_t position(std::uint64_t data_packet, std::uint64_t data_packets) const override;
  Repair recover(const PacketMask& lost, const DrawAgain& draw_again, PacketMask& missing) const override;
  /// p^(rounds + 1) for Bernoulli and Gilbert-Elliott; nothing beside a parity code, unless unlimited (0).
  std::optional<double> residual_rate(const LossProcess& process, std::uint64_t data_packets) const override;
  std::optional<double> residual_rate(const LossProcess& process) const override;
  bool is_reliable() const override { return !rounds_.has_value(); }
  bool sends_again() const override { return true; }
  std::string describe() const override;

 private:
  void drop_repaired(const std::vector<std::uint64_t>& parity_lost, PacketMask& missing) const;

  RoundBudget rounds_;
  std::optional<Parity> parity_;
};

/// The receiver takes packets in order only. After a loss it drops the up to window - 1 packets that were on their way
/// behind it, and the sender goes back to the lost packet: one more round. What is not taken within the budget of
/// rounds is missing, from there to the end of the message.
/// Source: go-back-N ARQ, Bertsekas and Gallager, section 2.4.2.
class GoBackN final : public LinkRecovery {
 public:
  /// Throws: ConfigError for a window of 0 packets.
  GoBackN(RoundBudget rounds, std::uint64_t window_packets);

  std::uint64_t first_packets(std::uint64_t data_packets) const override { return data_packets; }
  std::uint64_t position(std::uint64_t data_packet, std::uint64_t /*data_packets*/) const override {
    return data_packet;
  }
  Repair recover(const PacketMask& lost, const DrawAgain& draw_again, PacketMask& missing) const override;
  /// Nothing, unless unlimited (0): which packets are missing depends on all before them.
  std::optional<double> residual_rate(const LossProcess& process, std::uint64_t data_packets) const override;
  std::optional<double> residual_rate(const LossProcess& process) const override;
  bool is_reliable() const override { return !rounds_.has_value(); }
  bool sends_again() const override { return true; }
  std::string describe() const override;

 private:
  RoundBudget rounds_;
  std::uint64_t window_packets_;
};

/// Expected rounds until all of a message's packets have arrived by selective repeat, with independent loss p < 1:
/// the sum over k >= 0 of 1 - (1 - p^k)^n. Source: the maximum of n geometric variables.
double expected_selective_repeat_rounds(double p, std::uint64_t data_packets);

/// Expected packet slots that go-back-N takes with independent loss p < 1: n (1 + p W / (1 - p)), where each failure
/// costs the whole window. Source: Bertsekas and Gallager, section 2.4.2, efficiency (1 - p) / (1 - p + p W).
double expected_go_back_n_slots(double p, std::uint64_t window_packets, std::uint64_t data_packets);

}  // namespace droptest::sim
