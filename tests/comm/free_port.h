// SPDX-License-Identifier: Apache-2.0
// Ports for tests.
#pragma once

namespace droptest::comm {

/// A free port. Each call returns another one, and none from the range that the system assigns to connections.
int free_port();

}  // namespace droptest::comm
