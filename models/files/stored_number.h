// SPDX-License-Identifier: Apache-2.0
// One element of a stored tensor.
#pragma once

#include <cstddef>
#include <string_view>

namespace droptest::models {

/// The value of the element at the address `element`. `dtype`: "F32", "F64", "F16" or "BF16".
double to_number(const std::byte* element, std::string_view dtype);

}  // namespace droptest::models
