// SPDX-License-Identifier: Apache-2.0
#include "comm/json/pattern.h"

#include "sim/error.h"

namespace droptest::comm {
namespace {

std::size_t index_of(char c) { return static_cast<unsigned char>(c); }

bool is_special(char c) { return std::string_view("^$.*+?()[]{}|\\").find(c) != std::string_view::npos; }

}  // namespace

Pattern::Pattern(std::string_view text) {
  const std::string whole(text);
  const auto require = [&whole](bool condition) {
    DROPTEST_CHECK(condition, "pattern " + whole + " has a form that pattern.h does not know");
  };
  require(text.starts_with('^'));
  text.remove_prefix(1);
  const auto take = [&text, &require] {
    require(!text.empty());
    const char c = text.front();
    text.remove_prefix(1);
    return c;
  };
  while (!text.empty()) {
    if (text == "$") {
      to_the_end_ = true;
      return;
    }
    Atom atom;
    char c = take();
    if (c == '[') {
      while ((c = take()) != ']') {
        require(!is_special(c) || c == '.');
        char last = c;
        // A '-' is a range between two characters and itself before the ']'.
        if (text.size() >= 2 && text[0] == '-' && text[1] != ']') {
          take();
          last = take();
        }
        require(index_of(c) <= index_of(last));
        for (std::size_t i = index_of(c); i <= index_of(last); ++i) atom.bytes.set(i);
      }
      require(atom.bytes.any());
    } else {
      if (c == '\\') {
        c = take();
        require(is_special(c));
      } else {
        require(!is_special(c));
      }
      atom.bytes.set(index_of(c));
    }
    if (!text.empty() && std::string_view("*+?{").find(text.front()) != std::string_view::npos) {
      switch (take()) {
        case '*':
          atom.least = 0;
          atom.unbounded = true;
          break;
        case '+':
          atom.unbounded = true;
          break;
        case '?':
          atom.optional = true;
          break;
        default: {
          atom.least = 0;
          while ((c = take()) != '}') {
            require(c >= '0' && c <= '9' && atom.least < 1000);
            atom.least = atom.least * 10 + static_cast<std::size_t>(c - '0');
          }
          require(atom.least > 0);
        }
      }
    }
    atoms_.push_back(atom);
  }
}

bool Pattern::matches(std::string_view text) const {
  // Most names that are asked for fit no pattern from their first byte on.
  if (!atoms_.empty() && atoms_[0].least > 0 && !atoms_[0].optional &&
      (text.empty() || !atoms_[0].bytes.test(index_of(text[0])))) {
    return false;
  }
  // reached[i]: the atoms so far can match the first i bytes.
  std::vector<bool> reached(text.size() + 1, false);
  reached[0] = true;
  const auto advance = [&text](const std::vector<bool>& from, const Atom& atom) {
    std::vector<bool> to(from.size(), false);
    for (std::size_t i = 0; i < text.size(); ++i) to[i + 1] = from[i] && atom.bytes.test(index_of(text[i]));
    return to;
  };
  for (const Atom& atom : atoms_) {
    if (atom.optional) {
      const std::vector<bool> taken = advance(reached, atom);
      for (std::size_t i = 0; i < reached.size(); ++i) reached[i] = reached[i] || taken[i];
      continue;
    }
    for (std::size_t n = 0; n < atom.least; ++n) reached = advance(reached, atom);
    if (atom.unbounded) {
      for (std::size_t i = 0; i < text.size(); ++i) {
        if (reached[i] && atom.bytes.test(index_of(text[i]))) reached[i + 1] = true;
      }
    }
  }
  if (to_the_end_) return reached.back();
  for (const bool end : reached) {
    if (end) return true;
  }
  return false;
}

}  // namespace droptest::comm
