// SPDX-License-Identifier: Apache-2.0
// A program of all collectives that lose packets. Tests compare its results bit by bit.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "tests/comm/lossy_recovery.h"

namespace droptest::comm {

inline float program_value(std::uint64_t step, int rank, std::size_t i) {
  return static_cast<float>(std::sin(static_cast<double>((i + 1) * (step + 1)) + rank));
}

template <class T>
void append(const std::vector<T>& values, std::vector<std::byte>& bytes) {
  const auto as_bytes = std::as_bytes(std::span(values));
  bytes.insert(bytes.end(), as_bytes.begin(), as_bytes.end());
}

inline float as_float(float x) { return x; }
inline float as_float(double x) { return static_cast<float>(x); }
inline float as_float(Bf16 x) { return to_float(x); }
template <class T>
T element(float x) {
  return static_cast<T>(x);
}
template <>
inline Bf16 element<Bf16>(float x) {
  return to_bf16(x);
}

template <class T>
std::vector<T> program_values(std::uint64_t step, int rank, std::size_t count) {
  std::vector<T> result(count);
  for (std::size_t i = 0; i < count; ++i) result[i] = element<T>(program_value(step, rank, i));
  return result;
}

/// One step of the program on one rank of at least two; appends the bytes of all results. Ranks: all.
template <class T>
void run_program(Communicator& group, std::uint64_t step, std::vector<std::byte>& bytes) {
  const int ranks = group.world_size();
  const int me = group.rank();
  std::vector<T> data = program_values<T>(step, me, 517);
  group.all_reduce(Tensor(std::span(data)), ReduceOp::kSum, {kRecoveryClass, "all_reduce", 0});
  append(data, bytes);
  std::vector<std::uint64_t> counts;
  std::uint64_t total = 0;
  for (int r = 0; r < ranks; ++r) total += counts.emplace_back(static_cast<std::uint64_t>(60 * r + 33));
  const std::vector<T> input = program_values<T>(step, me, total);
  std::vector<T> part(counts[static_cast<std::size_t>(me)], element<T>(0.5F));
  group.reduce_scatter(ConstTensor(std::span(input)), Tensor(std::span(part)), counts, ReduceOp::kSum,
                       {kRecoveryClass, "reduce_scatter", 1});
  append(part, bytes);
  std::vector<T> gathered(total, element<T>(0.25F));
  group.all_gather(ConstTensor(std::span<const T>(part)), Tensor(std::span(gathered)), counts,
                   {kRecoveryClass, "all_gather", 1});
  append(gathered, bytes);
  const std::vector<std::uint64_t> even(static_cast<std::size_t>(ranks), 70);
  const std::vector<T> parts = program_values<T>(step + 100, me, 70 * static_cast<std::size_t>(ranks));
  std::vector<T> exchanged(parts.size(), element<T>(0.125F));
  group.all_to_all(ConstTensor(std::span(parts)), even, Tensor(std::span(exchanged)), even,
                   {kRecoveryClass, "all_to_all", 2});
  append(exchanged, bytes);
  std::vector<T> copied = program_values<T>(step + 200, me, 130);
  group.broadcast(Tensor(std::span(copied)), 1, {kRecoveryClass, "broadcast", 2});
  append(copied, bytes);
  if (me == 0) group.send(ConstTensor(std::span<const T>(copied)), 1, {kRecoveryClass, "message", 3});
  if (me == 1) group.recv(Tensor(std::span(copied)), 0, {kRecoveryClass, "message", 3});
  append(copied, bytes);
  const std::vector<T> to_next = program_values<T>(step + 300, me, 210);
  std::vector<T> from_previous(210, element<T>(0.75F));
  const Send send{ConstTensor(std::span(to_next)), (me + 1) % ranks, {kRecoveryClass, "exchange", 4}};
  const Receive receive{Tensor(std::span(from_previous)), (me + ranks - 1) % ranks, {kRecoveryClass, "exchange", 4}};
  group.exchange({&send, 1}, {&receive, 1});
  append(from_previous, bytes);
  std::vector<T> mean = program_values<T>(step + 400, me, 517);
  group.all_reduce(Tensor(std::span(mean)), ReduceOp::kMean, {kRecoveryClass, "mean", 5});
  append(mean, bytes);
  group.reduce_scatter(ConstTensor(std::span(input)), Tensor(std::span(part)), counts, ReduceOp::kMean,
                       {kRecoveryClass, "parts of a mean", 5});
  append(part, bytes);
}

}  // namespace droptest::comm
