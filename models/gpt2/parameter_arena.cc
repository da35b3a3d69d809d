// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/parameter_arena.h"

#include <algorithm>
#include <array>
#include <span>

#include "sim/error.h"

namespace droptest::models {
namespace {

/// Each room begins on a new cache line.
std::uint64_t aligned(std::uint64_t elems) {
  constexpr std::uint64_t kAlignmentElems = 16;
  return (elems + kAlignmentElems - 1) / kAlignmentElems * kAlignmentElems;
}

}  // namespace

std::vector<std::uint64_t> ParameterArena::rooms(const ParameterTable& table, const ShardPlan& plan, Holds holds) {
  constexpr std::size_t kBlocks = 2;
  std::uint64_t end = holds == Holds::kOwnAndUnits ? aligned(plan.own_elems()) : 0;
  std::array<std::uint64_t, kBlocks> of_block{};
  std::uint64_t largest = 0;
  for (const ParameterUnit& unit : table.units) {
    if (unit.layer != kOutsideOfBlocks) largest = std::max(largest, unit.count);
  }
  for (std::uint64_t& room : of_block) {
    room = end;
    end += aligned(largest);
  }
  std::vector<std::uint64_t> rooms;
  for (const ParameterUnit& unit : table.units) {
    if (unit.layer != kOutsideOfBlocks) {
      rooms.push_back(of_block[static_cast<std::size_t>(unit.layer) % kBlocks]);
      continue;
    }
    rooms.push_back(end);
    end += table.elems - unit.offset;  // including padding
  }
  rooms.push_back(end);
  return rooms;
}

std::uint64_t ParameterArena::elems(const ParameterTable& table, const ShardPlan& plan, Holds holds) {
  if (holds == Holds::kAll) return table.elems;
  if (holds == Holds::kTrained) return table.trained_elems;
  return holds == Holds::kOwn ? plan.own_elems() : rooms(table, plan, holds).back();
}

ParameterArena::ParameterArena(const ParameterTable& table, const ShardPlan& plan, Holds holds, comm::ElementType type,
                               const std::string& purpose, Ops::Content content, Ops& ops)
    : table_(&table), plan_(&plan), holds_(holds) {
  if (holds == Holds::kOwnAndUnits || holds == Holds::kUnits) rooms_ = rooms(table, plan, holds);
  const std::uint64_t bytes = elems(table, plan, holds) * comm::element_bytes(type);
  memory_ = ops.allocate(std::max<std::uint64_t>(1, bytes), purpose, content);  // 0 bytes if all tensors are frozen
  all_ = {type, {memory_->data(), static_cast<std::size_t>(bytes)}, ops.stream()};
}

comm::Tensor ParameterArena::part(std::uint64_t offset, std::uint64_t count) const {
  std::uint64_t place = offset;
  if (!is_whole()) {
    DROPTEST_CHECK(holds_ != Holds::kOwn, "an element that is not in memory");
    const auto above = std::upper_bound(table_->units.begin(), table_->units.end(), offset,
                                        [](std::uint64_t at, const ParameterUnit& unit) { return at < unit.offset; });
    const auto unit = static_cast<std::size_t>(above - table_->units.begin()) - 1;
    const std::uint64_t end = above == table_->units.end() ? table_->elems : above->offset;
    DROPTEST_CHECK(offset + count <= end, "elements of two units");
    place = rooms_[unit] + (offset - table_->units[unit].offset);
  }
  return elements(all_, static_cast<std::int64_t>(place), static_cast<std::int64_t>(count));
}

comm::Tensor ParameterArena::own(const OwnPart& part_of_rank) const {
  if (is_whole()) return part(part_of_rank.offset, part_of_rank.count);
  DROPTEST_CHECK(holds_ != Holds::kUnits, "a rank's own elements where there is room for units alone");
  return elements(all_, static_cast<std::int64_t>(part_of_rank.shard_offset),
                  static_cast<std::int64_t>(part_of_rank.count));
}

void append_pieces(const ParameterTable& table, const OwnPart& part, std::vector<TensorPiece>& pieces) {
  for (const std::size_t i : table.in_order()) {
    const std::uint64_t offset = table.ranges[i].offset;
    const std::uint64_t begin = std::max(part.offset, offset);
    const std::uint64_t end = std::min(part.offset + part.count, offset + table.trained[i]);
    if (begin < end) pieces.push_back({i, begin - offset, part.shard_offset + (begin - part.offset), end - begin});
  }
}

void ParameterArena::visit_state(StateVisitor& visitor, std::string_view name) const {
  std::vector<TensorPiece> pieces;
  const bool all = is_whole();
  const OwnPart whole{0, table_->trained_elems, 0};
  for (const OwnPart& part : all ? std::span(&whole, 1) : std::span<const OwnPart>(plan_->own())) {
    append_pieces(*table_, part, pieces);
  }
  for (std::size_t i = 0; holds_ == Holds::kAll && i < table_->tensors.size(); ++i) {
    if (table_->tensors[i].is_trained()) continue;
    const std::uint64_t padding = padding_of(table_->tensors[i]);
    pieces.push_back({i, 0, table_->ranges[i].offset, table_->ranges[i].count - padding});
  }
  visitor.tensor(name, all ? all_ : own({0, plan_->own_elems(), 0}), pieces, all ? Sharding::kWhole : Sharding::kShard);
}

}  // namespace droptest::models
