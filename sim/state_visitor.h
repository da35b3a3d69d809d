// SPDX-License-Identifier: Apache-2.0
// The list of an object's values that last from one training step to the next: its state in checkpoints.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace droptest::sim {

/// A class with state shows all of it in one function, visit_state(visitor), in a fixed order. A visitor that saves
/// reads the values; one that restores writes them into an object that was made with the same arguments.
class StateVisitor {
 public:
  enum class Turn : std::uint8_t { kSave, kRestore };
  virtual ~StateVisitor() = default;
  virtual Turn turn() const = 0;
  /// A value, or the elements of one.
  virtual void bytes(std::span<std::byte> value) = 0;

  /// Whether a part is a fixed member of the part around it, or one of a varying number of elements.
  enum class Place : std::uint8_t { kMember, kElement };
  /// The bytes and parts until the matching end_part() belong to an object of that type.
  virtual void begin_part(const std::type_info& /*type*/, Place /*place*/) {}
  virtual void end_part() {}
  /// Begins a part, and ends it when it goes out of scope.
  class Part {
   public:
    Part(StateVisitor& visitor, const std::type_info& type, Place place) : visitor_(visitor) {
      visitor.begin_part(type, place);
    }
    ~Part() { visitor_.end_part(); }
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

   private:
    StateVisitor& visitor_;
  };
};

template <class T>
void visit_value(StateVisitor& visitor, T& value, StateVisitor::Place place = StateVisitor::Place::kMember);

/// Each value in turn: objects with a visit_state(), containers, and values without padding or pointers. So equal
/// states have equal bytes.
template <class... T>
void visit_values(StateVisitor& visitor, T&... values) {
  (visit_value(visitor, values), ...);
}

/// `add()` makes another element of a container that is being restored, and visits it.
template <class Container, class Add>
void visit_elements_of(StateVisitor& visitor, Container& container, const Add& add) {
  std::uint64_t size = container.size();
  visit_value(visitor, size);
  if (visitor.turn() == StateVisitor::Turn::kRestore) {
    container.clear();
    for (std::uint64_t i = 0; i < size; ++i) add();
    return;
  }
  for (auto& element : container) visit_value(visitor, element, StateVisitor::Place::kElement);
}

/// Whether values are shown as bytes, all values of a contiguous container in one call.
template <class T>
concept Number = (std::is_arithmetic_v<T> || std::is_enum_v<T>)&&(std::has_unique_object_representations_v<T> ||
                                                                  std::is_same_v<T, float> ||
                                                                  std::is_same_v<T, double>);

/// A container that is restored grows as its values arrive: a damaged size allocates at most 2^20 elements ahead of
/// them.
template <class Container>
void visit_numbers_of(StateVisitor& visitor, Container& numbers) {
  constexpr std::uint64_t kMostAtOnce = std::uint64_t{1} << 20U;
  std::uint64_t size = numbers.size();
  visit_value(visitor, size);
  if (visitor.turn() == StateVisitor::Turn::kSave) {
    visitor.bytes(std::as_writable_bytes(std::span(numbers)));
    return;
  }
  std::uint64_t arrived = 0;
  while (arrived < size) {
    const std::uint64_t more = std::min(size - arrived, kMostAtOnce);
    if (numbers.size() < arrived + more) numbers.resize(arrived + more);
    visitor.bytes(std::as_writable_bytes(std::span(numbers).subspan(arrived, more)));
    arrived += more;
  }
  numbers.resize(size);
}

template <class T>
void visit_within(StateVisitor& visitor, std::vector<T>& values) {
  if constexpr (Number<T> && !std::is_same_v<T, bool>)
    visit_numbers_of(visitor, values);
  else
    visit_elements_of(visitor, values,
                      [&] { visit_value(visitor, values.emplace_back(), StateVisitor::Place::kElement); });
}

template <class K, class V, class... Rest>
void visit_within(StateVisitor& visitor, std::map<K, V, Rest...>& values) {
  visit_elements_of(visitor, values, [&] {
    std::pair<K, V> entry;
    visit_value(visitor, entry, StateVisitor::Place::kElement);
    values.insert(std::move(entry));
  });
}

template <class A, class B>
void visit_within(StateVisitor& visitor, std::pair<A, B>& values) {
  // The key of a map, which saving only reads.
  visit_values(visitor, const_cast<std::remove_const_t<A>&>(values.first), values.second);
}

template <class... T>
void visit_within(StateVisitor& visitor, std::tuple<T...>& values) {
  std::apply([&](T&... of_tuple) { visit_values(visitor, of_tuple...); }, values);
}

inline void visit_within(StateVisitor& visitor, std::string& text) { visit_numbers_of(visitor, text); }

template <class T>
void visit_within(StateVisitor& visitor, std::optional<T>& value) {
  bool has = value.has_value();
  visit_value(visitor, has);
  if (has && !value) value.emplace();
  if (!has) value.reset();
  if (has) visit_value(visitor, *value);
}

template <class T>
void visit_within(StateVisitor& visitor, T& value) {
  if constexpr (requires { value.visit_state(visitor); }) {
    value.visit_state(visitor);
  } else if constexpr (requires {
                         std::tuple_size<T>::value;
                         typename T::value_type;
                       }) {
    if constexpr (Number<typename T::value_type>)
      visitor.bytes(std::as_writable_bytes(std::span(value)));
    else
      for (auto& element : value) visit_value(visitor, element, StateVisitor::Place::kElement);
  } else {
    static_assert((std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>)&&!std::is_pointer_v<T>,
                  "a number, or a type that shows its state");
    visitor.bytes(std::as_writable_bytes(std::span(&value, 1)));
  }
}

template <class T>
void visit_value(StateVisitor& visitor, T& value, StateVisitor::Place place) {
  const StateVisitor::Part part(visitor, typeid(T), place);
  visit_within(visitor, value);
}

}  // namespace droptest::sim
