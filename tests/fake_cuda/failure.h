// SPDX-License-Identifier: Apache-2.0
// What the fake device does with work that a real device would do something undefined with.
#pragma once

#include <string>

namespace droptest::fake_cuda {

/// Ends the program with `fake CUDA: <what>` on standard error.
[[noreturn]] void fail(const std::string& what);

}  // namespace droptest::fake_cuda
