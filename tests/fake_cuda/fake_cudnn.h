// SPDX-License-Identifier: Apache-2.0
// How tests control attention by cuDNN on the fake device.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace droptest::fake_cuda {

struct CudnnSettings {
  std::string absence{};                                 ///< the reason why there is no library; empty: there is one
  std::string refusal{};                                 ///< the words with which graphs are refused; empty: none is
  std::int64_t refused_heads = 0;                        ///< it refuses graphs of so many heads alone; 0: of any
  int refused_graphs = std::numeric_limits<int>::max();  ///< it takes those that come after so many
  std::uint64_t workspace_bytes_of_sequence = 1024;
};

/// Settings for what is asked for from now on; tests undo them by configure({}).
void configure(const CudnnSettings& settings);
CudnnSettings cudnn_settings();

/// Extents of the queries of all graphs that it took since it was configured.
std::vector<std::array<std::int64_t, 4>> planned_queries();

}  // namespace droptest::fake_cuda
