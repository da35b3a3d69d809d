// SPDX-License-Identifier: Apache-2.0
// A rank's state of training from the files of a checkpoint, of the same layout or another one.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "experiments/checkpoint/piece_filler.h"
#include "experiments/checkpoint/rank_snapshot.h"
#include "experiments/files/manifest.h"

namespace droptest::experiments {

/// A rank's part of a checkpoint, read and checked: the state is as it was until put().
class RestoredState {
 public:
  /// All state of a rank of the same run, from its file and the file with the tensors that it shares. Throws:
  /// ConfigError for a file that is damaged, or that has other tensors than the state.
  static RestoredState exactly(const std::string& folder, const Manifest& manifest, int rank,
                               const TrainingState& state);
  /// Parameters and optimizer of a rank of any layout, cut out of the files of all ranks: each element is that of the
  /// lowest rank that stored it. The progress is rank 0's; the state of the loss layer stays as it is. Rounded values
  /// that the checkpoint lacks stay, too. Memory: one file at a time. Throws: the errors of exactly(); ConfigError for
  /// elements that no file has.
  static RestoredState recut(const std::string& folder, const Manifest& manifest, const TrainingState& state);

  RestoredState(RestoredState&& other) noexcept;
  ~RestoredState();

  /// Waits for the device. Throws: ConfigError if the loss layer's state is that of another version.
  void put(const TrainingState& state);
  const CopiesDifference& difference() const;

 private:
  struct Content;
  explicit RestoredState(std::unique_ptr<Content> content);
  std::unique_ptr<Content> content_;
};

/// The weights in the files of all ranks.
struct CheckpointWeights {
  models::StoredTensors tensors;  ///< tensors of the whole model
  CopiesDifference difference;    ///< difference between the ranks' copies of it
};

/// Reads the weights. Each element is that of the lowest rank that stored it; the tied embedding is that of the stage
/// with the LM head.
CheckpointWeights weights_of_checkpoint(const std::string& folder, const Manifest& manifest);

}  // namespace droptest::experiments
