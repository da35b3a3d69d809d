// SPDX-License-Identifier: Apache-2.0
// The buffers of a stage's passes.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "models/attention/lost_elements.h"
#include "models/gpt2/batch.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/sequence_cut.h"
#include "models/gpt2/stage_range.h"
#include "models/gpt2/token_cut.h"
#include "models/ops/ops.h"
#include "models/pipeline/pipeline_program.h"

namespace droptest::models {

/// The extents of a stage on a rank, which determine the sizes of its buffers.
struct StageExtents {
  StageRange range;
  std::int64_t width = 0;
  std::int64_t heads = 0;  ///< heads of this rank
  std::int64_t first_head = 0;
  std::int64_t head_width = 0;
  std::int64_t hidden = 0;              ///< hidden columns of this rank
  TokenRange vocabulary;                ///< tokens of this rank's part of the vocabulary
  std::int64_t largest_vocabulary = 0;  ///< largest part over the ranks, with padding
  TokenRange outputs;                   ///< outputs of the head on this rank: tokens or classes
  std::int64_t largest_outputs = 0;     ///< largest number of outputs over the ranks
  BatchShape batch;
  int rank = 0;  ///< tensor-parallel rank
  int ranks = 1;
  DropoutConfig dropout{};
  bool tensor_sequence = false;
  bool stateful_attention = false;  ///< attention saves its own inputs, and needs no statistics here

  bool cuts_tokens() const { return tensor_sequence && ranks > 1; }
  /// The rows of the residual stream that this rank has.
  TokenCut cut() const {
    return cuts_tokens() ? TokenCut::even(batch.rows(), ranks, rank) : TokenCut::whole(batch.rows());
  }
  AttentionShape attention() const { return {batch.batch, batch.length, heads, head_width}; }
  std::int64_t attention_width() const { return heads * head_width; }
  /// The elements of this rank's part of a residual stream with SavedPlace::cut.
  std::uint64_t own_part_elems() const {
    return comm::even_counts(static_cast<std::uint64_t>(batch.rows() * width), ranks)[static_cast<std::size_t>(rank)];
  }
};

/// The extents of a stage on tensor-parallel rank `rank` of `world_size`.
StageExtents stage_extents(const Gpt2Config& config, const StageRange& range, int world_size, int rank,
                           const BatchShape& batch, const SlotOptions& options = {});

// `own rows` are the rows of StageExtents::cut(), `rows` the rows of all ranks.

struct NormBuffers {
  comm::Tensor residual;    ///< [own rows, width]: the residual stream, the input of the norm
  comm::Tensor normalized;  ///< [own rows, width]
  comm::Tensor mean;        ///< [own rows]
  comm::Tensor inverse_deviation;
};

struct AttentionBuffers {
  NormBuffers norm;
  comm::Tensor qkv;            ///< [rows, 3, heads, head width]
  comm::Tensor statistics;     ///< sizes from OpsForm
  comm::Tensor attended;       ///< [rows, heads, head width]
  comm::Tensor output;         ///< [own rows, width]: the sublayer output, without its bias
  comm::Tensor own_part;       ///< this rank's part of norm.residual if ranks cut and do not offload it; else empty
  comm::Tensor grad_output;    ///< [own rows, width]: gradient of the residual stream after the sublayer
  comm::Tensor grad_gathered;  ///< [rows, width]: gradient of the sublayer output; empty without a cut of tokens
  comm::Tensor grad_qkv;       ///< [rows, 3, heads, head width]
  LostElements lost_input;     ///< lost elements of the gathered input (LayerBoundary::gather_input())
};

struct MlpBuffers {
  NormBuffers norm;
  comm::Tensor projection;      ///< [rows, hidden]: before bias and GELU; empty if GELU is not recomputed from it
  comm::Tensor gelu_saved;      ///< [rows, hidden]: input of Ops::gelu_backward_input()
  comm::Tensor activated;       ///< [rows, hidden]
  comm::Tensor output;          ///< [own rows, width]: the sublayer output, without its bias
  comm::Tensor own_part;        ///< this rank's part of norm.residual if ranks cut and do not offload it; else empty
  comm::Tensor grad_output;     ///< [own rows, width]: gradient of the residual stream after the sublayer
  comm::Tensor grad_gathered;   ///< [rows, width]: gradient of the sublayer output; empty without a cut of tokens
  comm::Tensor grad_activated;  ///< [rows, hidden]
  LostElements lost_input;      ///< lost elements of the gathered input (LayerBoundary::gather_input())
};

/// A slot: the saved activations of one micro-batch, and the working memory that all slots share.
struct StageBuffers {
  StageExtents extents;
  Sequences sequences;  ///< sequences of the micro-batch
  int slot = 0;
  LogitChunks chunks;
  TokenIds tokens, targets;  ///< [rows]
  comm::Tensor message;      ///< [rows, width]; empty if messages have the activations' type
  std::vector<AttentionBuffers> attention;
  std::vector<MlpBuffers> mlp;
  comm::Tensor output;  ///< [own rows, width]: residual stream after the last block; empty with a head
  /// The lost elements of the stage's input from another rank; empty unless Communicator::stops_lost_gradients().
  LostElements lost_input;
  /// [own rows, width]: passed_input is the input of the previous stage, sent past it. passed_gradient is the gradient
  /// of the next stage's output, sent past it; with a head, it is the gradient of this stage's own output, to be sent.
  /// Empty if nothing is sent past a stage.
  comm::Tensor passed_input, passed_gradient;
  NormBuffers final_norm;
  LostElements lost_head_input;           ///< lost elements of the head's gathered input
  comm::Tensor logits;                    ///< [chunk's rows, stride]
  comm::Tensor largest, sums, predicted;  ///< [chunk's rows]
  comm::Tensor losses;                    ///< [rows]

  /// [rows, width]: the normalised input of a sublayer or of the head, with the rows of all ranks.
  const comm::Tensor& shared_input(const NormBuffers& norm) const {
    return extents.cuts_tokens() ? gathered_input : norm.normalized;
  }

  comm::Tensor attention_scratch;
  comm::Tensor rounded_input;         ///< room of an operand; empty if operands have the activations' type
  comm::Tensor rounded_gradients[2];  ///< rooms for the second and the first linear layer of a sublayer
  comm::Tensor grad_residual;         ///< [own rows, width]: gradient of the residual stream before the blocks
  comm::Tensor grad_normalized;       ///< [own rows, width]
  comm::Tensor grad_branch;  ///< [own rows, width]: gradient of a sublayer output before dropout; empty without dropout
  comm::Tensor gathered_input;  ///< [rows, width]: input of the next shared layer; empty without a cut of tokens
  comm::Tensor partial_sums;    ///< [rows, width]: this rank's partial sums; empty without a cut of tokens
  comm::Tensor grad_attended;   ///< [rows, heads, head width]
  comm::Tensor norm_scratch;
  comm::Tensor attention_backward_scratch;
};

/// kSaved: the buffer has data from a micro-batch's forward pass to its backward pass, and belongs to a slot. kWorking:
/// all passes share the buffer in turn.
enum class Lifetime : std::uint8_t { kSaved, kWorking };

/// Gets all buffers of a pass. It may set each tensor to its place in memory.
class BufferVisitor {
 public:
  virtual ~BufferVisitor() = default;
  virtual void tensor(comm::Tensor& tensor, const char* name, comm::ElementType type, std::uint64_t elems,
                      Lifetime lifetime) = 0;
  virtual void tokens(TokenIds& tokens, const char* name, std::uint64_t count, Lifetime lifetime) = 0;
};

/// Sets extents and chunks, and shows the visitor all buffers of a pass in a fixed order; this is the only list of
/// them. Without a backward pass, no buffer is saved. Unless the backward pass is split, blocks share the buffers of
/// gradients. `options` decide which buffers recomputed blocks save. Names appear only in texts for users.
void visit_buffers(StageBuffers& buffers, const StageExtents& extents, const OpsForm& form, Keep keep,
                   const SentPast& sent_past, const SlotOptions& options, BufferVisitor& visitor);

}  // namespace droptest::models
