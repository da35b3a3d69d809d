// SPDX-License-Identifier: Apache-2.0
// Programs of NCCL with threads as ranks, under a network. Each program runs in its own process, because the library
// under test reads its network once per process.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "sim/loss/link.h"
#include "sim/loss/loss_process.h"

namespace droptest::nccl_shim {

inline constexpr std::uint64_t kSeed = 7;
inline constexpr std::uint64_t kPayload = 64;  ///< payload of a packet in bytes: 16 floats

/// The text {"network": ...} of a network with that seed, packets of kPayload bytes, and the members `more`.
std::string network(const std::string& members, const std::string& more = "");
/// Bernoulli losses of 30 % in the classes of sums, all-gathers, all-to-alls and messages.
std::string lossy();

/// Runs `program` in a child process with the network in DROPTEST_NETWORK. The child's failed expectations fail the
/// test.
void in_process(const std::string& network, const std::function<void()>& program);

/// One rank of a program.
struct Rank {
  int rank = 0;
  int ranks = 0;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
};
/// Runs `program` on threads with one communicator, which is destroyed or aborted at the end.
enum class End { kDestroyed, kAborted };
void on_ranks(int ranks, const std::function<void(const Rank&)>& program, End end = End::kDestroyed);

/// Expects success.
void ok(ncclResult_t result);
void ok(cudaError_t result);
/// Waits for the rank's stream.
void wait(const Rank& rank);

/// The value of element i on rank r. All values differ, and their sums are exact.
float value(int rank, std::uint64_t i);
std::vector<float> values(int rank, std::uint64_t count);
/// `count` values of each rank, one rank after the other.
std::vector<float> values_of_all(int ranks, std::uint64_t count);

/// Which elements of a message of `count` floats are lost on a link, by the host's loss process.
std::vector<bool> lost_elements(const sim::LossProcess& process, const sim::Link& link, std::uint64_t first_packet,
                                std::uint64_t count);
std::uint64_t packets_of(std::uint64_t count);

/// values(source) with zeros at lost elements.
std::vector<float> without_lost(const std::vector<float>& sent, const std::vector<bool>& lost);
/// The sum of the members' contributions values(member) after the losses of their links in class dp_gradient.
std::vector<float> sum_of(const sim::LossProcess& process, const std::vector<int>& members, std::uint16_t group,
                          std::uint64_t packets_before, std::uint64_t count);

}  // namespace droptest::nccl_shim
