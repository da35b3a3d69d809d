// SPDX-License-Identifier: Apache-2.0
#include "comm/parallel_layout.h"

#include <algorithm>
#include <string>

#include "sim/error.h"

namespace droptest::comm {
namespace {

constexpr std::int64_t kMostRanks = 65534;

}  // namespace

std::string_view name_of(ParallelDimension dimension) {
  switch (dimension) {
    case ParallelDimension::kTensor:
      return "tensor";
    case ParallelDimension::kSequence:
      return "sequence";
    case ParallelDimension::kData:
      return "data";
    case ParallelDimension::kPipeline:
      return "pipeline";
  }
  throw CheckError("a dimension without a name");
}

int& ParallelNumbers::of(ParallelDimension dimension) {
  switch (dimension) {
    case ParallelDimension::kTensor:
      return tensor;
    case ParallelDimension::kSequence:
      return sequence;
    case ParallelDimension::kData:
      return data;
    case ParallelDimension::kPipeline:
      return pipeline;
  }
  throw CheckError("a dimension without a number");
}

std::string ParallelLayout::text() const {
  std::string text;
  for (const ParallelDimension dimension : kParallelDimensions) {
    if (of(dimension) == 1) continue;
    text.append(text.empty() ? "" : " x ").append(name_of(dimension)).append(" " + std::to_string(of(dimension)));
  }
  return text.empty() ? "1 rank" : text;
}

int ParallelLayout::world_size() const {
  for (const ParallelDimension dimension : kParallelDimensions) {
    if (std::find(order.begin(), order.end(), dimension) == order.end()) {
      throw ConfigError("/parallel/order: got none of \"" + std::string(name_of(dimension)) +
                        "\", want each dimension once");
    }
  }
  std::int64_t ranks = 1;
  for (const ParallelDimension dimension : kParallelDimensions) {
    if (of(dimension) < 1) {
      throw ConfigError("/parallel/" + std::string(name_of(dimension)) + ": got " + std::to_string(of(dimension)) +
                        ", want at least 1");
    }
    ranks *= of(dimension);
    if (ranks > kMostRanks) {
      throw ConfigError("/parallel: got " + text() + ", want at most " + std::to_string(kMostRanks) + " ranks");
    }
  }
  return static_cast<int>(ranks);
}

int ParallelLayout::stride(ParallelDimension dimension) const {
  int stride = 1;
  for (const ParallelDimension faster : order) {
    if (faster == dimension) break;
    stride *= of(faster);
  }
  return stride;
}

ParallelNumbers ParallelLayout::coordinates(int rank) const {
  DROPTEST_CHECK(rank >= 0 && rank < world_size(), "rank " + std::to_string(rank) + " of the layout " + text());
  ParallelNumbers coordinates;
  for (const ParallelDimension dimension : order) {
    coordinates.of(dimension) = rank % of(dimension);
    rank /= of(dimension);
  }
  return coordinates;
}

int ParallelLayout::rank(const ParallelNumbers& coordinates) const {
  int rank = 0;
  for (const ParallelDimension dimension : kParallelDimensions) {
    const int coordinate = coordinates.of(dimension);
    DROPTEST_CHECK(coordinate >= 0 && coordinate < of(dimension),
                   std::string(name_of(dimension)) + " " + std::to_string(coordinate) + " of the layout " + text());
    rank += stride(dimension) * coordinate;
  }
  return rank;
}

std::vector<int> ParallelLayout::ranks_along(std::initializer_list<ParallelDimension> dimensions,
                                             ParallelNumbers at) const {
  std::vector<ParallelNumbers> members = {at};
  for (const ParallelDimension dimension : dimensions) {
    std::vector<ParallelNumbers> all;
    for (int i = 0; i < of(dimension); ++i) {
      for (ParallelNumbers member : members) {
        member.of(dimension) = i;
        all.push_back(member);
      }
    }
    members = std::move(all);
  }
  std::vector<int> ranks;
  for (const ParallelNumbers& member : members) ranks.push_back(rank(member));
  return ranks;
}

void ParallelLayout::require_world(int ranks) const {
  if (world_size() == ranks) return;
  throw ConfigError("/parallel: got " + text() + ", " + std::to_string(world_size()) + " in all, but " +
                    std::to_string(ranks) + " ranks were started; want the product to be their number");
}

ParallelGroups::ParallelGroups(const ParallelLayout& layout, Communicator& world)
    : layout_(layout),
      world_(world),
      coordinates_((layout.require_world(world.world_size()), layout.coordinates(world.rank()))) {
  for (const ParallelDimension dimension : kParallelDimensions) {
    const auto index = static_cast<std::size_t>(dimension);
    if (layout_.of(dimension) == world_.world_size()) {
      groups_[index] = &world_;
    } else if (layout_.of(dimension) > 1) {
      owned_[index] = world_.subgroup(layout_.ranks_along({dimension}, coordinates_));
      groups_[index] = owned_[index].get();
    }
  }
  for (const ParallelDimension dimension : {ParallelDimension::kData, ParallelDimension::kSequence}) {
    if (layout_.of(dimension) == layout_.gradient_ranks()) gradient_group_ = group(dimension);
  }
  if (layout_.data == 1 || layout_.sequence == 1) return;
  owned_gradient_group_ =
      world_.subgroup(layout_.ranks_along({ParallelDimension::kSequence, ParallelDimension::kData}, coordinates_));
  gradient_group_ = owned_gradient_group_.get();
}

}  // namespace droptest::comm
