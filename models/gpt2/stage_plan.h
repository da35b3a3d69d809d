// SPDX-License-Identifier: Apache-2.0
// Where the buffers of a pass lie in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/dry_communicator.h"
#include "models/gpt2/stage_buffers.h"
#include "models/ops/memory_plan.h"
#include "models/ops/ops_form.h"

namespace droptest::models {

/// The memory of a pass over one shape of batch, found by a dry run of Stage (models/ops/planner_ops.h): buffers that
/// are never in use at once lie on each other. With Keep::kForBackward each micro-batch that is between its two passes
/// has a slot of saved activations, and all share one piece of working memory. Needs no device.
class StagePlan {
 public:
  /// `sent_past`: of this stage. The form is used in the constructor alone. Throws: CheckError that names a parameter
  /// with too few elements.
  StagePlan(const Gpt2Config& config, const StageRange& range, int world_size, int rank, const OpsForm& form,
            const BatchShape& batch, Keep keep, const SentPast& sent_past = {}, const SlotOptions& options = {});

  const BatchShape& batch() const { return batch_; }
  const MemoryPlan& saved() const { return saved_; }
  const MemoryPlan& working() const { return working_; }
  /// The calls of tensor-parallel ranks, in order: of the forward pass, and of the head and the backward pass.
  const std::vector<comm::DryCall>& forward_calls() const { return forward_calls_; }
  const std::vector<comm::DryCall>& later_calls() const { return later_calls_; }
  /// Of a slot's values that are stored outside of memory (Ops::offload()), and of the buffers through which they pass.
  std::uint64_t stored_bytes() const { return stored_bytes_; }
  std::uint64_t passing_bytes() const { return passing_bytes_; }
  /// Of `slots` slots and the working memory.
  std::uint64_t bytes(std::uint64_t slots) const { return slots * saved_.bytes() + working_.bytes(); }
  /// The purpose of the memory, for errors: "activations of a batch of 4 x 1024 tokens (3.1 GiB qkv, ...)".
  std::string purpose() const;

  /// The buffers of slot number `slot` of `slots` in that memory, whose tensors are used in the order of `stream`.
  /// Shapes: at least bytes(slots).
  StageBuffers placed(std::byte* memory, std::uint64_t slot, std::uint64_t slots, const OpsForm& form,
                      comm::Stream* stream) const {
    return placed_at(memory + slot * saved_.bytes(), memory + slots * saved_.bytes(), slot, form, stream);
  }
  /// The same with two places. Shapes: at least saved().bytes() and working().bytes().
  StageBuffers placed_at(std::byte* saved, std::byte* working, std::uint64_t slot, const OpsForm& form,
                         comm::Stream* stream) const;

 private:
  StageExtents extents_;
  BatchShape batch_;
  Keep keep_;
  SentPast sent_past_;
  SlotOptions options_;
  MemoryPlan saved_{{}};
  MemoryPlan working_{{}};
  std::uint64_t stored_bytes_ = 0;
  std::uint64_t passing_bytes_ = 0;
  std::vector<comm::DryCall> forward_calls_;
  std::vector<comm::DryCall> later_calls_;
};

}  // namespace droptest::models
