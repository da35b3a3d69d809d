// SPDX-License-Identifier: Apache-2.0
// Controls of attention by cuDNN on the fake device.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace droptest::fake_cuda {

struct CudnnSettings {
  std::string absence{};           ///< the reason why there is no library; empty: there is one
  std::string refusal{};           ///< message with which graphs are refused; empty: none is refused
  std::int64_t refused_heads = 0;  ///< only graphs with this number of heads are refused; 0: any number
  int refused_graphs = std::numeric_limits<int>::max();  ///< number of graphs that are refused; later ones are accepted
  std::uint64_t workspace_bytes_of_sequence = 1024;
};

/// Sets the settings from now on; tests undo them with configure({}).
void configure(const CudnnSettings& settings);
CudnnSettings cudnn_settings();

/// The extents of the queries of all graphs that were accepted since configure().
std::vector<std::array<std::int64_t, 4>> planned_queries();

}  // namespace droptest::fake_cuda
