// SPDX-License-Identifier: Apache-2.0
// Operations that compute nothing: they write down which buffers a pass uses, and when, and make its calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/ops/memory_plan.h"
#include "models/ops/ops.h"

namespace droptest::models {

/// A dry run of passes and updates in place of an implementation of a form, which makes the calls of its group. Time
/// counts operations. A buffer is in use from the first operation that gets it to the last; one of a reduction that was
/// begun, until join(). Tensors have addresses, but no memory. All numbers are finite, so that no update is skipped.
/// Throws: CheckError where a tensor has fewer elements than the operation's extents say.
class PlannerOps : public Ops {
 public:
  /// A buffer of the plan. Buffers of one name are added up for people.
  virtual comm::Tensor buffer(std::string name, comm::ElementType type, std::uint64_t elems) = 0;
  virtual TokenIds token_buffer(std::string name, std::uint64_t count) = 0;
  /// Another pass begins, for which buffers hold nothing of the passes so far: their times so far are earlier ones.
  virtual void begin_pass() = 0;
  /// All buffers in the order of the calls, with the times seen so far; first_time is -1 for one that this pass has not
  /// used.
  virtual const std::vector<PlannedBuffer>& buffers() const = 0;
  /// From now on errors about the tensor at that address say this name, too.
  virtual void name_tensor(comm::ConstTensor tensor, std::string name) = 0;
  /// The address of so many bytes that no other tensor has, a multiple of MemoryPlan::kAlignmentBytes.
  virtual std::byte* reserve(std::uint64_t bytes) = 0;
  /// Of the values that all storage by key has had. The buffers of such storage are counted as those of the most values
  /// that can be on their way at once.
  virtual std::uint64_t stored_bytes() const = 0;
};

/// The form and the group, which sends nothing (comm::DryCommunicator), are borrowed.
std::unique_ptr<PlannerOps> make_planner_ops(const OpsForm& form, comm::Communicator& group);

}  // namespace droptest::models
