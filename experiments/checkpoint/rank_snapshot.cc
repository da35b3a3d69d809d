// SPDX-License-Identifier: Apache-2.0
#include "experiments/checkpoint/rank_snapshot.h"

#include <array>
#include <cstdio>
#include <functional>
#include <numeric>
#include <span>

#include "experiments/checkpoint/state_bytes.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::ElementType;
using models::TensorPiece;

/// A piece that is all of a rank's slice keeps its shape.
std::vector<std::uint64_t> shape_of(const models::TensorSlice& slice, const TensorPiece& piece) {
  std::vector<std::uint64_t> shape = slice.local_shape();
  shape[0] -= slice.padding;
  const std::uint64_t elems =
      std::accumulate(shape.begin(), shape.end(), std::uint64_t{1}, std::multiplies<std::uint64_t>());
  if (piece.first == 0 && piece.count == elems) return shape;
  return {piece.count};
}

class Snapshotter final : public models::StateVisitor {
 public:
  Snapshotter(const TrainingState& state, RankSnapshot& snapshot) : state_(state), snapshot_(snapshot) {}

  void number(std::string_view name, std::uint64_t& value) override {
    snapshot_.file.numbers.emplace(std::string(name), value);
  }

  void tensor(std::string_view name, const comm::Tensor& tensor, std::span<const TensorPiece> pieces,
              models::Sharding sharding) override {
    if (snapshot_.file.replica_of && sharding == models::Sharding::kWhole) return;
    const std::size_t size = comm::element_bytes(tensor.type);
    for (const TensorPiece& piece : pieces) {
      const models::Gpt2Tensor& of = state_.tensors[piece.tensor];
      StoredPiece stored{of.name,  std::string(name), std::string(name) + "/" + of.name,
                         of.slice, piece.first,       piece.count};
      if (piece.first != 0) stored.key += "@" + std::to_string(piece.first);
      models::StoredTensor copy{stored_type(tensor.type), shape_of(of.slice, piece), {}};
      copy.bytes.resize(static_cast<std::size_t>(piece.count) * size);
      state_.ops.copy_to_host(
          models::elements(tensor, static_cast<std::int64_t>(piece.offset), static_cast<std::int64_t>(piece.count)),
          copy.bytes);
      snapshot_.tensors.emplace(stored.key, std::move(copy));
      snapshot_.file.pieces.push_back(std::move(stored));
    }
  }

 private:
  const TrainingState& state_;
  RankSnapshot& snapshot_;
};

models::StoredTensor bytes_of(const std::function<void(sim::StateVisitor&)>& visit) {
  StateSaver saver;
  visit(saver);
  std::vector<std::byte> bytes = saver.take();
  const std::uint64_t size = bytes.size();
  return {"U8", {size}, std::move(bytes)};
}

}  // namespace

std::string rank_file_name(int rank) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "rank-%05d.safetensors", rank);
  return text.data();
}

std::string stored_type(ElementType type) {
  switch (type) {
    case ElementType::kFloat32:
      return "F32";
    case ElementType::kFloat64:
      return "F64";
    case ElementType::kBfloat16:
      return "BF16";
    case ElementType::kFloat16:
      return "F16";
    default:
      throw CheckError("elements of another type than parameters'");
  }
}

RankSnapshot take_snapshot(const TrainingState& state, int rank, std::optional<int> replica_of) {
  RankSnapshot snapshot;
  snapshot.file.rank = rank;
  snapshot.file.file = rank_file_name(rank);
  snapshot.file.replica_of = replica_of;
  Snapshotter visitor(state, snapshot);
  state.visit_model(visitor);
  snapshot.tensors.emplace(kNetworkKey, bytes_of(state.visit_network));
  snapshot.tensors.emplace(kProgressKey, bytes_of(state.visit_progress));
  state.ops.synchronize();
  return snapshot;
}

}  // namespace droptest::experiments
