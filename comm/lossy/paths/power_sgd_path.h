// SPDX-License-Identifier: Apache-2.0
// Sums of contributions as products of two factors of low rank.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "comm/lossy/fill/error_feedback.h"
#include "comm/lossy/paths/call_memory.h"
#include "comm/lossy/paths/message_losses.h"
#include "comm/lossy/paths/path.h"

namespace droptest::comm {

/// A contribution is a square matrix M (factors_of()). All ranks have a factor Q. They add up P = M Q, make its columns
/// orthonormal, and add up Q = M^T P, which is the Q of the next call of the message; the result is P Q^T. Both sums
/// travel as contributions to an aggregation point: a packet that a rank loses is missing from all results, so ranks
/// keep equal factors. Contributions travel as they are if factors would not be smaller.
///
/// A sender with error feedback remembers M - P Q_own^T, with the elements of Q_own that arrived. Loss in the sum of P
/// changes only the subspace: every value that is missing afterwards is remembered.
/// Determinism: all ranks have equal bits if the backend gives them equal sums.
/// Source: Vogels, Karimireddy and Jaggi, NeurIPS 2019, algorithms 1 and 2 (M, P, Q as there); one matrix for a whole
/// message, as PyTorch's batched_powerSGD_hook.
class PowerSgdPath final : public Path {
 public:
  explicit PowerSgdPath(const PathContext& context) : context_(context), messages_(context.messages()) {}
  /// PathEntry::add_memory.
  static void add_memory(const SizedCall& call, CallMemory& memory);

  void plan(const CallArguments& call, CallFates& fates) override;
  void run(const CallArguments& call, Communicator& inner, Scratch& scratch) override;
  CodingErrors coding_errors() const override { return errors_; }

 private:
  void run_as_is(const CallArguments& call, ConstTensor input, Communicator& inner, Scratch& scratch);
  template <class T>
  void run_factors(const CallArguments& call, ConstTensor input, Tensor output, Communicator& inner, Scratch& scratch);
  template <class T>
  void add_up(std::vector<T>& factor, ReduceOp op, const CallArguments& call, Communicator& inner);

  PathContext context_;
  PathMessages messages_;
  // State of the current call.
  std::optional<FactorShape> shape_;  // absent: the contribution travels as it is
  MessageLosses lost_;                // losses of this rank's P and Q, or of its contribution
  Tensor remembered_;                 // Q of the call before
  ErrorFeedback feedback_;
  CodingErrors errors_;
};

/// PathEntry::sub_calls: a sum of each factor, or of the contribution as it is.
std::vector<SubCall> power_sgd_calls(const ClassNetwork& network, const CallShape& call, int ranks);

}  // namespace droptest::comm
