// SPDX-License-Identifier: Apache-2.0
// The cores that a process has.
#pragma once

#include <vector>

namespace droptest::comm {

/// The cores that this process may run on, ascending: those of the machine that taskset and its cpuset allow. Never
/// empty. Throws: CommError if the kernel does not tell them.
std::vector<int> allowed_cores();

}  // namespace droptest::comm
