// SPDX-License-Identifier: Apache-2.0
#include "models/ops/ops.h"

#include <numeric>

#include "sim/error.h"

namespace droptest::models {
namespace {

template <class T>
T part(const T& tensor, std::int64_t first, std::int64_t count) {
  const std::size_t bytes = comm::element_bytes(tensor.type);
  const std::size_t begin = static_cast<std::size_t>(first) * bytes;
  const std::size_t wanted = static_cast<std::size_t>(count) * bytes;
  DROPTEST_CHECK(begin <= tensor.bytes.size() && wanted <= tensor.bytes.size() - begin, "outside of a tensor");
  return {tensor.type, tensor.bytes.subspan(begin, wanted), tensor.stream};
}

}  // namespace

void Ops::zero_ranges(comm::Tensor values, std::span<const sim::ElementRange> ranges) {
  for (const sim::ElementRange& range : ranges) {
    zero(elements(values, static_cast<std::int64_t>(range.begin), static_cast<std::int64_t>(range.size())));
  }
}

comm::Tensor elements(const comm::Tensor& tensor, std::int64_t first, std::int64_t count) {
  return part(tensor, first, count);
}
comm::ConstTensor elements(const comm::ConstTensor& tensor, std::int64_t first, std::int64_t count) {
  return part(tensor, first, count);
}

comm::Tensor part_of_rank(const comm::Tensor& tensor, std::span<const std::uint64_t> counts, int rank) {
  const auto own = counts.begin() + rank;
  return elements(tensor, static_cast<std::int64_t>(std::accumulate(counts.begin(), own, std::uint64_t{0})),
                  static_cast<std::int64_t>(*own));
}

comm::Tensor own_part(const comm::Tensor& tensor, int ranks, int rank) {
  return part_of_rank(tensor, comm::even_counts(tensor.count_elems(), ranks), rank);
}

comm::Tensor part_of(const comm::Tensor& sum, const comm::Tensor& message) {
  return !message.bytes.empty() && comm::element_bytes(message.type) > comm::element_bytes(sum.type) ? message : sum;
}

}  // namespace droptest::models
