// SPDX-License-Identifier: Apache-2.0
// Retransmission of lost packets, with a budget of rounds or without: which packets stay missing, and the extra time.
// Smallest example: go_back_0.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "sim/parameters.h"
#include "sim/recovery/link_recovery.h"
#include "sim/recovery/parity.h"

namespace droptest::sim {

/// Largest number of times that a sender may send again; nothing: no limit.
using RoundBudget = std::optional<std::uint64_t>;

/// Expected tries above which a message is refused: its run would not end, or its time would mean nothing.
constexpr double kMostExpectedTries = 1000;

/// A protocol that repeats lost packets, until all have arrived or its budget of rounds is spent. The receiver's
/// feedback is never lost. Expectations are those of independent loss of rate p < 1 without parity; each stands next to
/// its implementation with its source.
class Retransmission : public LinkRecovery {
 public:
  explicit Retransmission(RoundBudget rounds) : rounds_(rounds) {}

  std::uint64_t first_packets(std::uint64_t data_packets) const override { return data_packets; }
  std::uint64_t position(std::uint64_t data_packet, std::uint64_t /*data_packets*/) const override {
    return data_packet;
  }
  /// 0 for an unlimited budget, else nothing: protocols that take packets in order lose the end of a message rather
  /// than its beginning.
  std::optional<double> residual_rate(const LossProcess& process, std::uint64_t data_packets) const override;
  std::optional<double> residual_rate(const LossProcess& process) const override;
  bool is_reliable() const override { return !rounds_.has_value(); }
  bool sends_again() const override { return true; }

  /// E[share of a message's packets that stay missing].
  virtual double expected_missing(double p, std::uint64_t packets) const = 0;

  /// E[Repair::extra_seconds] of one message.
  virtual double expected_extra_seconds(double p, std::uint64_t packets, const LinkTiming& timing) const = 0;

  double expected_tries(const LossProcess& process, std::uint64_t packets) const override;

 protected:
  const RoundBudget& rounds() const { return rounds_; }
  std::string budget_text() const;
  /// The budget; if it is unlimited, the rounds after which give_up() ends the walk of a message.
  std::uint64_t most_rounds(std::uint64_t packets) const;
  /// Throws: ConfigError: a message is not across after so many rounds.
  [[noreturn]] void give_up(std::uint64_t rounds, std::uint64_t packets) const;

 private:
  RoundBudget rounds_;
};

/// The time of a repetition: when the sender hears of the loss, or when a timer ends, which doubles up to the longest
/// one.
struct RepeatTimer {
  std::optional<double> first_seconds;  ///< absent: a round trip after each round
  double longest_seconds = 0;           ///< first_seconds or more; if they are equal, so are all timers

  /// The wait after round number `round`, from 1.
  double wait_seconds(std::uint64_t round, const LinkTiming& timing) const;
};

/// Each round sends only the packets that are still missing. If there is a parity code, it sends the packets of blocks
/// that cannot be repaired yet: a block is repaired as soon as at most m of its k + m packets are missing.
/// Source: selective-repeat ARQ, e.g. Bertsekas and Gallager, Data Networks, 2nd ed., section 2.4.3.
class SelectiveRepeat final : public Retransmission {
 public:
  explicit SelectiveRepeat(RoundBudget rounds, std::optional<Parity> parity = std::nullopt, RepeatTimer timer = {});

  std::uint64_t first_packets(std::uint64_t data_packets) const override;
  std::uint64_t position(std::uint64_t data_packet, std::uint64_t data_packets) const override;
  Repair recover(const PacketMask& lost, const DrawAgain& draw_again, const LinkTiming& timing,
                 PacketMask& missing) const override;
  /// p^(rounds + 1) for Bernoulli and, without a clock, for Gilbert-Elliott. A parity code leaves no closed form,
  /// except 0 for an unlimited budget.
  std::optional<double> residual_rate(const LossProcess& process, std::uint64_t data_packets) const override;
  std::optional<double> residual_rate(const LossProcess& process) const override;
  double expected_missing(double p, std::uint64_t packets) const override;
  double expected_extra_seconds(double p, std::uint64_t packets, const LinkTiming& timing) const override;
  std::string describe() const override;

 private:
  void drop_repaired(const std::vector<std::uint64_t>& parity_lost, PacketMask& missing) const;

  std::optional<Parity> parity_;
  RepeatTimer timer_;
};

/// The receiver takes packets only in order. After a loss it drops the up to window - 1 packets that were on their way
/// behind it, and the sender goes back to the lost packet: one more round. When the budget of rounds is spent, all
/// packets from the lost one to the end of the message are missing.
/// Source: go-back-N ARQ, Bertsekas and Gallager, section 2.4.2.
class GoBackN final : public Retransmission {
 public:
  /// `window_packets`: slots from a lost packet to its repetition; absent: one and a round trip.
  /// Throws: ConfigError for a window of 0 packets.
  explicit GoBackN(RoundBudget rounds, std::optional<std::uint64_t> window_packets = std::nullopt);

  Repair recover(const PacketMask& lost, const DrawAgain& draw_again, const LinkTiming& timing,
                 PacketMask& missing) const override;
  double expected_missing(double p, std::uint64_t packets) const override;
  double expected_extra_seconds(double p, std::uint64_t packets, const LinkTiming& timing) const override;
  std::string describe() const override;

 private:
  std::optional<std::uint64_t> window_packets_;
};

/// The whole message is sent again, a window after the lost packet. A receiver takes only whole messages: if the budget
/// is spent, all of it is missing.
/// Source: the first RDMA cards over Ethernet; Guo et al., SIGCOMM 2016, section 4.1.
class GoBack0 final : public Retransmission {
 public:
  explicit GoBack0(RoundBudget rounds, std::optional<std::uint64_t> window_packets = std::nullopt);

  Repair recover(const PacketMask& lost, const DrawAgain& draw_again, const LinkTiming& timing,
                 PacketMask& missing) const override;
  double expected_missing(double p, std::uint64_t packets) const override;
  double expected_extra_seconds(double p, std::uint64_t packets, const LinkTiming& timing) const override;
  double expected_tries(const LossProcess& process, std::uint64_t packets) const override;
  std::string describe() const override;

 private:
  std::optional<std::uint64_t> window_packets_;
};

/// One entry: the "protocol" of a spec, a line for `droptest list`, and how to make it.
struct RetransmissionEntry {
  std::string_view protocol;
  std::string_view summary;
  std::shared_ptr<const Retransmission> (*make)(const Parameters&, RoundBudget, const std::optional<Parity>&);
};

/// All known protocols, in the order in which they are listed.
const std::vector<RetransmissionEntry>& retransmission_protocols();

/// Makes the protocol that `parameters` describes: {"protocol": ..., "rounds": n, and its own parameters}; without
/// "rounds" there is no limit. The timer of {"protocol": "timeout"} starts at "timeout_microseconds" and doubles with
/// each round up to "longest_timeout_microseconds". The default of that maximum is 60 s, the least that RFC 6298 (2.5
/// and 5.5) allows, or the first timer if that is longer. Without a maximum the mean of the waits would not exist from
/// a loss rate of 1/2 on.
/// Throws: ConfigError for an unknown protocol (listing the known ones), an unknown or out-of-range parameter, and a
/// protocol that has no meaning with parity.
std::shared_ptr<const Retransmission> make_retransmission(const Parameters& parameters,
                                                          const std::optional<Parity>& parity = std::nullopt);

}  // namespace droptest::sim
