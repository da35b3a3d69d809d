// SPDX-License-Identifier: Apache-2.0
// A wrong argument of a function of the C interface.
#pragma once

#include <stdexcept>

namespace droptest::api {

/// The message names the argument, the value got and the values allowed.
class ArgumentError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace droptest::api
