// SPDX-License-Identifier: Apache-2.0
// A kernel that a run computed with in place of the one that its spec asks for.
#pragma once

#include <string>

namespace droptest::experiments {

struct ReplacedKernel {
  std::string operation, wanted, used;
  std::string reason;  ///< reason why the ranks do not compute with the wanted one

  /// The replacement in words: "attention is computed by flash in place of cudnn: ...".
  std::string text() const { return operation + " is computed by " + used + " in place of " + wanted + ": " + reason; }
};

}  // namespace droptest::experiments
