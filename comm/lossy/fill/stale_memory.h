// SPDX-License-Identifier: Apache-2.0
// Values that arrived earlier, for the fill `stale`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "comm/communicator.h"
#include "comm/device/device_buffer.h"
#include "sim/state_visitor.h"

namespace droptest::comm {

/// Remembers, per message and place of use, the last values that arrived; zero before the first. Each group has a
/// memory of its own. Messages are told apart by class, name and layer: equal ones are "the same tensor, one step
/// later". A message has one memory in each place of use, which is of one shape (element type, number of elements and
/// their cut into parts): a message of another shape replaces it and begins with zeros, since its positions mean other
/// values. So memory is bounded by the largest message of each name.
/// Owner: the memories, on the host and on devices. The stream of the last `like` of each memory is borrowed, and
/// outlives this object.
class StaleMemory {
 public:
  /// The collective and half that a value belongs to; sources are laid out one after another within one memory.
  enum class Use : std::uint8_t {
    kReduceContributions,
    kReduceScatterContributions,
    kAllReduceResult,
    kAllGather,
    kAllToAll,
    kBroadcast,
    kReceive,
    kReduceScatterResult,
    kAllReduceFeedback,
    kReduceScatterFeedback,
  };

  /// The memory of `count_elems` elements for a message, of the type and in the memory of `like`. `cut` says how the
  /// message is cut into the parts of ranks, empty where it is not. `peer` tells roots and senders apart, where that
  /// matters. The range stays valid until the message has another shape.
  Tensor of(Use use, const Message& message, ConstTensor like, std::uint64_t count_elems,
            std::span<const std::uint64_t> cut, int peer = -1);

  /// Values on a device are visited in host memory, and go back to it when they are next asked for.
  void visit_state(sim::StateVisitor& visitor) { visit_value(visitor, memories_); }

 private:
  using Key = std::tuple<Use, sim::TrafficClass, int, int, std::string>;
  using KeyView = std::tuple<Use, sim::TrafficClass, int, int, std::string_view>;
  static const KeyView& view(const KeyView& key) { return key; }
  static KeyView view(const Key& key) {
    return std::apply([](const auto&... members) { return KeyView(members...); }, key);
  }
  struct Less {
    using is_transparent = void;  // looking up a message makes no copy of its name
    template <class A, class B>
    bool operator()(const A& a, const B& b) const {
      return view(a) < view(b);
    }
  };
  struct Memory {
    ElementType type = ElementType::kFloat32;
    std::vector<std::uint64_t> cut;
    std::vector<std::byte> host;
    DeviceMemory device;
    Stream* stream = nullptr;  ///< borrowed, of the last use of the device memory; null: the values are in host memory

    void visit_state(sim::StateVisitor& visitor);
    bool has_shape(ConstTensor like, std::size_t bytes, std::span<const std::uint64_t> parts) const;
  };
  std::map<Key, Memory, Less> memories_;
};

}  // namespace droptest::comm
