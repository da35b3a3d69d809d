// SPDX-License-Identifier: Apache-2.0
// The expected number of lost packets of a link, while processes and places change along it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include "sim/loss/fate_chain.h"
#include "sim/loss/link.h"
#include "sim/loss/loss_process.h"
#include "sim/state_visitor.h"

namespace droptest::sim {

/// The order in which the messages of a link come: by their draws (LossProcess::first_draw()), or any order.
enum class MessageOrder : std::uint8_t { kByDraw, kAny };

/// Mean and variance of the number of packets that a link lost, message by message. Packets with neighbouring draws
/// under one process are one stretch, whose variance holds the correlation of all its packets. The covariance of two
/// stretches follows from the chains of their processes (FateChain); stretches of processes without a chain are taken
/// as independent. Counts of packets with fixed fates (Trace, Pattern) are exact.
class LostCountTheory {
 public:
  /// Largest number of stretches that are known at a time, for messages in any order. If there are more, the one that
  /// is farthest from the last message ends. The covariance of a later message with the ended stretch then counts only
  /// if the draws of the message are behind those of the next stretch.
  static constexpr std::size_t kMostStretches = 256;

  /// Takes a message of the link. `process` is the one in force in `step`, of the process that visit_state() gets, and
  /// outlives this object. A message whose draws were used before counts as independent of all others.
  void add(const LossProcess& process, std::uint64_t step, std::uint64_t seed, const Link& link,
           const MessagePosition& place, std::uint64_t packets, MessageOrder order = MessageOrder::kByDraw);

  /// Takes a message that is independent of all others.
  void add_alone(const LossProcess& process, std::uint64_t seed, const Link& link, const MessagePosition& place,
                 std::uint64_t packets);

  /// The mean and the variance of the number lost of all messages so far.
  LostCount total() const;

  /// `configured` is the process of the link for all steps; null: nothing was ever added.
  void visit_state(StateVisitor& visitor, const LossProcess* configured);

 private:
  struct Stretch {
    std::uint64_t step = 0;          ///< step of its first message
    double packet_microseconds = 0;  ///< PacketTimes of its messages; 0: they have none
    std::uint64_t packets = 0;
    /// Covariances of the losses of all stretches before with the state of the packet before the first one.
    StateWeights before{};
    const LossProcess* process = nullptr;

    std::optional<FateChain> chain() const { return process->fate_chain(packet_microseconds); }
    void visit_state(StateVisitor& visitor) { visit_values(visitor, step, packet_microseconds, packets, before); }
  };
  using Stretches = std::map<std::uint64_t, Stretch>;  // keys: the draw of the first packet

  void write_back();
  Stretches::iterator place_message(std::uint64_t first, Stretch message);
  static void correlate(const Stretch& message, std::uint64_t end, Stretches::iterator behind,
                        Stretches::iterator last);
  StateWeights losses_before(std::uint64_t first, const Stretch& stretch, Stretches::const_iterator behind) const;
  void end_farthest(std::uint64_t from, Stretches::const_iterator own);
  static void fold(const Stretch& stretch, LostCount& sum);

  // The stretch that the last message lengthened, if it is the last one of the link: the next message mostly lengthens
  // it, too.
  const LossProcess* process_ = nullptr;  ///< null: no such stretch
  std::uint64_t next_ = 0;                ///< draw behind that stretch
  std::uint64_t grown_ = 0;               ///< packets that the entry of that stretch does not have yet
  double packet_microseconds_ = 0;
  std::uint64_t first_ = 0;
  LostCount ended_;
  Stretches stretches_;
  /// Memories in this order: collectives while the clock runs, collectives while it stands still, messages from send to
  /// recv while it runs, the same messages while it stands still.
  std::array<ClockMemory, 4> clock_{};
};

}  // namespace droptest::sim
