// SPDX-License-Identifier: Apache-2.0
// The name of this machine.
#pragma once

#include <string>

namespace droptest::comm {

/// This machine's name, as the system has it; "unknown" if the system does not tell it.
std::string host_name();

}  // namespace droptest::comm
