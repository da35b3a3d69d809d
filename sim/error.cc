// SPDX-License-Identifier: Apache-2.0
#include "sim/error.h"

namespace droptest {

void fail_check(const char* file, int line, const char* condition, const std::string& detail) {
  throw CheckError(std::string(file) + ":" + std::to_string(line) + ": check failed: " + condition +
                   (detail.empty() ? "" : ": " + detail) + " (a bug in droptest)");
}

}  // namespace droptest
