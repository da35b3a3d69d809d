// SPDX-License-Identifier: Apache-2.0
// Ports for tests.
#pragma once

namespace droptest::comm {

/// A port that nobody has, another one at each call, and none of those that the system gives to connections.
int free_port();

}  // namespace droptest::comm
