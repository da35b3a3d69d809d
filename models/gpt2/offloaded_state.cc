// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/offloaded_state.h"

#include <algorithm>
#include <optional>

#include "sim/error.h"

namespace droptest::models {
namespace {

constexpr std::size_t kWindows = 2;

std::vector<OwnPart> cut(std::span<const OwnPart> parts, std::uint64_t most) {
  std::vector<OwnPart> pieces;
  for (const OwnPart& part : parts) {
    for (std::uint64_t done = 0; done < part.count; done += most) {
      pieces.push_back({part.offset + done, std::min(most, part.count - done), part.shard_offset + done});
    }
  }
  return pieces;
}

/// Each room begins on a new cache line.
std::uint64_t aligned(std::uint64_t elems) {
  constexpr std::uint64_t kAlignmentElems = 64;
  return (elems + kAlignmentElems - 1) / kAlignmentElems * kAlignmentElems;
}

bool gathers_buckets(const ShardOptions& options) {
  return options.offloads_values && options.shards_state() && !options.shards_values();
}

/// The elements of the unit that this rank owns, with sharded values. They are contiguous in its shard.
OwnPart own_part_of(const ShardPlan& plan, std::size_t unit) {
  std::optional<OwnPart> own;
  for (std::size_t i = 0; i < plan.buckets().size(); ++i) {
    if (plan.buckets()[i].last_unit != unit) continue;
    const OwnPart& part = plan.own_of_bucket(i);
    if (!own) own = OwnPart{part.offset, 0, part.shard_offset};
    own->count += part.count;
  }
  return own.value_or(OwnPart{});
}

}  // namespace

OffloadedState::Fields OffloadedState::fields_of(const ShardPlan& plan, const ParameterTable& table, int moments) {
  Fields fields;
  const ShardOptions& options = plan.options();
  if (options.offloads_values) fields.value_elems = options.shards_values() ? plan.own_elems() : table.trained_elems;
  if (options.offloads_moments) {
    fields.moments = moments;
    fields.moment_elems = plan.own_elems();
  }
  return fields;
}

std::uint64_t OffloadedState::piece_elems(const ShardPlan& plan, const Fields& fields) {
  return std::max<std::uint64_t>(
      1, std::min(plan.options().offload_piece_elems, std::max(fields.value_elems, fields.moment_elems)));
}

std::vector<std::uint64_t> OffloadedState::other_rooms(const ParameterTable& table, const ShardPlan& plan) {
  std::array<std::uint64_t, kRooms> rooms{};
  if (gathers_buckets(plan.options())) {
    for (const Bucket& bucket : plan.buckets()) rooms[0] = std::max(rooms[0], bucket.count);
    rooms[1] = rooms[0];
  } else if (plan.options().offloads_values && plan.options().shards_values()) {
    for (std::size_t unit = 0; unit < table.units.size(); ++unit) {
      const int layer = table.units[unit].layer;
      std::uint64_t& room = rooms[layer == kOutsideOfBlocks ? kRooms - 1 : static_cast<std::size_t>(layer) % 2];
      room = std::max(room, own_part_of(plan, unit).count);
    }
  }
  std::vector<std::uint64_t> begins = {0};
  for (const std::uint64_t room : rooms) begins.push_back(begins.back() + aligned(room));
  return begins;
}

OffloadedState::OffloadedState(const ParameterTable& table, const ShardPlan& plan, Ops& ops, comm::ElementType type,
                               int moments, const ParameterArena& values, const ParameterArena& rounded)
    : table_(table),
      plan_(plan),
      ops_(ops),
      type_(type),
      arena_(values),
      rounded_(rounded),
      fields_(fields_of(plan, table, moments)),
      values_(plan.options().offloads_values ? 1 : 0),
      moments_(static_cast<std::size_t>(fields_.moments)),
      window_elems_(aligned(piece_elems(plan, fields_))),
      others_(other_rooms(table, plan)) {
  DROPTEST_CHECK(moments_ <= kMostMoments, "an optimizer with more numbers than windows have");
  for (std::uint64_t& begin : others_) begin += kWindows * (values_ + moments_) * window_elems_;
  const std::uint64_t most = piece_elems(plan, fields_);
  const OwnPart whole{0, table.trained_elems, 0};
  pieces_ = cut(plan.own(), most);
  if (values_ > 0 && !plan.options().shards_values()) whole_pieces_ = cut(std::span(&whole, 1), most);
  memory_bytes_ = comm::element_bytes(type) * others_.back();
  storage_bytes_ = comm::element_bytes(type) * (fields_.value_elems + moments_ * fields_.moment_elems);
  memory_ =
      ops.allocate(memory_bytes_, "windows of offloaded parameters and optimizer state", Ops::Content::kUnspecified);
  all_ = {type, {memory_->data(), static_cast<std::size_t>(memory_bytes_)}, ops.stream()};
  storage_ = ops.make_storage(storage_bytes_, values_ == 0    ? "optimizer state"
                                              : moments_ == 0 ? "parameters"
                                                              : "parameters and optimizer state");
}

comm::Tensor OffloadedState::memory(std::uint64_t first, std::uint64_t count) const {
  return elements(all_, static_cast<std::int64_t>(first), static_cast<std::int64_t>(count));
}

std::uint64_t OffloadedState::place_of_values(const OwnPart& part) const {
  return comm::element_bytes(type_) * (plan_.options().shards_values() ? part.shard_offset : part.offset);
}

std::uint64_t OffloadedState::place_of_moment(const OwnPart& part, std::size_t i) const {
  return comm::element_bytes(type_) * (fields_.value_elems + i * fields_.moment_elems + part.shard_offset);
}

// Copies are made in the order of the calls, so a window's next piece is read after its last one was written. Therefore
// only the end waits for writes.
void OffloadedState::for_each(std::span<const OwnPart> pieces, unsigned chosen,
                              const std::function<void(const Piece&)>& body) {
  const std::uint64_t numbers = values_ + moments_;
  const auto piece_of = [&](std::size_t k) {
    Piece piece{pieces[k], k, {}, {}};
    std::uint64_t first = (k % kWindows) * numbers * window_elems_;
    if (values_ > 0) {
      if ((chosen & kValues) != 0) piece.values = memory(first, piece.part.count);
      first += window_elems_;
    }
    for (std::size_t i = 0; i < moments_; ++i, first += window_elems_) {
      if ((chosen & (kFirstMoment << i)) != 0) piece.moments[i] = memory(first, piece.part.count);
    }
    return piece;
  };
  std::array<Storage::Ticket, kWindows> read{};
  const auto start_reading = [&](std::size_t k) {
    if (k >= pieces.size()) return;
    const Piece piece = piece_of(k);
    Storage::Ticket& ticket = read[k % kWindows];
    if (!piece.values.bytes.empty()) ticket = storage_->read(place_of_values(piece.part), piece.values);
    for (std::size_t i = 0; i < moments_; ++i) {
      if (!piece.moments[i].bytes.empty()) ticket = storage_->read(place_of_moment(piece.part, i), piece.moments[i]);
    }
  };
  Storage::Ticket written = 0;
  start_reading(0);
  for (std::size_t k = 0; k < pieces.size(); ++k) {
    start_reading(k + 1);
    storage_->wait(read[k % kWindows]);
    const Piece piece = piece_of(k);
    body(piece);
    if (!piece.values.bytes.empty()) written = storage_->write(place_of_values(piece.part), piece.values);
    for (std::size_t i = 0; i < moments_; ++i) {
      if (!piece.moments[i].bytes.empty()) {
        written = storage_->write(place_of_moment(piece.part, i), piece.moments[i]);
      }
    }
  }
  storage_->wait(written);
  if ((chosen & kValues) != 0) forget();
}

void OffloadedState::update(const std::function<void(const Piece&)>& update) { for_each(pieces_, ~0U, update); }

std::span<const OwnPart> OffloadedState::pieces_of(unsigned chosen) const {
  return chosen == kValues && !plan_.options().shards_values() ? whole_pieces_ : pieces_;
}

void OffloadedState::visit(StateVisitor& visitor, unsigned chosen, std::string_view name) {
  const std::span<const OwnPart> parts = pieces_of(chosen);
  const bool is_whole = chosen == kValues ? !plan_.options().shards_values() : !plan_.options().shards_state();
  for_each(parts, chosen, [&](const Piece& piece) {
    std::vector<TensorPiece> pieces;
    append_pieces(table_, {piece.part.offset, piece.part.count, 0}, pieces);
    const comm::Tensor* shown = &piece.values;
    for (const comm::Tensor& moment : piece.moments) {
      if (!moment.bytes.empty()) shown = &moment;
    }
    visitor.tensor(name, *shown, pieces, is_whole ? Sharding::kWhole : Sharding::kShard);
  });
}

void OffloadedState::visit_values(StateVisitor& visitor, std::string_view name) { visit(visitor, kValues, name); }

void OffloadedState::visit_moments(StateVisitor& visitor, std::size_t i, std::string_view name) {
  visit(visitor, kFirstMoment << i, name);
}

void OffloadedState::zero_moments() {
  for_each(pieces_, ~static_cast<unsigned>(kValues), [&](const Piece& piece) {
    for (std::size_t i = 0; i < moments_; ++i) ops_.zero(piece.moments[i]);
  });
}

void OffloadedState::upload_values(std::span<const std::byte> from) {
  const std::size_t size = comm::element_bytes(type_);
  for_each(pieces_of(kValues), kValues, [&](const Piece& piece) {
    ops_.copy_from_host(from.subspan(piece.part.offset * size, piece.part.count * size), piece.values);
  });
}

void OffloadedState::forget() {
  rooms_.fill({});
  last_own_ = kNobody;
}

std::size_t OffloadedState::room_of(std::size_t unit) const {
  const int layer = table_.units[unit].layer;
  return layer == kOutsideOfBlocks ? kRooms - 1 : static_cast<std::size_t>(layer) % 2;
}

void OffloadedState::start(std::size_t unit) {
  Room& room = rooms_[room_of(unit)];
  if (room.unit == unit) return;
  const ParameterUnit& of = table_.units[unit];
  room = {unit, storage_->read(place_of_values({of.offset, of.count, 0}), arena_.part(of.offset, of.count)), false};
}

void OffloadedState::finish(std::size_t unit) {
  start(unit);
  Room& room = rooms_[room_of(unit)];
  if (room.is_there) return;
  storage_->wait(room.ticket);
  room.is_there = true;
  const ParameterUnit& of = table_.units[unit];
  if (!rounded_.is_empty()) ops_.convert(arena_.part(of.offset, of.count), rounded_.part(of.offset, of.count));
}

void OffloadedState::bring_own(std::size_t unit) {
  const auto start_reading = [&](std::size_t of) {
    Room& room = rooms_[room_of(of)];
    if (room.unit == of) return;
    const OwnPart own = own_part_of(plan_, of);
    room = {of, storage_->read(place_of_values(own), memory(others_[room_of(of)], own.count)), false};
  };
  start_reading(unit);
  storage_->wait(rooms_[room_of(unit)].ticket);
  if (table_.units[unit].layer == kOutsideOfBlocks) return;
  const std::size_t last = std::exchange(last_own_, unit);
  if (last == kNobody || last == unit) return;
  const std::size_t next = unit > last ? unit + 1 : unit - 1;  // no unit follows unit 0
  if (next < table_.units.size() && table_.units[next].layer != kOutsideOfBlocks) start_reading(next);
}

comm::Tensor OffloadedState::own_of_bucket(std::size_t bucket) const {
  const std::size_t unit = plan_.buckets()[bucket].last_unit;
  const OwnPart& part = plan_.own_of_bucket(bucket);
  return memory(others_[room_of(unit)] + part.shard_offset - own_part_of(plan_, unit).shard_offset, part.count);
}

comm::Tensor OffloadedState::bring_bucket(std::size_t bucket, std::size_t window) {
  const Bucket& of = plan_.buckets()[bucket];
  const comm::Tensor to = memory(others_[window], of.count);
  storage_->wait(storage_->read(place_of_values({of.offset, of.count, 0}), to));
  return to;
}

comm::Tensor OffloadedState::own_in_window(std::size_t bucket, std::size_t window) const {
  const OwnPart& part = plan_.own_of_bucket(bucket);
  return memory(others_[window] + part.offset - plan_.buckets()[bucket].offset, part.count);
}

void OffloadedState::put_bucket(std::size_t bucket, std::size_t window) {
  const Bucket& of = plan_.buckets()[bucket];
  storage_->write(place_of_values({of.offset, of.count, 0}), memory(others_[window], of.count));
  forget();
}

}  // namespace droptest::models
