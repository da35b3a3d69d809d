// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/stale_memory.h"

namespace droptest::comm {

Tensor StaleMemory::of(Use use, const Message& message, ElementType type, std::uint64_t count_elems, int peer) {
  const KeyView key{use, message.traffic_class, message.layer, peer, type, count_elems, message.name};
  auto found = memories_.find(key);
  if (found == memories_.end()) {
    // All bits zero is zero in every element type.
    found =
        memories_
            .emplace(Key{use, message.traffic_class, message.layer, peer, type, count_elems, std::string(message.name)},
                     std::vector<std::byte>(count_elems * element_bytes(type)))
            .first;
  }
  return {type, std::span(found->second)};
}

}  // namespace droptest::comm
