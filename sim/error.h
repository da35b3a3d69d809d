// SPDX-License-Identifier: Apache-2.0
// The exception types of all modules, and the check macro.
#pragma once

#include <stdexcept>
#include <string>

namespace droptest {

/// An error that the user can fix: a spec, a flag or a file. The message names the place, the value got and the values
/// allowed.
class ConfigError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A peer or the transport failed. The communicator that threw it must be discarded.
class CommError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// CUDA or NCCL failed, or a device is absent.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// An invariant of droptest does not hold: a bug in droptest.
class CheckError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Throws CheckError with the place, the condition and `detail`. Called by DROPTEST_CHECK.
[[noreturn]] void fail_check(const char* file, int line, const char* condition, const std::string& detail);

}  // namespace droptest

/// Checks an invariant in every build type. `detail` is evaluated only on failure.
#define DROPTEST_CHECK(condition, detail)                                             \
  do {                                                                                \
    if (!(condition)) ::droptest::fail_check(__FILE__, __LINE__, #condition, detail); \
  } while (false)
