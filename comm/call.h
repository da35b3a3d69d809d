// SPDX-License-Identifier: Apache-2.0
// One call of a communicator, on which the ranks of a group must agree, and its text in errors.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace droptest::comm {

/// The name of an operation: "all_reduce", ...
std::string_view operation_name(Operation operation);

/// The operation, type, counts and message of one rank's call. Trivially copyable, so that processes can send it to
/// each other. A long name is cut to its prefix, but its digest is of the whole name. Ranks agree if everything but
/// `step` is equal.
struct Call {
  Operation operation = Operation::kBarrier;
  ReduceOp reduce_op = ReduceOp::kSum;
  ElementType type = ElementType::kFloat32;
  sim::TrafficClass traffic_class = sim::TrafficClass::kControl;
  std::int32_t layer = -1;
  std::int32_t root = -1;
  std::uint32_t name_chars = 0;
  std::uint64_t step = 0;
  /// Elements of the whole message; all_to_all: of this rank's input, which may differ from other ranks'.
  std::uint64_t count_elems = 0;
  std::uint64_t counts_digest = 0;  ///< digest of the ranks' counts, if all ranks must give the same
  std::uint64_t name_digest = 0;
  std::optional<std::uint64_t> ordinal;  ///< Message::ordinal
  std::array<char, 64> name_prefix{};

  Call() = default;
  Call(Operation op, ElementType element_type, std::uint64_t count, const Message& message, std::uint64_t at_step);

  std::string_view name() const { return {name_prefix.data(), name_chars}; }
};

/// Arguments with a copy of counts and name, for calls that outlive them: all but exchanges.
class KeptArguments {
 public:
  explicit KeptArguments(const CallArguments& arguments);
  KeptArguments(const KeptArguments&) = delete;
  KeptArguments& operator=(const KeptArguments&) = delete;
  const CallArguments& get() const { return arguments_; }

 private:
  std::vector<std::uint64_t> counts_;
  std::vector<std::uint64_t> receive_counts_;
  std::string name_;
  CallArguments arguments_;
};

/// The call that the arguments describe, which are not those of an exchange. Throws: ConfigError if they are wrong on
/// only this rank.
Call checked_call(const Communicator& communicator, const CallArguments& arguments, std::uint64_t step);

/// The call that the other end of a message makes, for each end: a send for a recv, an exchange for an exchange.
Call other_end_of(Call receive);

/// 64-bit digest of counts, for Call::counts_digest.
std::uint64_t digest_of_counts(std::span<const std::uint64_t> counts);

/// Whether two ranks make the same collective call.
bool calls_agree(const Call& a, const Call& b);

/// The call in words: `all_reduce(sum of 1000 float32, "grad.wte", tp_backward)`.
std::string describe(const Call& call);

/// The suffix of an error: `(step 117, grad.wte, 154389504 bytes)`.
std::string call_context(const Call& call);

/// "rank 2" or "ranks 2, 5".
std::string rank_list(std::span<const int> ranks);

/// The calls of all ranks, grouped where ranks agree: `rank 1: barrier(); ranks 0, 2: broadcast(...)`.
std::string describe_disagreement(std::span<const Call> calls, std::span<const int> world_ranks);

/// The reason why a group failed. The first reason that is found stands; all ranks report it.
struct Failure {
  int reporter = -1;        ///< world rank that found the failure
  std::string reporter_at;  ///< operation of the reporter; empty if it gave up by itself
  std::string cause;        ///< names the rank that failed
};

/// The message of a CommError: `all_reduce: rank 3 of 8: <cause>`, with this rank's own call if another rank found the
/// failure.
std::string failure_text(const Failure& failure, const Call& call, int world_rank, int world_size);

/// Checks for arguments that are wrong only on this rank. Throws: ConfigError that names the operation, rank and
/// sizes.
class ArgumentCheck {
 public:
  ArgumentCheck(const Communicator& communicator, const Call& call) : communicator_(communicator), call_(call) {}

  /// Checks that the call's reduction has a meaning for elements of its type.
  void reduction() const;
  /// Checks that there is one count per rank.
  void counts(std::span<const std::uint64_t> counts) const;
  /// Checks that `tensor` holds whole elements, exactly `count` of the call's type. `what` names it: "input".
  void shape(ConstTensor tensor, std::uint64_t count, std::string_view what) const;
  /// Checks that `tensor` is in host memory.
  void on_host(ConstTensor tensor) const;
  /// Checks that the ranges start at the same place or do not overlap.
  void same_or_apart(ConstTensor input, ConstTensor output) const;
  /// Checks that `part` lies offset_elems into `whole`, or that they do not overlap.
  void own_part_or_apart(ConstTensor part, ConstTensor whole, std::uint64_t offset_elems) const;
  void peer(int rank, std::string_view what) const;
  [[noreturn]] void fail(const std::string& detail) const;

 private:
  const Communicator& communicator_;
  const Call& call_;
};

/// The calls of an exchange, one for each message.
struct ExchangeCalls {
  std::vector<Call> sends;
  std::vector<Call> receives;
};

/// Checks the arguments of an exchange. Throws: ConfigError if they are wrong only on this rank.
ExchangeCalls checked_exchange(const Communicator& communicator, std::span<const Send> sends,
                               std::span<const Receive> receives, std::uint64_t step);

}  // namespace droptest::comm
