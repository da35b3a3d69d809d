// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/build_facts.h"

#include "droptest_commit.h"

namespace droptest::experiments {

BuildFacts build_facts() { return {DROPTEST_VERSION, kCommit, DROPTEST_COMPILER, DROPTEST_GLOO_VERSION}; }

}  // namespace droptest::experiments
