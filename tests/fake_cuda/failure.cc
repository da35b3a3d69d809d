// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/failure.h"

#include <cstdio>
#include <cstdlib>

namespace droptest::fake_cuda {

void fail(const std::string& what) {
  std::fprintf(stderr, "fake CUDA: %s\n", what.c_str());
  std::abort();
}

}  // namespace droptest::fake_cuda
