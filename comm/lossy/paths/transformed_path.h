// SPDX-License-Identifier: Apache-2.0
// A path with transformed messages: interleaved, or as their randomised Hadamard transform.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "comm/lossy/paths/message_transform.h"
#include "comm/lossy/paths/path.h"

namespace droptest::comm {

/// Decorates any path: transforms each part of a message that travels by itself before the run of the path, and inverts
/// the transform after it. Sums and fills act on transformed values.
/// Reductions: interleaving moves elements, so results without loss keep their bits; the Hadamard transform rounds.
/// Throws: ConfigError as MessageTransform::check() does.
class TransformedPath final : public Path {
 public:
  /// `context` is the path's own; `seed` is the experiment's.
  TransformedPath(std::unique_ptr<Path> path, const PathContext& context, std::uint64_t seed);

  void plan(const CallArguments& call, CallFates& fates) override;
  void run(const CallArguments& call, Communicator& inner, Scratch& scratch) override;
  CodingErrors coding_errors() const override { return path_->coding_errors(); }
  EndErrors compare_ends(Communicator& inner) override { return path_->compare_ends(inner); }

 private:
  std::unique_ptr<Path> path_;
  PathContext context_;
  PathMessages messages_;
  MessageTransform transform_;
};

/// The path itself, or its decorator if the network's recovery transforms messages.
std::unique_ptr<Path> with_transforms(std::unique_ptr<Path> path, const PathContext& context, std::uint64_t seed);

}  // namespace droptest::comm
