// SPDX-License-Identifier: Apache-2.0
// How tests control attention by cuDNN on the fake device.
#pragma once

#include <cstdint>
#include <string>

namespace droptest::fake_cuda {

struct CudnnSettings {
  std::string absence{};  ///< the reason why there is no library; empty: there is one
  std::string refusal{};  ///< with which it refuses each graph; empty: it takes them
  std::uint64_t workspace_bytes_of_sequence = 1024;
};

/// Settings for what is asked for from now on; tests undo them by configure({}).
void configure(const CudnnSettings& settings);
CudnnSettings cudnn_settings();

}  // namespace droptest::fake_cuda
