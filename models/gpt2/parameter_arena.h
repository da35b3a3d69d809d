// SPDX-License-Identifier: Apache-2.0
// Memory for one number for each element of a rank's tensors, or for those that the rank has.
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

/// Places are offsets in a whole arena (ParameterTable), of which any part may be in memory. Owner: one rank.
class ParameterArena {
 public:
  enum class Holds : std::uint8_t {
    kAll,
    kTrained,      ///< the elements that are trained: all but padding, frozen tensors and copies
    kOwn,          ///< the rank's own elements
    kOwnAndUnits,  ///< and room for the tensors outside of blocks and for two blocks: one in use, one on its way
    kUnits,        ///< that room alone
  };

  /// Without memory.
  ParameterArena() = default;
  /// The table and the plan are borrowed. `purpose` is for errors.
  ParameterArena(const ParameterTable& table, const ShardPlan& plan, Holds holds, comm::ElementType type,
                 const std::string& purpose, Ops::Content content, Ops& ops);

  bool is_empty() const { return memory_ == nullptr; }
  Holds holds() const { return holds_; }
  /// All that is in memory.
  const comm::Tensor& all() const { return all_; }
  /// Elements of one unit, or with Holds::kAll and kTrained any. Two blocks whose numbers differ by an even one share
  /// their room.
  comm::Tensor part(std::uint64_t offset, std::uint64_t count) const;
  comm::Tensor part(const ParameterRange& range) const { return part(range.offset, range.count); }
  comm::Tensor own(const OwnPart& part) const;
  /// Shows the elements that last: those in memory, or the rank's own ones.
  void visit_state(StateVisitor& visitor, std::string_view name) const;

  /// Bytes in memory.
  std::uint64_t bytes() const { return all_.bytes.size(); }
  /// Elements in memory.
  static std::uint64_t elems(const ParameterTable& table, const ShardPlan& plan, Holds holds);

 private:
  bool is_whole() const { return holds_ == Holds::kAll || holds_ == Holds::kTrained; }
  /// Where the room of each unit begins, and at last where all ends.
  static std::vector<std::uint64_t> rooms(const ParameterTable& table, const ShardPlan& plan, Holds holds);

  const ParameterTable* table_ = nullptr;
  const ShardPlan* plan_ = nullptr;
  Holds holds_ = Holds::kAll;
  std::vector<std::uint64_t> rooms_;
  std::unique_ptr<Ops::Memory> memory_;
  comm::Tensor all_;
};

/// Appends the elements of trained tensors within the part, whose first element is number part.shard_offset in memory.
void append_pieces(const ParameterTable& table, const OwnPart& part, std::vector<TensorPiece>& pieces);

}  // namespace droptest::models
