// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/stale_memory.h"

#include "comm/lossy/packet_runs.h"

namespace droptest::comm {

Tensor StaleMemory::of(Use use, const Message& message, ConstTensor like, std::uint64_t count_elems, int peer) {
  const KeyView key{use, message.traffic_class, message.layer, peer, like.type, count_elems, message.name};
  const std::size_t bytes = count_elems * element_bytes(like.type);
  auto found = memories_.find(key);
  const bool is_new = found == memories_.end();
  if (is_new) {
    found = memories_
                .emplace(Key{use, message.traffic_class, message.layer, peer, like.type, count_elems,
                             std::string(message.name)},
                         Memory())
                .first;
  }
  Memory& memory = found->second;
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
