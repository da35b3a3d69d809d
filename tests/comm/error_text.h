// SPDX-License-Identifier: Apache-2.0
// The message of a ConfigError, so that tests can compare whole texts.
#pragma once

#include <functional>
#include <string>

#include "sim/error.h"

namespace droptest {

inline std::string config_error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "(no error)";
}

}  // namespace droptest
