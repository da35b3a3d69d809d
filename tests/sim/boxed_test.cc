// SPDX-License-Identifier: Apache-2.0
#include "sim/boxed.h"

#include <gtest/gtest.h>

#include <array>
#include <string>
#include <utility>

namespace droptest::sim::boxed_test {
namespace {

TEST(Boxed, CopiesHaveValuesOfTheirOwn) {
  const Boxed<std::string> original = std::string("one");
  Boxed<std::string> copy = original;
  *copy = "two";
  EXPECT_EQ(*original, "one");
  copy = original;
  EXPECT_EQ(*copy, "one");
  copy->push_back('!');
  EXPECT_EQ(*copy, "one!");
  EXPECT_EQ(*original, "one");
  Boxed<std::string>& same = copy;
  copy = same;
  EXPECT_EQ(*copy, "one!");
}

TEST(Boxed, AnAbsentValueIsCopiedAsSuch) {
  Boxed<std::string> value = std::string("one");
  value = Boxed<std::string>();
  EXPECT_FALSE(value.has_value());
  EXPECT_EQ(value.emplace(3, 'a'), "aaa");
  value = std::nullopt;
  EXPECT_FALSE(value);
  EXPECT_EQ(value.emplace(), "");
  value.reset();
  EXPECT_FALSE(value);
}

TEST(Boxed, ValuesAreMovedAndSwapped) {
  Boxed<std::string> first = std::string("one");
  Boxed<std::string> second = std::move(first);
  EXPECT_EQ(*second, "one");
  first = std::nullopt;
  first.swap(second);
  EXPECT_EQ(*first, "one");
  EXPECT_FALSE(second);
}

TEST(Boxed, AnAbsentValueTakesAPointer) {
  using Large = std::array<char, 1000>;
  EXPECT_EQ(sizeof(Boxed<Large>), sizeof(Large*));
}

}  // namespace
}  // namespace droptest::sim::boxed_test
