// SPDX-License-Identifier: Apache-2.0
// Parameters and optimizer state of a rank that are stored outside of the operations' memory.
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

/// One storage has the values (ShardOptions::offloads_values) and the optimizer state (offloads_moments) of each
/// element. Updates and checkpoints process them piece by piece in two windows of memory; meanwhile, the next piece is
/// read and the previous one is written. A pass reads the values of a unit one block ahead, into the unit's room in the
/// arena of values. With sharded values, it reads this rank's part, and the all-gather starts from it.
/// Owner: one rank, from one thread.
class OffloadedState {
 public:
  static constexpr std::size_t kMostMoments = 2;

  /// `moments` is the number of optimizer moments of each element. Values and moments begin as zeros. The other
  /// arguments are borrowed. With offloaded values, the arenas have only rooms for units; the rounded one may be empty.
  /// Throws: ConfigError if storage has no room.
  OffloadedState(const ParameterTable& table, const ShardPlan& plan, Ops& ops, comm::ElementType type, int moments,
                 const ParameterArena& values, const ParameterArena& rounded);

  bool has_values() const { return values_ > 0; }
  bool has_moments() const { return moments_ > 0; }

  /// Elements that are contiguous in every arena, with their values and moments in a window.
  struct Piece {
    OwnPart part;
    std::size_t number = 0;                          ///< index among the pieces
    comm::Tensor values;                             ///< empty if values are not offloaded
    std::array<comm::Tensor, kMostMoments> moments;  ///< empty if moments are not offloaded
  };
  /// The parts that this rank updates, cut into pieces.
  const std::vector<OwnPart>& pieces() const { return pieces_; }
  /// Calls update(piece) for each piece, in order; it may change the values and moments.
  void update(const std::function<void(const Piece&)>& update);

  /// Shows the values, or moment i of the optimizer.
  void visit_values(StateVisitor& visitor, std::string_view name);
  void visit_moments(StateVisitor& visitor, std::size_t i, std::string_view name);
  void zero_moments();
  /// Copies this rank's values from host memory. Shapes: the bytes of an arena.
  void upload_values(std::span<const std::byte> from);

  /// For passes with whole values: begins to read the values of a unit, unless its room has them.
  void start(std::size_t unit);
  /// Call it after start(). Operations from now on see the unit's values.
  void finish(std::size_t unit);

  /// For sharded values: this rank's part of the unit is in memory when it returns. Begins to read the next unit in the
  /// direction of the calls.
  void bring_own(std::size_t unit);
  /// This rank's part of a bucket of the unit of bring_own().
  comm::Tensor own_of_bucket(std::size_t bucket) const;

  /// For whole values that other ranks have changed: bring_bucket() reads a bucket into one of two rooms of its own, 0
  /// or 1, complete when it returns, and put_bucket() writes it back.
  comm::Tensor bring_bucket(std::size_t bucket, std::size_t window);
  comm::Tensor own_in_window(std::size_t bucket, std::size_t window) const;
  void put_bucket(std::size_t bucket, std::size_t window);

  /// The bytes of the windows and of the rooms for buckets.
  std::uint64_t memory_bytes() const { return memory_bytes_; }
  std::uint64_t storage_bytes() const { return storage_bytes_; }

 private:
  /// The sizes of the fields in the storage, which are stored one after the other.
  struct Fields {
    std::uint64_t value_elems = 0;   ///< 0: values are in memory
    std::uint64_t moment_elems = 0;  ///< elements of each moment
    int moments = 0;
  };
  enum Chosen : unsigned { kValues = 1, kFirstMoment = 2 };  ///< kFirstMoment << i: moment i
  static Fields fields_of(const ShardPlan& plan, const ParameterTable& table, int moments);
  static std::uint64_t piece_elems(const ShardPlan& plan, const Fields& fields);
  /// The sizes of the memory after the windows, in elements: rooms for own parts of units, or for buckets.
  static std::vector<std::uint64_t> other_rooms(const ParameterTable& table, const ShardPlan& plan);

  void for_each(std::span<const OwnPart> pieces, unsigned chosen, const std::function<void(const Piece&)>& body);
  void visit(StateVisitor& visitor, unsigned chosen, std::string_view name);
  std::span<const OwnPart> pieces_of(unsigned chosen) const;
  std::uint64_t place_of_values(const OwnPart& part) const;
  std::uint64_t place_of_moment(const OwnPart& part, std::size_t i) const;
  comm::Tensor memory(std::uint64_t first, std::uint64_t count) const;
  std::size_t room_of(std::size_t unit) const;
  /// Invalidates the rooms, because the storage has other values now.
  void forget();

  const ParameterTable& table_;
  const ShardPlan& plan_;
  Ops& ops_;
  comm::ElementType type_;
  const ParameterArena& arena_;
  const ParameterArena& rounded_;
  Fields fields_;
  std::size_t values_ = 0;  ///< 1 if values are offloaded, else 0
  std::size_t moments_ = 0;
  std::vector<OwnPart> pieces_;        ///< the pieces of own parts
  std::vector<OwnPart> whole_pieces_;  ///< the pieces of all elements, if this rank stores all values
  std::uint64_t window_elems_ = 0;     ///< elements of one field of a piece
  std::vector<std::uint64_t> others_;  ///< offsets of the other rooms, and the end of the last one
  std::uint64_t memory_bytes_ = 0;
  std::uint64_t storage_bytes_ = 0;
  std::unique_ptr<Ops::Memory> memory_;
  comm::Tensor all_;

  static constexpr std::size_t kNobody = ~std::size_t{0};
  static constexpr std::size_t kRooms = 3;  ///< even blocks, odd blocks, and tensors outside of blocks
  struct Room {
    std::size_t unit = kNobody;
    Storage::Ticket ticket = 0;
    bool is_there = false;
  };
  std::array<Room, kRooms> rooms_;
  std::size_t last_own_ = kNobody;    ///< the last unit of bring_own()
  std::unique_ptr<Storage> storage_;  // the last member: its copies use the memory
};

}  // namespace droptest::models
