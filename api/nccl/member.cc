// SPDX-License-Identifier: Apache-2.0
#include "api/nccl/member.h"

#include <algorithm>

#include "sim/error.h"

namespace droptest::nccl_shim {
namespace {

struct TypeFacts {
  droptest_type type;
  std::size_t bytes;
  std::uint64_t lowest = 0;  ///< elements of minus infinity, in 8 bytes
};

// Types of one byte have no class that can lose packets: integers, and floats of 8 bits.
TypeFacts facts_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat32:
      return {DROPTEST_FLOAT32, 4, 0xff800000ff800000};
    case ncclFloat64:
      return {DROPTEST_FLOAT64, 8, 0xfff0000000000000};
    case ncclFloat16:
      return {DROPTEST_FLOAT16, 2, 0xfc00fc00fc00fc00};
    case ncclBfloat16:
      return {DROPTEST_BFLOAT16, 2, 0xff80ff80ff80ff80};
    case ncclInt32:
    case ncclUint32:
      return {DROPTEST_INT32, 4};
    case ncclInt64:
      return {DROPTEST_INT64, 8};
    case ncclUint64:
      return {DROPTEST_UINT64, 8};
    default:
      return {DROPTEST_UINT8, 1};
  }
}

}  // namespace

std::size_t bytes_of(ncclDataType_t type) { return facts_of(type).bytes; }

Member::Member(std::shared_ptr<RankLosses> losses, const std::vector<Identity>& members, int rank, int device)
    : losses_(std::move(losses)), rank_(rank), device_(device) {
  for (const Identity& member : members) {
    world_ranks_.push_back(member.world_rank);
    group_ = std::max(group_, static_cast<std::uint32_t>(member.next_group));
  }
  losses_->use_group(group_);
}

droptest_call Member::as_call(const NcclCall& call) const {
  return {call.operation, nullptr, static_cast<std::int32_t>(world_ranks_.size()), facts_of(call.type).type,
          call.count};
}

std::optional<droptest_class> Member::class_of(const NcclCall& call) {
  const droptest_class found = losses_->classify(as_call(call));
  return found == DROPTEST_CONTROL ? std::nullopt : std::optional(found);
}

void Member::exempt(const NcclCall& call) { losses_->count_exempt(as_call(call)); }

// Tables are made at the first call of their class, also while a stream is captured.
LinkTable& Member::table(droptest_class traffic_class, Route route) {
  const std::lock_guard lock(mutex_);
  Tables& tables = tables_[traffic_class];
  std::unique_ptr<LinkTable>& place = route == Route::kContribution ? tables.contribution
                                      : route == Route::kFromAll    ? tables.from_all
                                                                    : tables.to_me;
  if (place != nullptr) return *place;
  const std::int32_t me = world_ranks_[static_cast<std::size_t>(rank_)];
  std::vector<DeviceLink> links;
  if (route == Route::kContribution) {
    links.push_back(losses_->link({traffic_class, DROPTEST_REDUCE, me, DROPTEST_EVERY_DESTINATION, group_}, true));
  } else {
    for (const std::int32_t source : world_ranks_) {
      if (route == Route::kFromAll) {
        links.push_back(
            losses_->link({traffic_class, DROPTEST_GATHER, source, DROPTEST_EVERY_DESTINATION, group_}, source == me));
      } else {
        links.push_back(source == me ? DeviceLink{}
                                     : losses_->link({traffic_class, DROPTEST_GATHER, source, me, 0}, true));
      }
    }
  }
  place = std::make_unique<LinkTable>(links);
  return *place;
}

Fill Member::fill(droptest_class traffic_class, Route route, std::optional<int> part, const NcclCall& call, void* to) {
  const DeviceScope scope(device_);
  const LinkTable& links = table(traffic_class, route);
  auto* const data = static_cast<std::byte*>(to);
  return {part ? links.all().part(static_cast<std::uint64_t>(*part)) : links.all(),
          part ? links.use(static_cast<std::size_t>(*part)) : links.uses(),
          {data, data, call.count * bytes_of(call.type), 0},
          losses_->payload_bytes(traffic_class),
          call.stream};
}

void Member::refuse_loss(const char* function, const std::vector<droptest_class>& classes, const char* want) {
  for (const droptest_class traffic_class : classes) {
    if (!losses_->can_lose(traffic_class)) continue;
    throw ConfigError("rank " + std::to_string(losses_->rank()) + ": " + function +
                      ": its messages would lose nothing, but class " + droptest_class_name(traffic_class) +
                      " has a loss; " + want + ", or no loss in this class");
  }
}

void Member::lose_contribution(droptest_class traffic_class, const NcclCall& call, droptest_reduction reduction,
                               const void* from, void* to) {
  Fill losses = fill(traffic_class, Route::kContribution, std::nullopt, call, to);
  losses.message.from = static_cast<const std::byte*>(from);
  if (reduction == DROPTEST_MAX) losses.message.lost_word = facts_of(call.type).lowest;
  const DeviceScope scope(device_);
  losses_->lose(losses);
}

Fill Member::gathered(droptest_class traffic_class, const NcclCall& call, void* to) {
  return fill(traffic_class, Route::kFromAll, std::nullopt, call, to);
}
Fill Member::exchanged(droptest_class traffic_class, const NcclCall& call, void* to) {
  return fill(traffic_class, Route::kToMe, std::nullopt, call, to);
}
Fill Member::received(droptest_class traffic_class, const NcclCall& call, int source, void* to) {
  return fill(traffic_class, Route::kToMe, source, call, to);
}

// A capture has memory of its own, because its replays may run while the stream does other work.
void* Member::scratch(const NcclCall& call, std::size_t bytes, bool in_group) {
  constexpr std::size_t kAlignment = 256;
  const DeviceScope scope(device_);
  const std::lock_guard lock(mutex_);
  Scratch& of_stream = scratch_[{call.stream, capture_of(call.stream)}];
  if (!in_group) of_stream.used = 0;
  const std::size_t wanted = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (of_stream.memory.empty() || of_stream.used + wanted > of_stream.memory.back()->size()) {
    const std::size_t before = of_stream.memory.empty() ? 0 : of_stream.memory.back()->size();
    of_stream.memory.push_back(std::make_unique<DeviceBytes>(std::max(wanted, 2 * before)));
    of_stream.used = 0;
  }
  std::byte* const place = of_stream.memory.back()->data() + of_stream.used;
  of_stream.used += wanted;
  return place;
}

void Member::end_group() {
  const std::lock_guard lock(mutex_);
  for (auto& [stream, of_stream] : scratch_) of_stream.used = 0;
}

}  // namespace droptest::nccl_shim
