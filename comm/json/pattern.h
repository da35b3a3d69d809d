// SPDX-License-Identifier: Apache-2.0
// The regular expressions of our schemas: sequences of characters and classes, matched in linear time without
// recursion, so that no document can exhaust the stack as it can with std::regex.
#pragma once

#include <bitset>
#include <string>
#include <string_view>
#include <vector>

namespace droptest::comm {

/// "^", then characters, escapes "\.", or classes "[A-Za-z0-9._-]", each with *, +, ? or {n}, then perhaps "$".
class Pattern {
 public:
  /// Throws: CheckError for anything else: patterns are part of the program.
  explicit Pattern(std::string_view text);

  bool matches(std::string_view text) const;

 private:
  struct Atom {
    std::bitset<256> bytes;
    std::size_t least = 1;
    bool unbounded = false;
    bool optional = false;
  };
  std::vector<Atom> atoms_;
  bool to_the_end_ = false;
};

}  // namespace droptest::comm
