// SPDX-License-Identifier: Apache-2.0
// The fake device's reaction to work with undefined behaviour on a real device.
#pragma once

#include <string>

namespace droptest::fake_cuda {

/// Ends the program with `fake CUDA: <what>` on standard error.
[[noreturn]] void fail(const std::string& what);

}  // namespace droptest::fake_cuda
