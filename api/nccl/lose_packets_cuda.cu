// SPDX-License-Identifier: Apache-2.0
// A block draws the fates of 64 packets at multiples of 64 on their link, as sim/loss/gilbert_elliott.cc does on the
// host, and then copies these packets.
#include <Random123/philox.h>

#include <algorithm>

#include "api/nccl/lose_packets.h"
#include "comm/device/kernel_launch.cuh"
#include "sim/random/philox.h"

namespace droptest::nccl_shim {
namespace {

constexpr unsigned kThreads = 256;
constexpr std::uint64_t kWordPackets = 64;

struct Below {
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

// Bit i: whether the draw of packet 64 * word + i is below the threshold.
__device__ Below draws_below(const DeviceFlow& flow, sim::Purpose purpose, std::uint64_t word, std::uint64_t a,
                             std::uint64_t b) {
  using Philox = r123::Philox4x32_R<10>;
  const Philox::key_type key = {{static_cast<std::uint32_t>(flow.seed), static_cast<std::uint32_t>(flow.seed >> 32)}};
  Below below;
  for (unsigned i = 0; i < kWordPackets / 4; ++i) {
    const std::uint64_t block = (word * (kWordPackets / 4) + i) & ((std::uint64_t{1} << 62) - 1);
    const Philox::ctr_type counter = {{static_cast<std::uint32_t>(block), static_cast<std::uint32_t>(block >> 32),
                                       flow.ranks_word, flow.place_word | static_cast<std::uint32_t>(purpose) << 16}};
    const Philox::ctr_type draws = Philox()(counter, key);
    for (unsigned k = 0; k < 4; ++k) {
      below.a |= static_cast<std::uint64_t>(draws[k] < a) << (4 * i + k);
      below.b |= static_cast<std::uint64_t>(draws[k] < b) << (4 * i + k);
    }
  }
  return below;
}

// The latest decisive draw before the word sets the state, which each swap since then turns round.
__device__ bool bad_before(const DeviceFlow& flow, std::uint64_t word) {
  const sim::ChainThresholds& t = flow.thresholds;
  for (;;) {
    --word;
    const Below below = draws_below(flow, sim::Purpose::kLossTransition, word, t.to_bad, t.to_good);
    const std::uint64_t decisive = below.a | ~below.b;
    if (decisive == 0) continue;  // 64 swaps change nothing
    int latest = 63;
    while ((decisive >> latest & 1) == 0) --latest;
    const bool bad = (below.a >> latest & 1) != 0;
    return t.middle_swaps && (63 - latest) % 2 == 1 ? !bad : bad;
  }
}

__device__ std::uint64_t fates_of(const DeviceFlow& flow, std::uint64_t word) {
  const sim::ChainThresholds& t = flow.thresholds;
  const Below below = draws_below(flow, sim::Purpose::kLossTransition, word, t.to_bad, t.to_good);
  const std::uint64_t middle = below.b & ~below.a;
  std::uint64_t state = below.a;
  if (t.to_bad != t.to_good) {
    const bool bad = bad_before(flow, word);
    state = t.middle_swaps ? sim::run_swapping_states(below.a, middle, bad) : sim::run_states(below.a, middle, bad);
  }
  if (t.needs_no_emission()) return state;
  const Below emission = draws_below(flow, sim::Purpose::kLossEmission, word, t.lost_in_good, t.lost_in_bad);
  return (state & emission.b) | (~state & emission.a);
}

__device__ void add(std::uint64_t* count, std::uint64_t value) {
  static_assert(sizeof(unsigned long long) == sizeof(std::uint64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(count), static_cast<unsigned long long>(value));
}

// Copies bytes begin to end of a part: packet i of the word has bytes from i * payload_bytes on.
template <class Unit>
__device__ void copy_packets(const std::byte* from, std::byte* to, std::uint64_t bytes, std::uint64_t payload_bytes,
                             std::uint64_t lost, std::uint64_t lost_word) {
  const auto* const in = reinterpret_cast<const Unit*>(from);
  auto* const out = reinterpret_cast<Unit*>(to);
  const std::uint64_t units_of_packet = payload_bytes / sizeof(Unit);
  for (std::uint64_t i = threadIdx.x; i < bytes / sizeof(Unit); i += blockDim.x) {
    const bool is_lost = (lost >> (i / units_of_packet) & 1) != 0;
    const auto lost_unit = static_cast<Unit>(lost_word >> (i * sizeof(Unit) % sizeof(lost_word) * 8));
    if (is_lost || in != out) out[i] = is_lost ? lost_unit : in[i];
  }
}

__global__ void lose_kernel(FlowTable table, DeviceMessage message, std::uint64_t words) {
  __shared__ std::uint64_t shared_fates;
  for (std::uint64_t item = blockIdx.x; item < table.parts * words; item += gridDim.x) {
    const std::uint64_t part = item / words;
    DeviceFlow* const flow = table.flows[part];
    const std::byte* from = message.from + part * message.part_bytes;
    std::byte* to = message.to + part * message.part_bytes;
    if (flow == nullptr) continue;
    const std::uint64_t payload = flow->payload_bytes;
    const std::uint64_t packets = (message.part_bytes + payload - 1) / payload;
    const std::uint64_t first = flow->origin + flow->packets;
    const std::uint64_t offset = first % kWordPackets;  // offset of the message in its first word
    const std::uint64_t word = item % words;
    const std::uint64_t begin = word == 0 ? 0 : word * kWordPackets - offset;  // first packet in this word
    if (begin >= packets) continue;
    const std::uint64_t left = word * kWordPackets + kWordPackets - offset - begin;
    const std::uint64_t here = packets - begin < left ? packets - begin : left;
    if (threadIdx.x == 0) {
      std::uint64_t fates = fates_of(*flow, first / kWordPackets + word) >> (word == 0 ? offset : 0);
      if (here < kWordPackets) fates &= (std::uint64_t{1} << here) - 1;
      shared_fates = fates;
      std::uint64_t lost = 0;
      for (std::uint64_t rest = fates; rest != 0; rest &= rest - 1) ++lost;
      if (lost > 0) add(&flow->lost, lost);
    }
    __syncthreads();
    const std::uint64_t fates = shared_fates;
    from += begin * payload;
    to += begin * payload;
    const std::uint64_t end = (begin + here) * payload;
    const std::uint64_t bytes = (end < message.part_bytes ? end : message.part_bytes) - begin * payload;
    const std::uint64_t places = reinterpret_cast<std::uintptr_t>(from) | reinterpret_cast<std::uintptr_t>(to) | bytes;
    if (fates != 0 || from != to) {
      if (places % sizeof(std::uint64_t) == 0) {
        copy_packets<std::uint64_t>(from, to, bytes, payload, fates, message.lost_word);
      } else {
        copy_packets<unsigned char>(from, to, bytes, payload, fates, message.lost_word);
      }
    }
    __syncthreads();
  }
  // The last block moves the flows on: by then all blocks have read their places.
  __syncthreads();
  if (threadIdx.x != 0) return;
  __threadfence();
  if (atomicAdd(table.tickets, 1U) != gridDim.x - 1) return;
  *table.tickets = 0;
  for (std::uint64_t part = 0; part < table.parts; ++part) {
    DeviceFlow* const flow = table.flows[part];
    if (flow == nullptr) continue;
    flow->messages += 1;
    flow->packets += (message.part_bytes + flow->payload_bytes - 1) / flow->payload_bytes;
    flow->bytes += message.part_bytes;
  }
}

}  // namespace

void set_link(const sim::Link& link, DeviceFlow& flow) {
  const sim::PhiloxCounter counter = sim::link_counter(link, sim::Purpose{}, 0);
  flow.ranks_word = counter[2];
  flow.place_word = counter[3];
}

void lose_packets(const FlowTable& table, const DeviceMessage& message, std::uint64_t payload_bytes,
                  cudaStream_t stream) {
  if (message.part_bytes == 0) return;
  const std::uint64_t packets = (message.part_bytes + payload_bytes - 1) / payload_bytes;
  const std::uint64_t words = packets / kWordPackets + 2;  // the message may begin and end within a word
  constexpr std::uint64_t kMostBlocks = 1U << 16U;
  const comm::LaunchShape shape{std::min(table.parts * words, kMostBlocks), kThreads, 0};
  comm::launch("loss of packets", lose_kernel, shape, stream, table, message, words);
}

}  // namespace droptest::nccl_shim
