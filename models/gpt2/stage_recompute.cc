// SPDX-License-Identifier: Apache-2.0
// Recomputation of a stage's blocks in the backward pass. A block begins with the residual streams before its norms,
// which have the sums over ranks as this rank received them. So no sum is received twice, and the projections before
// these sums are not recomputed. With RecomputeTraffic::kSent they are, and the sums are sent again in a separate
// traffic class with its own packet indices and fates; the received values are not used.
#include <cstdint>

#include "models/gpt2/stage.h"

namespace droptest::models {
namespace {

/// Measures the time of a recomputed block, without its collectives.
class RecomputationScope : public PhaseScope {
 public:
  explicit RecomputationScope(Ops& ops)
      : PhaseScope(ops.times(), Phase::kRecomputation, PhaseTimes::Inner::kIsCovered) {}
};

}  // namespace

bool Stage::leaves_slot(int layer, SublayerKind kind) const {
  const bool is_input = kind == SublayerKind::kAttention && layer == range_.first;
  return recompute_of(layer) == Recompute::kBlock && options_.place.leaves_slot() && !is_input;
}

/// Identifies a residual stream among those of a rank.
std::uint64_t Stage::key_of(int layer, SublayerKind kind, const StageBuffers& b) const {
  const std::uint64_t block = static_cast<std::uint64_t>(b.slot) * static_cast<std::uint64_t>(config_.layers) +
                              static_cast<std::uint64_t>(layer);
  return 2 * block + (kind == SublayerKind::kMlp ? 1 : 0);
}

void Stage::save_residuals(int layer, StageBuffers& b) {
  for (const SublayerKind kind : {SublayerKind::kAttention, SublayerKind::kMlp}) {
    if (!leaves_slot(layer, kind)) continue;
    const bool is_mlp = kind == SublayerKind::kMlp;
    const comm::Tensor& residual = is_mlp ? b.mlp[index(layer)].norm.residual : b.attention[index(layer)].norm.residual;
    const comm::Tensor own = options_.place.cut ? own_part(residual, b.extents.ranks, b.extents.rank) : residual;
    if (options_.place.offloaded) {
      ops_.offload().put(key_of(layer, kind, b), own);
    } else {
      ops_.convert(own, is_mlp ? b.mlp[index(layer)].own_part : b.attention[index(layer)].own_part);
    }
  }
}

void Stage::expect_residual(int layer, SublayerKind kind, const StageBuffers& b) {
  if (!options_.place.offloaded) return;
  while (layer >= range_.first && !leaves_slot(layer, kind)) --layer;
  if (layer >= range_.first) ops_.offload().expect(key_of(layer, kind, b));
}

void Stage::bring_residual_back(int layer, SublayerKind kind, StageBuffers& b) {
  if (!leaves_slot(layer, kind)) return;
  const bool is_mlp = kind == SublayerKind::kMlp;
  const comm::Tensor& residual = is_mlp ? b.mlp[index(layer)].norm.residual : b.attention[index(layer)].norm.residual;
  const comm::Tensor own = options_.place.cut ? own_part(residual, b.extents.ranks, b.extents.rank) : residual;
  {
    const RecomputationScope scope(ops_);
    if (options_.place.offloaded) {
      ops_.offload().take(key_of(layer, kind, b), own);
      expect_residual(layer - 1, kind, b);
    } else {
      ops_.convert(is_mlp ? b.mlp[index(layer)].own_part : b.attention[index(layer)].own_part, own);
    }
  }
  if (!options_.place.cut) return;
  ops_.begin_gather(own, {}, comm::even_counts(residual.count_elems(), b.extents.ranks), residual,
                    is_mlp ? messages_.mlp_residual(layer) : messages_.attention_residual(layer));
  ops_.join();
}

void Stage::attention_again(int layer, StageBuffers& b, Part part) {
  const Recompute policy = recompute_of(layer);
  AttentionBuffers& a = b.attention[index(layer)];
  if (policy != Recompute::kSaveAll) {
    const RecomputationScope scope(ops_);
    normalise(attention(layer).norm, a.norm, std::nullopt);
  }
  // A StatefulAttention is not recomputed.
  const bool projects_again = policy == Recompute::kBlock && stateful_attention_ == nullptr;
  if (part != Part::kInputs || projects_again) {
    boundary_.gather_again(a.norm.normalized, b.gathered_input, b, messages_.attention_input_again(layer),
                           a.lost_input);
  }
  if (policy == Recompute::kSaveAll) return;
  {
    const RecomputationScope scope(ops_);
    if (projects_again) project_attention(layer, b);
    if (stateful_attention_ == nullptr) attend(layer, b);
    if (sends_again(layer)) partial_sum(attention(layer).second, a.attended, a.output, b);
  }
  if (sends_again(layer)) sum_over_ranks(a.output, b, messages_.attention_output_again(layer));
}

void Stage::mlp_again(int layer, StageBuffers& b, Part part) {
  const Recompute policy = recompute_of(layer);
  MlpBuffers& m = b.mlp[index(layer)];
  if (policy != Recompute::kSaveAll) {
    const RecomputationScope scope(ops_);
    normalise(mlp(layer).norm, m.norm, std::nullopt);
  }
  const bool projects_again = policy != Recompute::kSaveAll && m.projection.bytes.empty();
  if (part != Part::kInputs || projects_again) {
    boundary_.gather_again(m.norm.normalized, b.gathered_input, b, messages_.mlp_input_again(layer), m.lost_input);
  }
  if (policy == Recompute::kSaveAll) return;
  {
    const RecomputationScope scope(ops_);
    if (projects_again) {
      activate_mlp(layer, b);
    } else {
      ops_.gelu_of_projection(shape_of(mlp(layer).first), m.projection, weight(mlp(layer).first.bias()), m.gelu_saved,
                              m.activated);
    }
    if (sends_again(layer)) partial_sum(mlp(layer).second, m.activated, m.output, b);
  }
  if (sends_again(layer)) sum_over_ranks(m.output, b, messages_.mlp_output_again(layer));
}

}  // namespace droptest::models
