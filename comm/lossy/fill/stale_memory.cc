// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/fill/stale_memory.h"

#include <algorithm>

#include "comm/lossy/fill/packet_runs.h"

namespace droptest::comm {

bool StaleMemory::Memory::has_shape(ConstTensor like, std::size_t bytes, std::span<const std::uint64_t> parts) const {
  const bool on_device = like.stream != nullptr;
  return type == like.type && host.size() == (on_device ? 0 : bytes) && device.bytes() == (on_device ? bytes : 0) &&
         std::ranges::equal(cut, parts);
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
  const bool is_new = !memory.has_shape(like, bytes, cut);
  if (is_new) {
    if (like.stream != nullptr) like.stream->synchronize();  // queued work may use what is given up
    memory = Memory();
    memory.type = like.type;
    memory.cut.assign(cut.begin(), cut.end());
  }
  if (like.stream == nullptr) {
    memory.host.resize(bytes);  // all bits zero is zero in every element type
    return {like.type, std::span(memory.host)};
  }
  if (is_new) memory.device = DeviceMemory(bytes, "last values of message \"" + std::string(message.name) + "\"");
  const Tensor values(like.type, {memory.device.data(), bytes}, like.stream);
  if (is_new) zero(values);
  return values;
}

}  // namespace droptest::comm
