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

/// The extents of a rank's stage, from which sizes follow.
struct StageExtents {
  StageRange range;
  std::int64_t width = 0;
  std::int64_t heads = 0;  ///< of this rank
  std::int64_t first_head = 0;
  std::int64_t head_width = 0;
  std::int64_t hidden = 0;              ///< columns of this rank
  TokenRange vocabulary;                ///< of this rank
  std::int64_t largest_vocabulary = 0;  ///< with padding, of any rank
  TokenRange outputs;                   ///< of the head on this rank: the vocabulary, or classes
  std::int64_t largest_outputs = 0;     ///< of any rank
  BatchShape batch;
  int rank = 0;  ///< of tensor parallelism
  int ranks = 1;
  DropoutConfig dropout{};
  bool tensor_sequence = false;
  bool stateful_attention = false;  ///< which saves its inputs, and has no statistics here

  bool cuts_tokens() const { return tensor_sequence && ranks > 1; }
  /// The rows of the residual stream that this rank has.
  TokenCut cut() const {
    return cuts_tokens() ? TokenCut::even(batch.rows(), ranks, rank) : TokenCut::whole(batch.rows());
  }
  AttentionShape attention() const { return {batch.batch, batch.length, heads, head_width}; }
  std::int64_t attention_width() const { return heads * head_width; }
  /// Elements of this rank's part of a residual stream, where ranks cut one.
  std::uint64_t own_part_elems() const {
    return comm::even_counts(static_cast<std::uint64_t>(batch.rows() * width), ranks)[static_cast<std::size_t>(rank)];
  }
};

StageExtents stage_extents(const Gpt2Config& config, const StageRange& range, int world_size, int rank,
                           const BatchShape& batch, const SlotOptions& options = {});

// `own rows` are those of StageExtents::cut(), `rows` those of all ranks.

struct NormBuffers {
  comm::Tensor residual;    ///< [own rows, width]: the residual stream that is normalised
  comm::Tensor normalized;  ///< [own rows, width]
  comm::Tensor mean;        ///< [own rows]
  comm::Tensor inverse_deviation;
};

struct AttentionBuffers {
  NormBuffers norm;
  comm::Tensor qkv;            ///< [rows, 3, heads, head width]
  comm::Tensor statistics;     ///< as the operations say
  comm::Tensor attended;       ///< [rows, heads, head width]
  comm::Tensor output;         ///< [own rows, width]: the sublayer output, without its bias
  comm::Tensor own_part;       ///< of norm.residual, this rank's, where ranks cut it; else empty
  comm::Tensor grad_output;    ///< [own rows, width]: of the residual stream behind the sublayer
  comm::Tensor grad_gathered;  ///< [rows, width]: of the sublayer output; empty without a cut of tokens
  comm::Tensor grad_qkv;       ///< [rows, 3, heads, head width]
  LostElements lost_input;     ///< of the gathered tokens (LayerBoundary::gather_input())
};

struct MlpBuffers {
  NormBuffers norm;
  comm::Tensor projection;      ///< [rows, hidden]: before bias and GELU; empty where GELU is not computed from it
  comm::Tensor gelu_saved;      ///< [rows, hidden], as the operations say
  comm::Tensor activated;       ///< [rows, hidden]
  comm::Tensor output;          ///< [own rows, width]: the sublayer output, without its bias
  comm::Tensor own_part;        ///< as that of attention
  comm::Tensor grad_output;     ///< [own rows, width]: of the residual stream behind the sublayer
  comm::Tensor grad_gathered;   ///< as that of attention
  comm::Tensor grad_activated;  ///< [rows, hidden]
  LostElements lost_input;      ///< of the gathered tokens (LayerBoundary::gather_input())
};

/// A slot: the saved activations of one micro-batch, and the working memory that all slots share.
struct StageBuffers {
  StageExtents extents;
  Sequences sequences;  ///< of the micro-batch
  int slot = 0;
  LogitChunks chunks;
  TokenIds tokens, targets;  ///< [rows]
  comm::Tensor message;      ///< [rows, width]; empty where messages are of the activations' type
  std::vector<AttentionBuffers> attention;
  std::vector<MlpBuffers> mlp;
  comm::Tensor output;  ///< [own rows, width]: the residual stream after the last block; empty with a head
  /// What was lost of the stage's input on its way from another rank; empty unless it is to have no gradient.
  LostElements lost_input;
  /// [own rows, width]: the input of the stage before this one, sent past it, and the gradient of the output of the
  /// stage behind it; with a head the gradient of this stage's own output, to be sent. Empty where nothing is sent
  /// past.
  comm::Tensor passed_input, passed_gradient;
  NormBuffers final_norm;
  LostElements lost_head_input;           ///< as AttentionBuffers::lost_input
  comm::Tensor logits;                    ///< [chunk's rows, stride]
  comm::Tensor largest, sums, predicted;  ///< [chunk's rows]
  comm::Tensor losses;                    ///< [rows]

  /// [rows, width]: of the head, or of a sublayer.
  const comm::Tensor& shared_input(const NormBuffers& norm) const {
    return extents.cuts_tokens() ? gathered_input : norm.normalized;
  }

  comm::Tensor attention_scratch;
  comm::Tensor rounded_input;         ///< room of an operand; empty where operands are of the activations' type
  comm::Tensor rounded_gradients[2];  ///< likewise: of the two linear layers of a sublayer, the second one's first
  comm::Tensor grad_residual;         ///< [own rows, width]: of the residual stream in front of the blocks
  comm::Tensor grad_normalized;       ///< [own rows, width]
  comm::Tensor grad_branch;           ///< [own rows, width]: of a sublayer output before dropout; empty without dropout
  comm::Tensor gathered_input;  ///< [rows, width]: what the next shared layer reads; empty without a cut of tokens
  comm::Tensor partial_sums;    ///< [rows, width]: of this rank, before they are added up; likewise
  comm::Tensor grad_attended;   ///< [rows, heads, head width]
  comm::Tensor norm_scratch;
  comm::Tensor attention_backward_scratch;
};

/// Whether a buffer holds something from a micro-batch's forward pass to its backward pass, and so belongs to a slot,
/// or serves all passes in turn.
enum class Lifetime : std::uint8_t { kSaved, kWorking };

class BufferVisitor {
 public:
  virtual ~BufferVisitor() = default;
  virtual void tensor(comm::Tensor& tensor, const char* name, comm::ElementType type, std::uint64_t elems,
                      Lifetime lifetime) = 0;
  virtual void tokens(TokenIds& tokens, const char* name, std::uint64_t count, Lifetime lifetime) = 0;
};

/// Sets extents and chunks, and shows the visitor all buffers of a pass in a fixed order: the one list of them. Where
/// no backward pass follows, none is saved. Where the backward pass is not split, blocks share the buffers of
/// gradients. Blocks that are computed again save as few as `options` says. Names are for people.
void visit_buffers(StageBuffers& buffers, const StageExtents& extents, const OpsForm& form, Keep keep,
                   const SentPast& sent_past, const SlotOptions& options, BufferVisitor& visitor);

}  // namespace droptest::models
