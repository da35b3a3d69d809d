// SPDX-License-Identifier: Apache-2.0
#include "models/kernels/token_groups.h"

#include <algorithm>
#include <string>

#include "models/kernels/block_reduction.cuh"
#include "models/kernels/element_pack.cuh"
#include "models/kernels/narrow_floats.h"

namespace droptest::models {
namespace {

// A block has one group and one tile of columns: its warps take the group's positions in turn, its lanes the columns.
constexpr unsigned kPositionLanes = 8;

/// The device's table of a TokenGroups.
struct Groups {
  const std::int32_t* rows;
  const std::int32_t* starts;
  const std::int32_t* positions;
  std::int64_t count;
};

template <class D, int V>
__global__ void embedding_backward_kernel(Groups groups, const D* grad_output, std::int64_t width, float* grad_table) {
  constexpr unsigned kTile = kWarp * V;
  __shared__ float partial[kPositionLanes * kTile];
  const std::int64_t tiles = (width + kTile - 1) / kTile;
  const unsigned position_lane = threadIdx.x / kWarp;
  const unsigned column = threadIdx.x % kWarp * V;
  for (std::int64_t item = blockIdx.x; item < tiles * groups.count; item += gridDim.x) {
    const std::int64_t first_column = item % tiles * kTile;
    const std::int64_t group = item / tiles;
    Floats<V> own = {};
    if (first_column + column < width) {
      const std::int64_t end = groups.starts[group + 1];
      for (std::int64_t p = groups.starts[group] + position_lane; p < end; p += kPositionLanes) {
        const Floats<V> g = load_floats<V>(grad_output + groups.positions[p] * width + first_column + column);
#pragma unroll
        for (int v = 0; v < V; ++v) own.at[v] += g.at[v];
      }
    }
#pragma unroll
    for (int v = 0; v < V; ++v) partial[position_lane * kTile + column + v] = own.at[v];
    __syncthreads();
    for (unsigned j = threadIdx.x; j < kTile; j += blockDim.x) {
      if (first_column + j >= width) continue;
      float sum = 0;
      for (unsigned lane = 0; lane < kPositionLanes; ++lane) sum += partial[lane * kTile + j];
      grad_table[groups.rows[group] * width + first_column + j] += sum;
    }
    __syncthreads();
  }
}

std::size_t most_groups(TokenRange range, std::size_t most_tokens) {
  return std::min(static_cast<std::size_t>(range.count), most_tokens);
}

}  // namespace

TokenGroups::TokenGroups(TokenRange range, std::size_t most_tokens)
    : range_(range),
      most_tokens_(most_tokens),
      places_(static_cast<std::size_t>(range.count)),
      staged_(2 * most_groups(range, most_tokens) + 1 + most_tokens),
      table_(2 * most_groups(range, most_tokens) + 1 + most_tokens, "positions of tokens") {}

void TokenGroups::group(std::span<const std::int32_t> tokens, comm::Stream& stream) {
  DROPTEST_CHECK(tokens.size() <= most_tokens_, "token groups: " + std::to_string(tokens.size()) +
                                                    " tokens, room for " + std::to_string(most_tokens_));
  if (!copied_.reached()) copied_.wait_on_host();
  const auto own = [this](std::int32_t token) {
    const std::int64_t row = token - range_.first;
    return row >= 0 && row < range_.count ? row : -1;
  };
  tokens_ = tokens.size();
  groups_ = 0;
  grouped_ = 0;
  std::fill(places_.begin(), places_.end(), 0);
  for (const std::int32_t token : tokens) {
    const std::int64_t row = own(token);
    if (row < 0) continue;
    if (places_[static_cast<std::size_t>(row)]++ == 0) ++groups_;
    ++grouped_;
  }
  const std::span<std::int32_t> table = staged_.elems().first(2 * groups_ + 1 + grouped_);
  const std::span<std::int32_t> rows = table.first(groups_);
  const std::span<std::int32_t> starts = table.subspan(groups_, groups_ + 1);
  const std::span<std::int32_t> positions = table.subspan(2 * groups_ + 1);
  std::size_t group = 0;
  std::int32_t start = 0;
  for (std::size_t row = 0; row < places_.size(); ++row) {
    const std::int32_t count = places_[row];
    if (count == 0) continue;
    rows[group] = static_cast<std::int32_t>(row);
    starts[group++] = start;
    places_[row] = start;
    start += count;
  }
  starts[group] = start;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const std::int64_t row = own(tokens[i]);
    if (row < 0) continue;
    const auto place = static_cast<std::size_t>(places_[static_cast<std::size_t>(row)]++);
    positions[place] = static_cast<std::int32_t>(i);
  }
  comm::copy_to_device(std::span<const std::int32_t>(table), table_.elems().first(table.size()), stream);
  copied_.record(stream);
}

template <class E>
void embedding_backward(const TokenGroups& groups, comm::DeviceSpan<const E> grad_output, std::int64_t width,
                        comm::DeviceSpan<float> grad_table, comm::Stream& stream) {
  using D = DeviceElement<E>;
  DROPTEST_CHECK(width >= 0 && grad_output.size() == groups.tokens() * static_cast<std::size_t>(width) &&
                     grad_table.size() >= static_cast<std::size_t>(groups.range().count * width),
                 "embedding_backward: " + std::to_string(groups.tokens()) + " tokens, width " + std::to_string(width) +
                     ", gradient of " + std::to_string(grad_output.size()) + ", table of " +
                     std::to_string(grad_table.size()) + " for " + std::to_string(groups.range().count) + " rows");
  const Groups table{groups.rows().data(), groups.starts().data(), groups.positions().data(),
                     static_cast<std::int64_t>(groups.rows().size())};
  const bool packs = rows_of_packs<D>(width, grad_output.data());
  const std::int64_t tile = kWarp * (packs ? kPackElems<D> : 1);
  const auto items = static_cast<std::uint64_t>((width + tile - 1) / tile * table.count);
  comm::launch("embedding_backward",
               packs ? embedding_backward_kernel<D, kPackElems<D>> : embedding_backward_kernel<D, 1>,
               {std::min(items, kMostBlocks), kPositionLanes * kWarp, 0}, stream, table, device_elems(grad_output),
               width, grad_table.data());
}

template void embedding_backward<float>(const TokenGroups&, comm::DeviceSpan<const float>, std::int64_t,
                                        comm::DeviceSpan<float>, comm::Stream&);
template void embedding_backward<Bf16>(const TokenGroups&, comm::DeviceSpan<const Bf16>, std::int64_t,
                                       comm::DeviceSpan<float>, comm::Stream&);
template void embedding_backward<Fp16>(const TokenGroups&, comm::DeviceSpan<const Fp16>, std::int64_t,
                                       comm::DeviceSpan<float>, comm::Stream&);

}  // namespace droptest::models
