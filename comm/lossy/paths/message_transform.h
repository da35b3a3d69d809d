// SPDX-License-Identifier: Apache-2.0
// The transforms of messages before they are cut into packets: interleaving, and the randomised Hadamard transform.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "comm/lossy/fill/scratch.h"
#include "comm/lossy/network.h"
#include "sim/recovery/hadamard.h"

namespace droptest::comm {

/// The transform of a class's messages (Hadamard first, then interleaving), and its inverse. Both steps are linear and
/// the same on all ranks; the inverse spreads the hole of a lost packet, and the values that fill it, over the
/// message. The transform is the identity if the network's recovery has neither step.
class MessageTransform {
 public:
  /// `network` is borrowed and outlives this; `seed` is the experiment's.
  MessageTransform(const ClassNetwork& network, std::uint64_t seed);

  bool is_identity() const;
  /// Throws: ConfigError for a maximum and for integers, if the Hadamard transform is in use.
  void check(ReduceOp op, ElementType type, const Message& message) const;

  /// Transform in place. `parts` has the number of elements of each message in `data`, one message after the other;
  /// each message is transformed by itself.
  void forward(Tensor data, std::span<const std::uint64_t> parts);
  void inverse(Tensor data, std::span<const std::uint64_t> parts);
  /// Changes `lost` (Message::lost) from elements of transformed values to the elements over which inverse() spreads
  /// them.
  void inverse(std::vector<sim::ElementRange>& lost, ElementType type, std::span<const std::uint64_t> parts) const;
  /// Transforms a copy in `scratch`: a caller's input is never written.
  ConstTensor transformed(ConstTensor input, std::span<const std::uint64_t> parts, Scratch& scratch);

 private:
  enum class Turn : std::uint8_t { kIn, kOut };
  void interleave(Tensor part, Turn turn);

  const ClassNetwork& network_;
  std::optional<sim::RandomisedHadamard> hadamard_;
  std::vector<std::byte> order_;  // a copy of a part in its old order, while the part is reordered
};

}  // namespace droptest::comm
