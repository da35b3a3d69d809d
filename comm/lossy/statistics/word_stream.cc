// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/statistics/word_stream.h"

#include <array>

namespace droptest::comm {
namespace {

const Message kCollection{sim::TrafficClass::kControl, "loss statistics"};

}  // namespace

std::vector<std::vector<std::uint64_t>> gather_words(Communicator& group, const std::vector<std::uint64_t>& words) {
  const auto ranks = static_cast<std::size_t>(group.world_size());
  const std::array<std::uint64_t, 1> size = {words.size()};
  std::vector<std::uint64_t> sizes(ranks);
  group.all_gather(ConstTensor(std::span<const std::uint64_t>(size)), Tensor(std::span(sizes)),
                   std::vector<std::uint64_t>(ranks, 1), kCollection);
  std::uint64_t total = 0;
  for (const std::uint64_t s : sizes) total += s;
  std::vector<std::uint64_t> all(total);
  group.all_gather(ConstTensor(std::span<const std::uint64_t>(words)), Tensor(std::span(all)), sizes, kCollection);
  std::vector<std::vector<std::uint64_t>> by_rank;
  auto begin = all.begin();
  for (const std::uint64_t s : sizes) {
    const auto end = begin + static_cast<std::ptrdiff_t>(s);
    by_rank.emplace_back(begin, end);
    begin = end;
  }
  return by_rank;
}

}  // namespace droptest::comm
