// SPDX-License-Identifier: Apache-2.0
// Dense StatefulAttention over the ranks of a sequence group, and dilated StatefulAttention on any number of ranks. For
// host and device memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "models/attention/dilated_attention.h"
#include "models/attention/sequence_attention.h"
#include "models/attention/stateful_attention.h"
#include "models/ops/keyed_storage.h"
#include "sim/error.h"

namespace droptest::models {

/// Blocks: HostBlocks, DeviceBlocks or PlannedBlocks. Kernel: SequenceAttentionOf or DilatedAttentionOf for the memory
/// of Blocks. With chunks, the saved activations of a block are stored outside of memory, and the backward pass of the
/// block brings them back piece by piece. All states then share the memory of one state.
template <class Blocks, class Kernel>
class BlockAttention final : public StatefulAttention {
 public:
  /// `chunk_tokens` is the number of tokens in a piece; 0: the activations stay in memory.
  template <class Options>
  BlockAttention(comm::Communicator* group, Options options, std::int64_t heads, std::int64_t chunk_tokens, Ops& ops)
      : blocks_(ops),
        kernel_(group, std::move(options), heads),
        chunk_tokens_(chunk_tokens),
        storage_(chunk_tokens > 0 ? ops.make_keyed_storage() : nullptr) {}

  void forward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape, comm::ConstTensor qkv,
               comm::Tensor output) override {
    const auto timed = blocks_.timed();
    const bool is_evaluation = at.slot == AttentionPlace::kEvaluation;
    const auto place = is_evaluation ? std::pair(-1, -1) : std::pair(at.layer, at.slot);
    State& state = states_.try_emplace(place, State{.number = states_.size()}).first->second;
    if (storage_) shared_.swap_tensors(state.saved);
    state.documents.take(sequences, blocks_);
    const auto mask = state.documents.mask(sequences, shape.batch);
    const auto elems = Blocks::elems(qkv);
    kernel_.forward({*sequences.parts, mask, at.layer, at.dropout}, part_of_qkv(elems, 0, shape),
                    part_of_qkv(elems, 1, shape), part_of_qkv(elems, 2, shape), tokens_of(Blocks::elems(output), shape),
                    state.saved, blocks_.processor());
    if (!storage_) return;
    if (!is_evaluation) {
      for (const Piece& piece : pieces_of(state, shape)) {
        storage_->put(piece.key, Memory::tensor(Span<const E>(piece.elems), blocks_.processor()));
      }
    }
    shared_.swap_tensors(state.saved);
  }

  void backward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& shape,
                comm::ConstTensor output, comm::ConstTensor grad_output, comm::Tensor grad_qkv) override {
    const auto timed = blocks_.timed();
    const auto found = states_.find({at.layer, at.slot});
    DROPTEST_CHECK(found != states_.end(), "a backward pass of attention without a forward pass");
    State& state = found->second;
    if (storage_) bring_back(state, shape);
    const auto mask = state.documents.mask(sequences, shape.batch);
    const typename Kernel::Pass pass{*sequences.parts, mask, at.layer, at.dropout};
    const auto elems = Blocks::elems(grad_qkv);
    if constexpr (kIsDilated) Memory::zero(elems, blocks_.processor());
    const typename Blocks::Memory::Gradients gradients{part_of_qkv(elems, 0, shape), part_of_qkv(elems, 1, shape),
                                                       part_of_qkv(elems, 2, shape)};
    const auto grad = tokens_of(Blocks::elems(grad_output), shape);
    if constexpr (kIsDilated) {
      kernel_.backward(pass, tokens_of(Blocks::elems(output), shape), grad, state.saved, gradients,
                       blocks_.processor());
    } else {
      kernel_.backward(pass, grad, state.saved, gradients, blocks_.processor());
    }
    if (storage_) shared_.swap_tensors(state.saved);
  }

  std::uint64_t bytes() const override {
    std::uint64_t bytes = kernel_.bytes() + shared_.bytes();
    if (storage_) bytes += blocks_.storage_bytes(*storage_, KeyedStorage::kMostBuffers * largest_piece_);
    for (const auto& [place, state] : states_) bytes += state.saved.bytes() + state.documents.bytes();
    return bytes;
  }

 private:
  using Memory = typename Blocks::Memory;
  using E = typename Memory::Element;
  static constexpr bool kIsDilated = std::is_same_v<Kernel, DilatedAttentionOf<Memory>>;
  template <class U>
  using Span = typename Memory::template Span<U>;
  struct State {
    std::uint64_t number = 0;  ///< distinguishes the states in the keys of the storage
    typename Kernel::Saved saved{};
    typename Blocks::Documents documents{};
  };
  /// A part of a saved tensor that is stored under one key.
  struct Piece {
    std::uint64_t key = 0;
    Span<E> elems;
  };

  std::vector<Piece> pieces_of(State& state, const AttentionShape& shape) {
    constexpr int kTensorShift = 24;
    constexpr int kStateShift = 32;
    const auto most = static_cast<std::uint64_t>(chunk_tokens_ * shape.batch * shape.heads * shape.head_width);
    std::vector<Piece> pieces;
    std::uint64_t tensor = 0;
    state.saved.for_each_tensor([&](auto& buffer, std::uint64_t count) {
      const Span<E> elems = Memory::room(buffer, count, kMemoryOf, blocks_.processor());
      for (std::uint64_t first = 0, part = 0; first < count; first += most, ++part) {
        DROPTEST_CHECK(part < std::uint64_t{1} << kTensorShift && tensor < 1 << (kStateShift - kTensorShift),
                       "more chunks than keys");
        const std::uint64_t size = std::min(most, count - first);
        pieces.push_back({state.number << kStateShift | tensor << kTensorShift | part, elems.subspan(first, size)});
        largest_piece_ = std::max<std::uint64_t>(largest_piece_,
                                                 Memory::tensor(pieces.back().elems, blocks_.processor()).bytes.size());
      }
      ++tensor;
    });
    return pieces;
  }
  /// Brings the saved tensors back. While one piece is copied, the next one is being read.
  void bring_back(State& state, const AttentionShape& shape) {
    shared_.swap_tensors(state.saved);
    const std::vector<Piece> pieces = pieces_of(state, shape);
    if (!pieces.empty()) storage_->expect(pieces.front().key);
    for (std::size_t piece = 0; piece < pieces.size(); ++piece) {
      if (piece + 1 < pieces.size()) storage_->expect(pieces[piece + 1].key);
      storage_->take(pieces[piece].key, Memory::tensor(pieces[piece].elems, blocks_.processor()));
    }
  }

  static constexpr const char* kMemoryOf = "attention in chunks";  ///< names the memory in the error of a full device

  Blocks blocks_;
  Kernel kernel_;
  std::map<std::pair<int, int>, State> states_;  ///< the key is (block, slot), and (-1, -1) for evaluations
  std::int64_t chunk_tokens_;
  std::uint64_t largest_piece_ = 0;  ///< size in bytes of the largest piece so far
  typename Kernel::Saved shared_;    ///< the tensors of the current pass, if there are chunks
  std::unique_ptr<KeyedStorage> storage_;
};

}  // namespace droptest::models
