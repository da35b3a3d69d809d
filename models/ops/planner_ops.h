// SPDX-License-Identifier: Apache-2.0
// Operations that compute nothing: they write down which buffers a pass uses, and when.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/ops/memory_plan.h"
#include "models/ops/ops.h"
#include "sim/schedules/hop_schedule.h"

namespace droptest::models {

/// A collective of a dry run over the ranks of the operations: an all-reduce, or a reduce-scatter or an all-gather of
/// parts of these many elements.
struct PlannedReduction {
  sim::Collective collective = sim::Collective::kAllReduce;
  sim::TrafficClass traffic_class = sim::TrafficClass::kControl;
  std::string name;  ///< of its message
  std::uint64_t elems = 0;
  std::uint64_t bytes = 0;              ///< of these elements in the type of messages
  std::vector<std::uint64_t> counts{};  ///< of the parts; empty for an all-reduce
};

/// A dry run of a pass in place of an implementation of a form. Time counts operations. A buffer is in use from the
/// first operation that gets it to the last; one of a reduction that was begun, until join(). Tensors have addresses,
/// but no memory. Throws: CheckError where a tensor has fewer elements than the operation's extents say.
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
  /// All reductions so far, in order.
  virtual const std::vector<PlannedReduction>& reductions() const = 0;
};

/// The form is borrowed.
std::unique_ptr<PlannerOps> make_planner_ops(const OpsForm& form, int world_size, int rank);

}  // namespace droptest::models
