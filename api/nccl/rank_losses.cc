// SPDX-License-Identifier: Apache-2.0
#include "api/nccl/rank_losses.h"

#include <algorithm>
#include <cstring>

#include "sim/error.h"
#include "sim/loss/link.h"

namespace droptest::nccl_shim {

void check(droptest_status status, int rank) {
  if (status == DROPTEST_OK) return;
  const std::string text = "rank " + std::to_string(rank) + ": " + droptest_last_error();
  if (status == DROPTEST_DEVICE_ERROR || status == DROPTEST_MISMATCH) throw DeviceError(text);
  throw ConfigError(text);
}

LinkTable::LinkTable(const std::vector<DeviceLink>& links)
    : parts_(links.size()), memory_(links.size() * (sizeof(DeviceFlow*) + sizeof(unsigned))) {
  std::vector<std::byte> bytes(memory_.size());
  for (std::size_t i = 0; i < links.size(); ++i) {
    std::memcpy(bytes.data() + i * sizeof(DeviceFlow*), &links[i].flow, sizeof(DeviceFlow*));
    place_.push_back(uses_.size());
    if (links[i].flow != nullptr) uses_.push_back(links[i].use);
  }
  memory_.write(bytes);
}

std::span<LinkUse* const> LinkTable::use(std::size_t part) const {
  const std::size_t end = part + 1 < place_.size() ? place_[part + 1] : uses_.size();
  return uses().subspan(place_[part], end - place_[part]);
}

FlowTable LinkTable::all() const {
  return {reinterpret_cast<DeviceFlow* const*>(memory_.data()),
          reinterpret_cast<unsigned*>(memory_.data() + parts_ * sizeof(DeviceFlow*)), parts_};
}

RankLosses::RankLosses(int rank, int world_size) : rank_(rank), world_size_(world_size) {
  check(droptest_network_read(nullptr, rank, world_size, &network_), rank);
}

RankLosses::~RankLosses() { droptest_network_destroy(network_); }

droptest_class RankLosses::classify(const droptest_call& call) {
  droptest_class found = DROPTEST_CONTROL;
  check(droptest_classify(network_, &call, &found), rank_);
  return found;
}

void RankLosses::count_exempt(const droptest_call& call) { check(droptest_count_exempt(network_, &call), rank_); }

RankLosses::Entry RankLosses::make(const droptest_link& link, bool counted) {
  Entry entry;
  entry.counted = counted;
  check(droptest_flow_open(network_, &link, counted ? 1 : 0, &entry.flow), rank_);
  droptest_law law{};
  check(droptest_flow_law(entry.flow, &law), rank_);
  entry.known.seed = law.seed;
  entry.known.thresholds = {law.to_bad, law.to_good, law.lost_in_good, law.lost_in_bad, law.middle_swaps != 0};
  entry.known.payload_bytes = law.payload_bytes;
  entry.known.origin = law.first_packet;
  set_link({static_cast<sim::TrafficClass>(link.traffic_class), static_cast<sim::Half>(link.half),
            static_cast<std::uint16_t>(link.source),
            link.destination == DROPTEST_EVERY_DESTINATION ? sim::Link::kEveryDestination
                                                           : static_cast<std::uint16_t>(link.destination)},
           entry.known);
  entry.memory = std::make_unique<DeviceBytes>(sizeof(DeviceFlow));
  entry.memory->write(std::as_bytes(std::span(&entry.known, 1)));
  entry.use = std::make_unique<LinkUse>();
  return entry;
}

DeviceLink RankLosses::link(const droptest_link& link, bool counted) {
  const std::lock_guard lock(mutex_);
  const bool everyone = link.destination == DROPTEST_EVERY_DESTINATION;
  const Key key{link.traffic_class, link.half, link.source, link.destination, everyone ? link.group : 0};
  auto found = flows_.find(key);
  if (found == flows_.end()) found = flows_.emplace(key, make(link, counted)).first;
  payloads_[link.traffic_class] = found->second.known.payload_bytes;
  return {reinterpret_cast<const DeviceFlow*>(found->second.memory->data()), found->second.use.get()};
}

void RankLosses::lose(const Fill& fill) {
  if (capture_of(fill.stream) != 0) {
    lose_packets(fill.table, fill.message, fill.payload_bytes, fill.stream);
    return;
  }
  const std::lock_guard lock(mutex_);
  // The stream also waits for launches on the same handle: it may be that of another stream by now.
  for (const LinkUse* use : fill.uses) {
    if (use->after != nullptr) use->after->is_waited_for_by(fill.stream);
  }
  lose_packets(fill.table, fill.message, fill.payload_bytes, fill.stream);
  if (fill.uses.empty()) return;
  std::shared_ptr<Event> after = fill.uses.front()->after;
  // The event is used again if no other link's next launch waits for it.
  if (after == nullptr || after.use_count() != static_cast<long>(fill.uses.size()) + 1)
    after = std::make_shared<Event>();
  after->record(fill.stream);
  for (LinkUse* use : fill.uses) use->after = after;
}

bool RankLosses::can_lose(droptest_class traffic_class) const {
  std::int32_t can_lose = 0;
  check(droptest_network_can_lose(network_, traffic_class, &can_lose), rank_);
  return can_lose != 0;
}

std::uint64_t RankLosses::digest() const {
  std::uint64_t digest = 0;
  check(droptest_network_digest(network_, &digest), rank_);
  return digest;
}

std::uint64_t RankLosses::payload_bytes(droptest_class traffic_class) {
  const std::lock_guard lock(mutex_);
  return payloads_.at(traffic_class);
}

std::uint32_t RankLosses::next_group() {
  const std::lock_guard lock(mutex_);
  return next_group_;
}

void RankLosses::use_group(std::uint32_t number) {
  const std::lock_guard lock(mutex_);
  next_group_ = std::max(next_group_, number + 1);
}

void RankLosses::write_counts() {
  const std::lock_guard lock(mutex_);
  std::string differing;
  for (auto& [key, entry] : flows_) {
    if (!entry.counted) continue;
    DeviceFlow now;
    entry.memory->read(std::as_writable_bytes(std::span(&now, 1)));
    DeviceFlow& known = entry.known;
    std::uint64_t lost = 0;
    check(droptest_flow_count(entry.flow, now.messages - known.messages, now.packets - known.packets,
                              now.bytes - known.bytes, &lost),
          rank_);
    if (lost != now.lost - known.lost) {
      differing = "rank " + std::to_string(rank_) + ": the device lost " + std::to_string(now.lost - known.lost) +
                  " packets of a link, the host draws " + std::to_string(lost);
    }
    known = now;
  }
  check(droptest_network_write_statistics(network_, nullptr), rank_);
  if (!differing.empty()) throw DeviceError(differing);
}

}  // namespace droptest::nccl_shim
