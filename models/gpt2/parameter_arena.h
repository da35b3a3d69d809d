// SPDX-License-Identifier: Apache-2.0
// Memory for one number (value, gradient or moment) of each element of a rank's tensors, or of a part of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "models/gpt2/parameter_table.h"
#include "models/gpt2/shard_plan.h"
#include "models/ops/ops.h"
#include "models/state_visitor.h"

namespace droptest::models {

/// Places are offsets in the whole arena (ParameterTable), even if only a part of it is in memory. Owner: one rank.
class ParameterArena {
 public:
  enum class Holds : std::uint8_t {
    kAll,
    kTrained,      ///< the trained elements: all except padding, frozen tensors and copies
    kOwn,          ///< the rank's own elements
    kOwnAndUnits,  ///< own elements, rooms for two blocks and one for tensors outside of blocks
    kUnits,        ///< only the rooms of kOwnAndUnits
  };

  /// An arena without memory.
  ParameterArena() = default;
  /// The table and the plan are borrowed. `purpose` names the memory in errors.
  ParameterArena(const ParameterTable& table, const ShardPlan& plan, Holds holds, comm::ElementType type,
                 const std::string& purpose, Ops::Content content, Ops& ops);

  bool is_empty() const { return memory_ == nullptr; }
  Holds holds() const { return holds_; }
  /// The whole memory of the arena.
  const comm::Tensor& all() const { return all_; }
  /// A range of elements: any range with Holds::kAll and kTrained, and one within a unit if there are rooms for units.
  /// Not for kOwn. All even blocks share one room, and all odd blocks another.
  comm::Tensor part(std::uint64_t offset, std::uint64_t count) const;
  comm::Tensor part(const ParameterRange& range) const { return part(range.offset, range.count); }
  /// The elements of one of ShardPlan::own(). Not for kUnits.
  comm::Tensor own(const OwnPart& part) const;
  /// Shows the elements that are state: the whole memory, or only the rank's own elements if there are rooms for units.
  void visit_state(StateVisitor& visitor, std::string_view name) const;

  /// The bytes in memory.
  std::uint64_t bytes() const { return all_.bytes.size(); }
  /// The number of elements in memory.
  static std::uint64_t elems(const ParameterTable& table, const ShardPlan& plan, Holds holds);

 private:
  bool is_whole() const { return holds_ == Holds::kAll || holds_ == Holds::kTrained; }
  /// The offset of the room of each unit in memory, and the end of the last room.
  static std::vector<std::uint64_t> rooms(const ParameterTable& table, const ShardPlan& plan, Holds holds);

  const ParameterTable* table_ = nullptr;
  const ShardPlan* plan_ = nullptr;
  Holds holds_ = Holds::kAll;
  std::vector<std::uint64_t> rooms_;
  std::unique_ptr<Ops::Memory> memory_;
  comm::Tensor all_;
};

/// Appends the pieces of trained tensors within the part. The first element of the part is number part.shard_offset in
/// memory.
void append_pieces(const ParameterTable& table, const OwnPart& part, std::vector<TensorPiece>& pieces);

}  // namespace droptest::models
