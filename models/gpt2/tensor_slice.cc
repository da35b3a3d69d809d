// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/tensor_slice.h"

#include <utility>

#include "comm/communicator.h"

namespace droptest::models {
namespace {

std::uint64_t product(const std::vector<std::uint64_t>& shape) {
  std::uint64_t elems = 1;
  for (const std::uint64_t extent : shape) elems *= extent;
  return elems;
}

}  // namespace

IndexRange dealt_range(std::uint64_t count, int ranks, int rank) {
  const std::vector<std::uint64_t> counts = comm::even_counts(count, ranks);
  IndexRange range;
  for (int r = 0; r < rank; ++r) range.first += counts[r];
  range.count = counts[rank];
  return range;
}

TensorSlice TensorSlice::whole(std::vector<std::uint64_t> shape) {
  TensorSlice slice;
  slice.ranges = {{0, shape.at(0)}};
  slice.full_shape = std::move(shape);
  return slice;
}

std::vector<std::uint64_t> TensorSlice::local_shape() const {
  std::vector<std::uint64_t> shape = full_shape;
  shape[axis] = padding;
  for (const IndexRange& range : ranges) shape[axis] += range.count;
  return shape;
}

std::uint64_t TensorSlice::full_elems() const { return product(full_shape); }
std::uint64_t TensorSlice::local_elems() const { return product(local_shape()); }

}  // namespace droptest::models
