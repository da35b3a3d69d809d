// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/fill/stale_memory.h"

#include <algorithm>
#include <utility>

#include "comm/lossy/fill/packet_runs.h"

namespace droptest::comm {

bool StaleMemory::Memory::has_shape(ConstTensor like, std::size_t bytes, std::span<const std::uint64_t> parts) const {
  // Restored values are in host memory first.
  const bool has_memory = stream == nullptr ? host.size() == bytes : like.stream != nullptr && device.bytes() == bytes;
  return type == like.type && has_memory && std::ranges::equal(cut, parts);
}

void StaleMemory::Memory::visit_state(sim::StateVisitor& visitor) {
  std::vector<std::byte> values = host;
  if (stream != nullptr) {
    values.resize(device.bytes());
    copy_to_host(device.data(), values, *stream);
    stream->synchronize();
  }
  visit_values(visitor, type, cut, values);
  if (visitor.turn() == sim::StateVisitor::Turn::kSave) return;
  *this = Memory{type, std::move(cut), std::move(values), DeviceMemory(), nullptr};
}

Tensor StaleMemory::of(Use use, const Message& message, ConstTensor like, std::uint64_t count_elems,
                       std::span<const std::uint64_t> cut, int peer) {
  auto found = memories_.find(KeyView{use, message.traffic_class, message.layer, peer, message.name});
  if (found == memories_.end()) {
    Key key{use, message.traffic_class, message.layer, peer, std::string(message.name)};
    found = memories_.emplace(std::move(key), Memory()).first;
  }
  Memory& memory = found->second;
  const std::size_t bytes = count_elems * element_bytes(like.type);
  if (!memory.has_shape(like, bytes, cut)) {
    if (like.stream != nullptr) like.stream->synchronize();  // queued work may use the memory
    memory = Memory();
    memory.type = like.type;
    memory.cut.assign(cut.begin(), cut.end());
    memory.host.resize(bytes);  // all bits zero is zero in every element type
  }
  if (like.stream == nullptr) return {like.type, std::span(memory.host)};
  if (memory.stream == nullptr) {
    memory.device = DeviceMemory(bytes, "last values of message \"" + std::string(message.name) + "\"");
    copy_to_device(std::span<const std::byte>(memory.host), memory.device.data(), *like.stream);
    like.stream->synchronize();  // the copy on the host is freed next
    memory.host = {};
  }
  memory.stream = like.stream;
  return {like.type, {memory.device.data(), bytes}, like.stream};
}

std::uint64_t StaleMemory::bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& item : memories_) bytes += item.second.host.size() + item.second.device.bytes();
  return bytes;
}

// The gathers of the class embedding_gradient carry values.
bool StaleMemory::has_gradients(Use use, sim::TrafficClass traffic_class) {
  if (traffic_class == sim::TrafficClass::kEmbeddingGradient && use == Use::kAllGather) return false;
  return sim::carries_gradients(traffic_class);
}

void StaleMemory::rescale(double factor) {
  for (auto& [key, memory] : memories_) {
    if (is_integer(memory.type)) continue;
    const bool on_device = memory.stream != nullptr;
    const std::span<std::byte> bytes =
        on_device ? std::span(memory.device.data(), memory.device.bytes()) : std::span(memory.host);
    const Tensor values(memory.type, bytes, memory.stream);
    if (factor != 1 && has_gradients(std::get<Use>(key), std::get<sim::TrafficClass>(key))) scale(values, factor);
    zero_not_finite(values);
  }
}

}  // namespace droptest::comm
