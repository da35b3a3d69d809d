// SPDX-License-Identifier: Apache-2.0
// Which probabilities 32-bit draws can express, and how messages spell them.
#pragma once

#include <string>
#include <string_view>

namespace droptest::sim {

/// The allowed probabilities of a loss process, in words for a message.
inline constexpr std::string_view kDrawable = "0 or a number in [2^-32, 1]: draws have 32 bits";

/// True for 0 and for numbers in [2^-32, 1]. A smaller number would never lose a packet although it is not 0.
bool is_drawable(double probability);

/// Throws: ConfigError "<what>: got <probability>, want ..." unless is_drawable(probability).
void require_drawable(std::string_view what, double probability);

/// The shortest text that reads back as the same number.
std::string shortest_text(double number);

}  // namespace droptest::sim
