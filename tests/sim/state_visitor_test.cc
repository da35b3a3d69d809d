// SPDX-License-Identifier: Apache-2.0
#include "sim/state_visitor.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>

namespace droptest::sim::state_visitor_test {
namespace {

/// Saves into `saved`, or restores from it.
class Bytes final : public StateVisitor {
 public:
  explicit Bytes(Turn turn) : turn_(turn) {}
  Turn turn() const override { return turn_; }
  void bytes(std::span<std::byte> value) override {
    ++calls;
    if (turn_ == Turn::kSave) return void(saved.insert(saved.end(), value.begin(), value.end()));
    if (value.size() > saved.size() - at_) throw std::out_of_range("state");
    std::copy_n(saved.begin() + static_cast<std::ptrdiff_t>(at_), value.size(), value.begin());
    at_ += value.size();
  }

  std::vector<std::byte> saved;
  int calls = 0;

 private:
  Turn turn_;
  std::size_t at_ = 0;
};

enum class Color : std::uint8_t { kRed, kGreen };

struct State {
  std::vector<float> values;
  std::vector<Color> colors;
  std::array<std::uint16_t, 3> numbers{};
  std::vector<std::vector<double>> lists;
  std::string text;
  void visit_state(StateVisitor& visitor) { visit_values(visitor, values, colors, numbers, lists, text); }
  friend bool operator==(const State&, const State&) = default;
};

State some_state() {
  State state{{}, {Color::kGreen, Color::kRed}, {7, 8, 9}, {{1, 2}, {}, {3}}, "text"};
  for (int i = 0; i < (1 << 20) + 3; ++i) state.values.push_back(static_cast<float>(i));
  return state;
}

// Values of a message that a stale fill remembers are many: each of them costs no call.
TEST(StateVisitor, NumbersOfAContainerAreOneCall) {
  Bytes saver(StateVisitor::Turn::kSave);
  State state = some_state();
  visit_value(saver, state);
  EXPECT_EQ(saver.calls, 2 + 2 + 1 + (1 + 3 * 2) + 2);  // sizes, and numbers if they have a place
  EXPECT_EQ(saver.saved.size(), 8 + 4 * state.values.size() + (8 + 2) + 6 + (8 + 3 * 8 + 3 * 8) + (8 + 4));
}

// Checkpoints of earlier versions have each element on its own.
TEST(StateVisitor, BytesAreThoseOfTheElements) {
  std::vector<std::uint16_t> values = {1, 0x0203};
  Bytes saver(StateVisitor::Turn::kSave);
  visit_value(saver, values);
  Bytes elements(StateVisitor::Turn::kSave);
  std::uint64_t size = values.size();
  visit_value(elements, size);
  for (std::uint16_t& value : values) visit_value(elements, value);
  EXPECT_EQ(saver.saved, elements.saved);
}

TEST(StateVisitor, RestoredStatesAreEqual) {
  State state = some_state();
  Bytes saver(StateVisitor::Turn::kSave);
  visit_value(saver, state);
  Bytes restorer(StateVisitor::Turn::kRestore);
  restorer.saved = saver.saved;
  State other{{1}, {}, {}, {{9}}, "a longer text"};
  visit_value(restorer, other);
  EXPECT_EQ(other, state);
}

TEST(StateVisitor, ASizeWithoutItsNumbersTakesNoMemory) {
  Bytes restorer(StateVisitor::Turn::kRestore);
  restorer.saved.resize(sizeof(std::uint64_t), std::byte{0x7F});
  std::vector<float> values;
  EXPECT_THROW(visit_value(restorer, values), std::out_of_range);
  EXPECT_LE(values.capacity(), std::size_t{1} << 20U);
}

}  // namespace
}  // namespace droptest::sim::state_visitor_test
