// SPDX-License-Identifier: Apache-2.0
// Operations that compute nothing: they record which buffers a pass uses, and when, and make its collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/ops/memory_plan.h"
#include "models/ops/ops.h"

namespace droptest::models {

/// A dry run of passes and updates with the form of an implementation. It makes the collectives of its group. Time
/// counts operations. A buffer is in use from the first operation that gets it to the last one; a buffer of a sum or
/// gather that was begun is in use until join(). Tensors have addresses, but no memory. All numbers are finite, so that
/// no update is skipped. Throws: CheckError if a tensor has fewer elements than the operation's extents require.
class PlannerOps : public Ops {
 public:
  /// A new buffer of the plan. Error texts add up the buffers of one name.
  virtual comm::Tensor buffer(std::string name, comm::ElementType type, std::uint64_t elems) = 0;
  virtual TokenIds token_buffer(std::string name, std::uint64_t count) = 0;
  /// Begins another pass, which reads nothing that earlier passes left in the buffers. The times so far become
  /// PlannedBuffer::earlier.
  virtual void begin_pass() = 0;
  /// All buffers in the order of the calls, with their times so far; first_time is -1 if this pass has not used the
  /// buffer.
  virtual const std::vector<PlannedBuffer>& buffers() const = 0;
  /// From now on, errors about the tensor at that address contain this name.
  virtual void name_tensor(comm::ConstTensor tensor, std::string name) = 0;
  /// The address of `bytes` bytes that no other tensor has, a multiple of MemoryPlan::kAlignmentBytes.
  virtual std::byte* reserve(std::uint64_t bytes) = 0;
  /// The bytes of the values in all keyed storage. The buffers of keyed storage are not among them: a storage's
  /// buffer_bytes() counts KeyedStorage::kMostBuffers buffers of its largest values.
  virtual std::uint64_t stored_bytes() const = 0;
};

/// `form` and `group` are borrowed. The group sends nothing (comm::DryCommunicator).
std::unique_ptr<PlannerOps> make_planner_ops(const OpsForm& form, comm::Communicator& group);

}  // namespace droptest::models
