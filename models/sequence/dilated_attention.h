// SPDX-License-Identifier: Apache-2.0
// Dilated attention over the tokens of several ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "models/sequence/absence.h"
#include "models/sequence/dilated_plan.h"
#include "models/sequence/sequence_attention.h"

namespace droptest::models {

/// The gradient with respect to the weights of the branches. The output of a query is sum_i a_i O_i over the branches
/// that have it, a_i = exp(lse_i) / sum_i exp(lse_i): one softmax over the keys of all branches, a key of two branches
/// counted twice.
enum class BranchGradient : std::uint8_t {
  kExact,    ///< that of the softmax
  kStopped,  ///< a_i as constants, as in the published code (torchscale)
};

struct DilatedOptions {
  std::vector<DilatedBranch> branches;
  BranchGradient gradient = BranchGradient::kExact;
  std::int64_t first_head = 0;  ///< the number of this rank's first head over tensor-parallel ranks
};

/// The saved activations of a forward pass; the tokens are this rank's, [tokens, batch, heads, width].
template <class T>
struct SavedDilatedAttention {
  /// Keys and values of other ranks in one branch: [gathered tokens, batch, heads, width].
  struct Gathered {
    std::vector<T> keys;
    std::vector<T> values;
    Absences absent;
    LostElements lost_keys;  ///< under Communicator::stops_lost_gradients(), unless keys are absent; of the messages
    LostElements lost_values;
  };
  std::vector<T> queries;
  std::vector<T> keys;
  std::vector<T> values;
  std::vector<T> output;
  std::vector<T> log_sum_exp;
  std::vector<Gathered> gathered;  ///< by branch
};

/// A segment within a rank's tokens needs no other rank. Of longer ones the rank gets the keys and values of the heads'
/// residues alone, from the ranks that share the segment: messages attention.branch0.keys and .values of
/// sequence_forward, gradients back with .grad in sequence_backward. Losses are those of SequenceAttention.
/// Owner: one rank. Ranks: all make the same calls. Parts: consecutive, in the order of the ranks, of any length.
template <class T>
class DilatedAttention {
 public:
  /// The group is borrowed; null: one rank. Throws: ConfigError of validate().
  DilatedAttention(comm::Communicator* group, DilatedOptions options, std::int64_t heads);

  /// As SequenceAttention::forward() and backward(). A query of no branch has the output 0.
  void forward(const SequencePass& pass, const HeadView<const T>& queries, const HeadView<const T>& keys,
               const HeadView<const T>& values, const HeadView<T>& output, SavedDilatedAttention<T>& saved,
               const Team& team);
  void backward(const SequencePass& pass, const HeadView<const T>& grad_output, const SavedDilatedAttention<T>& saved,
                const AttentionGradients<T>& gradients, const Team& team);

  /// This rank's share of a pass over so many sequences.
  SequenceTraffic traffic(const SequenceParts& parts, Causality causality, std::int64_t batch,
                          std::int64_t width) const;

 private:
  using Gathered = typename SavedDilatedAttention<T>::Gathered;
  /// Of the branches: made once for the calls with the same parts and causality.
  const std::vector<DilatedPlan>& plans(const SequencePass& pass);
  HeadShape local_shape(const SequencePass& pass, const HeadShape& like) const;
  HeadShape gathered_shape(const DilatedPlan& plan, const HeadShape& local) const;
  AttentionInputs<T> inputs_of(const SequencePass& pass, const SavedDilatedAttention<T>& saved,
                               const HeadShape& local) const;
  AttentionInputs<T> inputs_of(const SequencePass& pass, const SavedDilatedAttention<T>& saved, const HeadShape& local,
                               const Gathered& gathered, const HeadShape& shape) const;
  void gather(const DilatedPlan& plan, const HeadView<const T>& from, const HeadView<T>& to, Absences* absent,
              LostElements* stopped, const comm::Message& message);
  void scatter(const DilatedPlan& plan, const HeadView<const T>& from, const HeadView<T>& to,
               const LostElements& stopped, const comm::Message& message);
  void attend_branch(const DilatedPlan& plan, const SequencePass& pass, const SavedDilatedAttention<T>& saved,
                     const HeadShape& local, const Gathered& gathered, const HeadView<T>& output,
                     std::span<T> log_sum_exp, const Team& team);
  std::span<T> scratch(std::int64_t width, const Team& team);

  comm::Communicator* group_;
  int rank_;
  DilatedOptions options_;
  std::int64_t heads_;
  struct Planned {
    SequenceParts parts;
    Causality causality;
    std::vector<DilatedPlan> branches;
  };
  std::optional<Planned> planned_;  ///< of the last parts
  std::vector<T> sent_;
  std::vector<T> received_;
  std::vector<T> scratch_;
};

}  // namespace droptest::models
