// SPDX-License-Identifier: Apache-2.0
// A path whose messages are written otherwise: interleaved, or as their randomised Hadamard transform.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "comm/lossy/path.h"
#include "sim/packets/interleaver.h"
#include "sim/recovery/hadamard.h"

namespace droptest::comm {

/// Decorates any path: each part of a message that has one owner is transformed (Hadamard first, then interleaved) on
/// its way in and back on its way out. Both are linear and the same on all ranks, so sums and fills go on in between;
/// what a lost packet takes, and what a fill puts in its place, is spread over the message when it is turned back.
/// Reductions: interleaving moves elements, so results without loss keep their bits; the Hadamard transform rounds.
/// Throws: ConfigError, where the Hadamard transform is in use, for a maximum and for integers.
class TransformedPath final : public Path {
 public:
  /// `context` is the path's own; `seed` is the experiment's.
  TransformedPath(std::unique_ptr<Path> path, const PathContext& context, std::uint64_t seed);

  void all_reduce(ConstTensor input, Tensor output, ReduceOp op, const Message& message) override;
  void reduce_scatter(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts, ReduceOp op,
                      const Message& message) override;
  void all_gather(ConstTensor input, Tensor output, std::span<const std::uint64_t> counts,
                  const Message& message) override;
  void all_to_all(ConstTensor input, std::span<const std::uint64_t> send_counts, Tensor output,
                  std::span<const std::uint64_t> receive_counts, const Message& message) override;
  void broadcast(Tensor data, int root, const Message& message) override;
  void send(ConstTensor data, int destination, const Message& message) override;
  void recv(Tensor data, int source, const Message& message) override;

 private:
  using Counts = std::span<const std::uint64_t>;
  void check(ReduceOp op, ElementType type, const Message& message) const;
  void forward(Tensor data, Counts parts);
  void inverse(Tensor data, Counts parts);
  enum class Turn : std::uint8_t { kIn, kOut };
  void interleave(Tensor part, Turn turn);
  ConstTensor transformed(ConstTensor input, Counts parts);
  bool fill_keeps_output() const { return keeps_own(context_.network.gather.fill); }

  std::unique_ptr<Path> path_;
  PathContext context_;
  std::optional<sim::RandomisedHadamard> hadamard_;
  std::vector<std::byte> order_;  // a part in the order in which it was, while it is written anew
};

/// The path itself, or in its decorator where the network's recovery transforms messages.
std::unique_ptr<Path> with_transforms(std::unique_ptr<Path> path, const PathContext& context, std::uint64_t seed);

}  // namespace droptest::comm
