// SPDX-License-Identifier: Apache-2.0
#include "experiments/checkpoint/restore.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "experiments/checkpoint/checkpoint_folder.h"
#include "experiments/checkpoint/piece_filler.h"
#include "experiments/checkpoint/state_bytes.h"
#include "models/loss_scaler.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using models::TensorPiece;

constexpr const char* kOptimizerSteps = "steps";
constexpr const char* kRounded = "rounded values";

/// Tells a filler which pieces the state has.
class Wanter final : public models::StateVisitor {
 public:
  Wanter(const TrainingState& state, PieceFiller& filler) : state_(state), filler_(filler) {}
  void number(std::string_view /*name*/, std::uint64_t& /*value*/) override {}
  void tensor(std::string_view name, const comm::Tensor& tensor, std::span<const TensorPiece> pieces,
              models::Sharding /*sharding*/) override {
    for (const TensorPiece& piece : pieces) {
      const models::Gpt2Tensor& of = state_.tensors[piece.tensor];
      filler_.want(WantedPiece(of.name, std::string(name), stored_type(tensor.type), comm::element_bytes(tensor.type),
                               of.slice, piece.first, piece.count));
    }
  }

 private:
  const TrainingState& state_;
  PieceFiller& filler_;
};

/// Throws: ConfigError for the first piece with elements that no file has.
void require_complete(PieceFiller& filler, const std::string& where) {
  for (const auto& [name, pieces] : filler.pieces()) {
    for (const WantedPiece& piece : pieces) {
      if (piece.lacking == 0 || piece.field == kRounded) continue;
      throw ConfigError(where + ": " + std::to_string(piece.lacking) + " elements of the " + piece.field + " of \"" +
                        piece.tensor + "\" are in no file");
    }
  }
}

/// The files in the order in which their values count: the lowest rank's first. Files of stages without the LM head
/// come last, since they only have a copy of the tied embedding. The LM head is on the stage with the last norm.
std::vector<const RankFile*> in_order(const Manifest& manifest) {
  const auto stage = [&](const RankFile& file) { return manifest.parallel.coordinates(file.rank).pipeline; };
  std::set<int> with_head;
  for (const RankFile& file : manifest.ranks) {
    if (std::ranges::find(file.pieces, "ln_f.weight", &StoredPiece::tensor) != file.pieces.end()) {
      with_head.insert(stage(file));
    }
  }
  std::vector<const RankFile*> files;
  for (const bool has_head : {true, false}) {
    for (const RankFile& file : manifest.ranks) {
      if (with_head.contains(stage(file)) == has_head) files.push_back(&file);
    }
  }
  return files;
}

std::vector<std::byte> stored_bytes(const models::StoredTensors& tensors, const char* key, const std::string& where) {
  const auto found = tensors.find(key);
  if (found == tensors.end()) throw ConfigError(where + ": tensor \"" + key + "\" is missing");
  return found->second.bytes;
}

/// Puts filled pieces into the state.
class Putter final : public models::StateVisitor {
 public:
  /// Numbers that the list lacks stay as they are.
  Putter(const TrainingState& state, PieceFiller& filler, const std::map<std::string, std::uint64_t>& numbers)
      : state_(state), filler_(filler), numbers_(numbers) {}

  void number(std::string_view name, std::uint64_t& value) override {
    if (const auto found = numbers_.find(std::string(name)); found != numbers_.end()) value = found->second;
  }

  void tensor(std::string_view name, const comm::Tensor& tensor, std::span<const TensorPiece> pieces,
              models::Sharding /*sharding*/) override {
    for (const TensorPiece& piece : pieces) {
      const std::pair<std::string, std::string> of(name, state_.tensors[piece.tensor].name);
      const WantedPiece& filled = filler_.pieces().at(of)[used_[of]++];  // pieces come in the order of their wants
      if (filled.lacking != 0) continue;
      state_.ops.copy_from_host(filled.bytes, models::elements(tensor, static_cast<std::int64_t>(piece.offset),
                                                               static_cast<std::int64_t>(piece.count)));
    }
  }

 private:
  const TrainingState& state_;
  PieceFiller& filler_;
  const std::map<std::string, std::uint64_t>& numbers_;
  std::map<std::pair<std::string, std::string>, std::size_t> used_;
};

void restore_bytes(const std::vector<std::byte>& bytes, const std::string& where,
                   const std::function<void(sim::StateVisitor&)>& visit) {
  StateRestorer restorer(bytes, where);
  visit(restorer);
  restorer.finish();
}

}  // namespace

struct RestoredState::Content {
  std::string where;
  PieceFiller filler;
  std::map<std::string, std::uint64_t> numbers;
  std::vector<std::byte> progress;
  std::optional<std::vector<std::byte>> network;  ///< absent: it stays as it is
};

RestoredState::RestoredState(std::unique_ptr<Content> content) : content_(std::move(content)) {}
RestoredState::RestoredState(RestoredState&& other) noexcept = default;
RestoredState::~RestoredState() = default;

RestoredState RestoredState::exactly(const std::string& folder, const Manifest& manifest, int rank,
                                     const TrainingState& state) {
  const RankFile& own = manifest.ranks.at(static_cast<std::size_t>(rank));
  auto content = std::make_unique<Content>();
  content->where = folder + "/" + own.file;
  Wanter wanter(state, content->filler);
  state.visit_model(wanter);
  const models::StoredTensors tensors = read_rank_file(folder, own);
  content->filler.take(folder, own, tensors);
  if (own.replica_of) {
    const RankFile& shared = manifest.ranks.at(static_cast<std::size_t>(*own.replica_of));
    content->filler.take(folder, shared, read_rank_file(folder, shared));
  }
  require_complete(content->filler, content->where);
  content->numbers = own.numbers;
  content->progress = stored_bytes(tensors, kProgressKey, content->where);
  content->network = stored_bytes(tensors, kNetworkKey, content->where);
  return RestoredState(std::move(content));
}

RestoredState RestoredState::recut(const std::string& folder, const Manifest& manifest, const TrainingState& state) {
  auto content = std::make_unique<Content>();
  content->where = folder;
  Wanter wanter(state, content->filler);
  state.visit_model(wanter);
  for (const RankFile* file : in_order(manifest)) {
    const models::StoredTensors tensors = read_rank_file(folder, *file);
    content->filler.take(folder, *file, tensors);
    if (file->rank == 0) content->progress = stored_bytes(tensors, kProgressKey, folder + "/" + file->file);
  }
  require_complete(content->filler, folder);
  // The numbers of messages belong to links of the layout before.
  const auto& numbers = manifest.ranks.front().numbers;
  for (const auto& [name, value] : numbers) {
    if (name == kOptimizerSteps || name.starts_with(models::LossScaler::kStateNames)) {
      content->numbers.emplace(name, value);
    }
  }
  return RestoredState(std::move(content));
}

void RestoredState::put(const TrainingState& state) {
  if (content_->network) restore_bytes(*content_->network, content_->where + ": " + kNetworkKey, state.visit_network);
  restore_bytes(content_->progress, content_->where + ": " + kProgressKey, state.visit_progress);
  Putter putter(state, content_->filler, content_->numbers);
  state.visit_model(putter);
  state.ops.synchronize();
}

const CopiesDifference& RestoredState::difference() const { return content_->filler.difference(); }

CheckpointWeights weights_of_checkpoint(const std::string& folder, const Manifest& manifest) {
  PieceFiller filler;
  std::map<std::string, bool> wanted;
  CheckpointWeights weights;
  for (const RankFile* of_rank : in_order(manifest)) {
    const RankFile& file = *of_rank;
    const models::StoredTensors tensors = read_rank_file(folder, file);
    for (const StoredPiece& piece : file.pieces) {
      if (piece.field != "values" || std::exchange(wanted[piece.tensor], true)) continue;
      const models::TensorSlice whole = models::TensorSlice::whole(piece.slice.full_shape);
      const auto stored = tensors.find(piece.key);
      if (stored == tensors.end())
        throw ConfigError(folder + "/" + file.file + ": tensor \"" + piece.key + "\" is missing");
      const std::size_t size = piece.count == 0 ? 1 : stored->second.bytes.size() / piece.count;
      filler.want(WantedPiece(piece.tensor, "values", stored->second.dtype, size, whole, 0, whole.full_elems()));
    }
    filler.take(folder, file, tensors);
  }
  for (auto& [name, pieces] : filler.pieces()) {
    WantedPiece& piece = pieces.front();
    if (piece.lacking != 0) {
      throw ConfigError(folder + ": " + std::to_string(piece.lacking) + " elements of \"" + piece.tensor +
                        "\" are in no file");
    }
    weights.tensors.emplace(piece.tensor, models::StoredTensor{piece.type, piece.full_shape, std::move(piece.bytes)});
  }
  weights.difference = filler.difference();
  return weights;
}

}  // namespace droptest::experiments
