// SPDX-License-Identifier: Apache-2.0
#include "models/sequence/head_exchange.h"

#include <numeric>

#include "models/sequence/lost_elements.h"
#include "models/sequence/sequence_factors.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

/// Calls f(view of the heads of a rank, where they lie in the packed elements) for each rank.
template <class T, class P, class F>
void for_each_part(const HeadView<T>& local, std::span<const std::uint64_t> heads, P* packed, const F& f) {
  std::int64_t first = 0;
  for (const std::uint64_t count : heads) {
    const HeadView<T> part = local.heads(first, static_cast<std::int64_t>(count));
    f(part, view_of("packed", std::span(packed, part.shape.elems()), part.shape, TokenLayout::kSequenceFirst));
    first += static_cast<std::int64_t>(count);
    packed += part.shape.elems();
  }
}

}  // namespace

template <class T>
HeadExchange<T>::HeadExchange(comm::Communicator* group, std::int64_t heads)
    : group_(group), rank_(group == nullptr ? 0 : group->rank()) {
  const int ranks = group == nullptr ? 1 : group->world_size();
  heads_ = dealt_heads(heads, ranks);
  first_head_ = static_cast<std::int64_t>(std::accumulate(heads_.begin(), heads_.begin() + rank_, std::uint64_t{0}));
}

template <class T>
void HeadExchange<T>::count(const HeadShape& local, std::span<const std::int64_t> lengths) {
  DROPTEST_CHECK(lengths.size() == heads_.size() && lengths[static_cast<std::size_t>(rank_)] == local.tokens,
                 "tokens of another group");
  by_heads_.clear();
  by_tokens_.clear();
  for (const std::uint64_t heads : heads_) {
    by_heads_.push_back(HeadShape{local.batch, local.tokens, static_cast<std::int64_t>(heads), local.width}.elems());
  }
  for (const std::int64_t tokens : lengths) {
    by_tokens_.push_back(HeadShape{local.batch, tokens, heads(), local.width}.elems());
  }
}

template <class T>
void HeadExchange<T>::to_heads(const HeadView<const T>& local, std::span<const std::int64_t> lengths,
                               std::span<T> gathered, const comm::Message& message,
                               std::span<const sim::ElementRange> stopped) {
  if (group_ == nullptr) {
    return copy_heads(local, view_of("gathered", gathered, local.shape, TokenLayout::kSequenceFirst));
  }
  count(local.shape, lengths);
  packed_.resize(local.shape.elems());
  for_each_part(local, heads_, packed_.data(), [](const auto& part, const auto& packed) { copy_heads(part, packed); });
  zero_lost(stopped, std::span(packed_));
  group_->all_to_all(std::span<const T>(packed_), by_heads_, gathered, by_tokens_, message);
}

template <class T>
void HeadExchange<T>::to_tokens(std::span<const T> gathered, std::span<const std::int64_t> lengths,
                                const HeadView<T>& local, const comm::Message& message) {
  if (group_ == nullptr) {
    return copy_heads(view_of("gathered", gathered, local.shape, TokenLayout::kSequenceFirst), local);
  }
  count(local.shape, lengths);
  packed_.resize(local.shape.elems());
  group_->all_to_all(gathered, by_tokens_, std::span(packed_), by_heads_, message);
  const T* packed = packed_.data();
  for_each_part(local, heads_, packed, [](const auto& part, const auto& of_rank) { copy_heads(of_rank, part); });
}

template class HeadExchange<float>;
template class HeadExchange<double>;

}  // namespace droptest::models
