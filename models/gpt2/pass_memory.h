// SPDX-License-Identifier: Apache-2.0
// The memory of the passes of all stages of a rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "models/gpt2/stage_plan.h"

namespace droptest::models {

/// The offsets of the slots of a rank's stages in one piece of memory. In training, stages share their working memory.
/// In an evaluation they do not, because the result of one stage is in use while another is computed.
class PassMemory {
 public:
  /// `slots` has the number of slots of each stage.
  PassMemory(const std::vector<StagePlan>& plans, const std::vector<std::uint64_t>& slots, bool shares_working);

  std::uint64_t bytes() const { return bytes_; }
  std::uint64_t saved(std::size_t stage, std::uint64_t slot) const {
    return saved_[stage].offset + slot * saved_[stage].of_slot;
  }
  std::uint64_t working(std::size_t stage) const { return working_[stage]; }

 private:
  struct Saved {
    std::uint64_t offset;
    std::uint64_t of_slot;
  };
  std::vector<Saved> saved_;
  std::vector<std::uint64_t> working_;
  std::uint64_t bytes_ = 0;
};

}  // namespace droptest::models
