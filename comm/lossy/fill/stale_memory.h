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
/// memory of its own. Class, name and layer identify a message: equal ones are "the same tensor, one step later". A
/// message has one memory in each place of use, of one shape (element type, number of elements and their cut into
/// parts). A message of another shape replaces it and begins with zeros, since its positions mean other values. So the
/// largest message of each name bounds the memory.
/// Owner: the memories, on the host and on devices. The stream of the last `like` of each memory is borrowed, and
/// outlives this object.
class StaleMemory {
 public:
  /// The collective and the half in which a value travels. Within one memory, the values of one source follow those of
  /// the source before it.
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
    kFactor,
    kAllReduceEstimate,
    kAllReduceCopies,
    kReduceScatterEstimate,
    kReduceScatterCopies,
  };

  /// The memory of `count_elems` elements for a message, of the type and in the memory of `like`. `cut` describes the
  /// cut of the message into the parts of ranks; empty: not cut. `peer` is the root or the sender, if messages differ
  /// by it. The range stays valid until the message has another shape.
  Tensor of(Use use, const Message& message, ConstTensor like, std::uint64_t count_elems,
            std::span<const std::uint64_t> cut, int peer = -1);

  /// Multiplies the memories of gradients (sim::carries_gradients()) by `factor`. In all memories of floats, elements
  /// that are not finite become 0, as before the first value.
  void rescale(double factor);

  /// Bytes of all memories.
  std::uint64_t bytes() const;

  /// Values on a device are visited in host memory, and return to the device at the next of().
  void visit_state(sim::StateVisitor& visitor) { visit_value(visitor, memories_); }

 private:
  static bool has_gradients(Use use, sim::TrafficClass traffic_class);
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
    /// Borrowed stream of the last use of the device memory; null: the values are in host memory.
    Stream* stream = nullptr;

    void visit_state(sim::StateVisitor& visitor);
    bool has_shape(ConstTensor like, std::size_t bytes, std::span<const std::uint64_t> parts) const;
  };
  std::map<Key, Memory, Less> memories_;
};

}  // namespace droptest::comm
