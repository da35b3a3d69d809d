// SPDX-License-Identifier: Apache-2.0
// Parameters and optimizer state of a rank outside of the memory of operations.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "models/gpt2/parameter_arena.h"
#include "models/gpt2/parameter_table.h"
#include "models/gpt2/shard_plan.h"
#include "models/ops/ops.h"
#include "models/state_visitor.h"

namespace droptest::models {

/// Numbers of each element in one storage: values (ShardOptions::offloads_values) and optimizer state
/// (offloads_moments). An update and a checkpoint work through pieces of them in two windows of memory: the next piece
/// is read and the one before is written meanwhile. A pass reads the values of a unit one block ahead, into the unit's
/// room of the arena of values; with sharded values it reads this rank's part, from which the all-gather starts.
/// Owner: one rank, from one thread.
class OffloadedState {
 public:
  static constexpr std::size_t kMostMoments = 2;

  /// `moments`: numbers of the optimizer for each element. All numbers are zero. The others are borrowed; with
  /// offloaded values the arenas have rooms for units alone, the rounded one may be empty. Throws: ConfigError where
  /// storage has no room.
  OffloadedState(const ParameterTable& table, const ShardPlan& plan, Ops& ops, comm::ElementType type, int moments,
                 const ParameterArena& values, const ParameterArena& rounded);

  bool has_values() const { return values_ > 0; }
  bool has_moments() const { return moments_ > 0; }

  /// Elements that lie together in every arena, and their numbers in a window.
  struct Piece {
    OwnPart part;
    std::size_t number = 0;                          ///< among the pieces
    comm::Tensor values;                             ///< empty where these are in memory
    std::array<comm::Tensor, kMostMoments> moments;  ///< likewise
  };
  /// The parts that this rank updates, cut into pieces.
  const std::vector<OwnPart>& pieces() const { return pieces_; }
  /// update(piece) for each, in order; it changes the numbers.
  void update(const std::function<void(const Piece&)>& update);

  /// Shows values, or number i of the optimizer.
  void visit_values(StateVisitor& visitor, std::string_view name);
  void visit_moments(StateVisitor& visitor, std::size_t i, std::string_view name);
  void zero_moments();
  /// This rank's values become those of the host's copy. Shapes: bytes of an arena.
  void upload_values(std::span<const std::byte> from);

  /// A pass with whole values: begins to read those of a unit, unless its room has them.
  void start(std::size_t unit);
  /// Operations from now on see the unit's values.
  void finish(std::size_t unit);

  /// Sharded values: this rank's part of the unit is in memory when it returns; the next unit in the direction of the
  /// calls is read meanwhile.
  void bring_own(std::size_t unit);
  /// Its part of a bucket of that unit.
  comm::Tensor own_of_bucket(std::size_t bucket) const;

  /// Whole values that other ranks have changed: a bucket in window `window`, of two, and back to storage. The values
  /// of all of it are there when bring_bucket() returns.
  comm::Tensor bring_bucket(std::size_t bucket, std::size_t window);
  comm::Tensor own_in_window(std::size_t bucket, std::size_t window) const;
  void put_bucket(std::size_t bucket, std::size_t window);

  /// Bytes of the windows.
  std::uint64_t memory_bytes() const { return memory_bytes_; }
  std::uint64_t storage_bytes() const { return storage_bytes_; }

 private:
  /// The numbers that one storage holds one after another.
  struct Fields {
    std::uint64_t value_elems = 0;   ///< 0: values are in memory
    std::uint64_t moment_elems = 0;  ///< of each of the optimizer's numbers
    int moments = 0;
  };
  enum Chosen : unsigned { kValues = 1, kFirstMoment = 2 };  ///< kFirstMoment << i: number i
  static Fields fields_of(const ShardPlan& plan, const ParameterTable& table, int moments);
  static std::uint64_t piece_elems(const ShardPlan& plan, const Fields& fields);
  /// Elements of the memory behind the windows: for own parts of units, or for buckets.
  static std::vector<std::uint64_t> other_rooms(const ParameterTable& table, const ShardPlan& plan);

  void for_each(std::span<const OwnPart> pieces, unsigned chosen, const std::function<void(const Piece&)>& body);
  void visit(StateVisitor& visitor, unsigned chosen, std::string_view name);
  std::span<const OwnPart> pieces_of(unsigned chosen) const;
  std::uint64_t place_of_values(const OwnPart& part) const;
  std::uint64_t place_of_moment(const OwnPart& part, std::size_t i) const;
  comm::Tensor memory(std::uint64_t first, std::uint64_t count) const;
  OwnPart own_of_unit(std::size_t unit) const;
  std::size_t room_of(std::size_t unit) const;
  /// What rooms held is not what storage has.
  void forget();

  const ParameterTable& table_;
  const ShardPlan& plan_;
  Ops& ops_;
  comm::ElementType type_;
  const ParameterArena& arena_;
  const ParameterArena& rounded_;
  Fields fields_;
  std::size_t values_ = 0;  ///< 1 with offloaded values
  std::size_t moments_ = 0;
  std::vector<OwnPart> pieces_;        ///< of own parts
  std::vector<OwnPart> whole_pieces_;  ///< of all elements, where this rank stores all values
  std::uint64_t window_elems_ = 0;     ///< of one number of a piece
  std::vector<std::uint64_t> others_;  ///< where other rooms begin, and at last where they end
  std::uint64_t memory_bytes_ = 0;
  std::uint64_t storage_bytes_ = 0;
  std::unique_ptr<Ops::Memory> memory_;
  comm::Tensor all_;

  static constexpr std::size_t kNobody = ~std::size_t{0};
  static constexpr std::size_t kRooms = 3;  ///< of even and odd blocks, and of tensors outside of blocks
  struct Room {
    std::size_t unit = kNobody;
    Storage::Ticket ticket = 0;
    bool is_there = false;
  };
  std::array<Room, kRooms> rooms_;
  std::size_t last_own_ = kNobody;    ///< the last block of bring_own()
  std::unique_ptr<Storage> storage_;  // the last member: its copies use the memory
};

}  // namespace droptest::models
