// SPDX-License-Identifier: Apache-2.0
// The layout of the buffers of a pass in memory.
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

/// The memory of a pass over one shape of batch, planned by a dry run of Stage (models/ops/planner_ops.h). Buffers that
/// are never in use at the same time may overlap. If a backward pass follows, each micro-batch between its two passes
/// has a slot of saved activations; all slots share one piece of working memory. Needs no device.
class StagePlan {
 public:
  /// `sent_past` is that of this stage. The form is only used in the constructor. Throws: CheckError that names a
  /// parameter with too few elements.
  StagePlan(const Gpt2Config& config, const StageRange& range, int world_size, int rank, const OpsForm& form,
            const BatchShape& batch, Keep keep, const SentPast& sent_past = {}, const SlotOptions& options = {});

  const BatchShape& batch() const { return batch_; }
  const MemoryPlan& saved() const { return saved_; }
  const MemoryPlan& working() const { return working_; }
  /// The collectives of tensor-parallel ranks, in order: those of the forward pass, then those of the head and the
  /// backward pass.
  const std::vector<comm::DryCall>& forward_calls() const { return forward_calls_; }
  const std::vector<comm::DryCall>& later_calls() const { return later_calls_; }
  /// The bytes of a slot that are offloaded (Ops::offload()), and the bytes of the buffers of offloading.
  std::uint64_t stored_bytes() const { return stored_bytes_; }
  std::uint64_t passing_bytes() const { return passing_bytes_; }
  /// The bytes of `slots` slots and the working memory.
  std::uint64_t bytes(std::uint64_t slots) const { return slots * saved_.bytes() + working_.bytes(); }
  /// The purpose of the memory, for errors: "activations of a batch of 4 x 1024 tokens (3.1 GiB logits, ...)".
  std::string purpose() const;

  /// The buffers of slot number `slot` of `slots` in `memory`. The tensors are used in the order of `stream`. Shapes:
  /// `memory` has at least bytes(slots) bytes.
  StageBuffers placed(std::byte* memory, std::uint64_t slot, std::uint64_t slots, const OpsForm& form,
                      comm::Stream* stream) const {
    return placed_at(memory + slot * saved_.bytes(), memory + slots * saved_.bytes(), slot, form, stream);
  }
  /// The buffers of a slot with saved and working memory at separate addresses. Shapes: at least saved().bytes() and
  /// working().bytes().
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
