// SPDX-License-Identifier: Apache-2.0
// SHA-256 of a text; hides the library.
#pragma once

#include <string>
#include <string_view>

namespace droptest::experiments {

/// 64 lower-case hex digits. Source: FIPS 180-4.
std::string sha256_hex(std::string_view text);

}  // namespace droptest::experiments
