// SPDX-License-Identifier: Apache-2.0
#include "models/files/stored_number.h"

#include <Eigen/Core>
#include <cstring>
#include <string>

#include "sim/error.h"

namespace droptest::models {

double to_number(const std::byte* element, std::string_view dtype) {
  const auto read = [element](auto value) {
    std::memcpy(&value, element, sizeof(value));
    return value;
  };
  if (dtype == "F32") return read(float{});
  if (dtype == "F64") return read(double{});
  if (dtype == "F16") return static_cast<float>(read(Eigen::half{}));
  DROPTEST_CHECK(dtype == "BF16", "an element of type " + std::string(dtype));
  return static_cast<float>(read(Eigen::bfloat16{}));
}

}  // namespace droptest::models
