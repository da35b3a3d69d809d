// SPDX-License-Identifier: Apache-2.0
// Attention with state over the ranks of a sequence group, for host and device memory.
#pragma once

#include <cstdint>
#include <map>
#include <type_traits>
#include <utility>

#include "models/gpt2/stateful_attention.h"
#include "models/sequence/dilated_attention.h"
#include "models/sequence/sequence_attention.h"
#include "sim/error.h"

namespace droptest::models {

/// Blocks is HostBlocks or DeviceBlocks, and Kernel SequenceAttentionOf or DilatedAttentionOf its memory.
template <class Blocks, class Kernel>
class KernelAttention final : public StatefulAttention {
 public:
  template <class Options>
  KernelAttention(comm::Communicator* group, Options options, std::int64_t heads, Ops& ops)
      : blocks_(ops), kernel_(group, std::move(options), heads) {}

  void forward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape, comm::ConstTensor qkv,
               comm::Tensor output) override {
    const auto timed = blocks_.timed();
    State& state = states_[at.slot == AttentionPlace::kEvaluation ? std::pair(-1, -1) : std::pair(at.layer, at.slot)];
    state.documents.take(sequences, blocks_);
    const auto mask = state.documents.mask(sequences, shape.batch);
    const auto elems = Blocks::elems(qkv);
    kernel_.forward({*sequences.parts, mask, at.layer, at.dropout}, part_of_qkv(elems, 0, shape),
                    part_of_qkv(elems, 1, shape), part_of_qkv(elems, 2, shape), tokens_of(Blocks::elems(output), shape),
                    state.saved, blocks_.processor());
  }

  void backward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape,
                comm::ConstTensor output, comm::ConstTensor grad_output, comm::Tensor grad_qkv) override {
    const auto timed = blocks_.timed();
    const auto found = states_.find({at.layer, at.slot});
    DROPTEST_CHECK(found != states_.end(), "a backward pass of attention without a forward pass");
    const State& state = found->second;
    const auto mask = state.documents.mask(sequences, shape.batch);
    const typename Kernel::Pass pass{*sequences.parts, mask, at.layer, at.dropout};
    const auto elems = Blocks::elems(grad_qkv);
    const typename Blocks::Memory::Gradients gradients{part_of_qkv(elems, 0, shape), part_of_qkv(elems, 1, shape),
                                                       part_of_qkv(elems, 2, shape)};
    const auto grad = tokens_of(Blocks::elems(grad_output), shape);
    if constexpr (std::is_same_v<Kernel, DilatedAttentionOf<typename Blocks::Memory>>) {
      kernel_.backward(pass, tokens_of(Blocks::elems(output), shape), grad, state.saved, gradients,
                       blocks_.processor());
    } else {
      kernel_.backward(pass, grad, state.saved, gradients, blocks_.processor());
    }
  }

  std::uint64_t bytes() const override {
    std::uint64_t bytes = kernel_.bytes();
    for (const auto& [place, state] : states_) bytes += state.saved.bytes() + state.documents.bytes();
    return bytes;
  }

 private:
  struct State {
    typename Kernel::Saved saved;
    typename Blocks::Documents documents;
  };

  Blocks blocks_;
  Kernel kernel_;
  std::map<std::pair<int, int>, State> states_;  ///< by block and slot; an evaluation's is of none
};

/// Over the ranks of a group, or with the options' branches.
template <class Blocks>
std::unique_ptr<StatefulAttention> make_kernel_attention(const AttentionOptions& options, const SequenceParallel& ranks,
                                                         std::int64_t first_head, std::int64_t heads, Ops& ops) {
  using Memory = typename Blocks::Memory;
  if (options.branches.empty()) {
    return std::make_unique<KernelAttention<Blocks, SequenceAttentionOf<Memory>>>(ranks.group, options.sequence.factors,
                                                                                  heads, ops);
  }
  return std::make_unique<KernelAttention<Blocks, DilatedAttentionOf<Memory>>>(
      ranks.group, DilatedOptions{options.branches, options.gradient, first_head}, heads, ops);
}

}  // namespace droptest::models
