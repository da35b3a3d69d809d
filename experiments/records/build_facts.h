// SPDX-License-Identifier: Apache-2.0
// Facts of the build, in a unit of their own: it is compiled again for each commit, and so has no library to read.
#pragma once

namespace droptest::experiments {

struct BuildFacts {
  const char* version;
  const char* commit;  ///< commit of the build, not of the last configure
  const char* compiler;
  const char* gloo_version;
};
BuildFacts build_facts();

}  // namespace droptest::experiments
