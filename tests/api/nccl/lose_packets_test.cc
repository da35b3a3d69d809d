// SPDX-License-Identifier: Apache-2.0
// The kernel that loses packets, compared with the host's loss processes.
#include "api/nccl/lose_packets.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "comm/device/device_buffer.h"
#include "sim/loss/bernoulli.h"
#include "sim/loss/gilbert_elliott.h"
#include "sim/loss/packet_mask.h"
#include "tests/comm/through_device.h"

namespace droptest::nccl_shim::lose_packets_test {
namespace {

using comm::DeviceBuffer;
using comm::Stream;

constexpr std::uint64_t kSeed = 11;
constexpr std::uint64_t kPayload = 24;

sim::Link link_of(std::uint16_t source) { return {sim::TrafficClass::kTpForward, sim::Half::kGather, source, 9}; }

// Flows of the sources 0, 1, ... in device memory, and a table of them; the last part of the table always arrives.
class Flows {
 public:
  Flows(const sim::LossProcess& process, std::uint16_t sources, Stream& stream)
      : stream_(stream), flows_(sources, "flows"), table_(sources + 1U, "table"), tickets_(sources + 1U, "tickets") {
    std::vector<DeviceFlow> flows(sources);
    std::vector<DeviceFlow*> table(sources + 1U, nullptr);
    for (std::uint16_t source = 0; source < sources; ++source) {
      flows[source].seed = kSeed;
      flows[source].thresholds = process.thresholds().value();
      flows[source].payload_bytes = kPayload;
      flows[source].origin = std::uint64_t{source} << 48U;
      set_link(link_of(source), flows[source]);
      table[source] = flows_.elems().data() + source;
    }
    copy_to_device(std::span<const DeviceFlow>(flows), flows_.elems(), stream);
    copy_to_device(std::span<DeviceFlow* const>(table), table_.elems(), stream);
    zero_on_device(tickets_.elems(), stream);
    stream.synchronize();
  }
  FlowTable table() { return {table_.elems().data(), tickets_.elems().data(), table_.elems().size()}; }
  std::vector<DeviceFlow> counts() {
    std::vector<DeviceFlow> counts(flows_.elems().size());
    copy_to_host(DeviceSpan<const DeviceFlow>(flows_.elems()), std::span(counts), stream_);
    stream_.synchronize();
    return counts;
  }

 private:
  template <class T>
  using DeviceSpan = comm::DeviceSpan<T>;
  Stream& stream_;
  DeviceBuffer<DeviceFlow> flows_;
  DeviceBuffer<DeviceFlow*> table_;
  DeviceBuffer<unsigned> tickets_;
};

void expect_the_hosts_losses(const sim::LossProcess& process, std::uint64_t part_bytes, std::size_t misalignment) {
  constexpr std::uint16_t kSources = 3;
  Stream stream;
  Flows flows(process, kSources, stream);
  const std::uint64_t bytes = (kSources + 1U) * part_bytes;
  const std::uint64_t packets = (part_bytes + kPayload - 1) / kPayload;
  DeviceBuffer<std::byte> device(bytes + misalignment, "message");
  std::byte* const data = device.elems().data() + misalignment;
  std::uint64_t lost = 0;
  for (std::uint64_t call = 0; call < 3; ++call) {
    const std::vector<std::byte> sent(bytes, std::byte{7});
    std::vector<std::byte> received(bytes);
    copy_to_device(std::span(sent), data, stream);
    lose_packets(flows.table(), {data, data, part_bytes}, kPayload, stream.handle());
    copy_to_host(data, std::span(received), stream);
    stream.synchronize();
    std::vector<std::byte> expected = sent;
    for (std::uint16_t source = 0; source < kSources; ++source) {
      sim::PacketMask mask(packets);
      process.draw(kSeed, link_of(source), (std::uint64_t{source} << 48U) + call * packets, mask);
      lost += mask.lost_count();
      for (std::uint64_t i = 0; i < part_bytes; ++i) {
        if (mask.lost(i / kPayload)) expected[source * part_bytes + i] = std::byte{0};
      }
    }
    EXPECT_EQ(received, expected) << "call " << call;
  }
  std::uint64_t counted = 0;
  for (const DeviceFlow& flow : flows.counts()) {
    EXPECT_EQ(flow.messages, 3U);
    EXPECT_EQ(flow.packets, 3 * packets);
    EXPECT_EQ(flow.bytes, 3 * part_bytes);
    counted += flow.lost;
  }
  EXPECT_EQ(counted, lost);
  EXPECT_GT(lost, 0U);
}

TEST(LosePackets, TheDeviceDrawsTheFatesOfIndependentLosses) {
  DROPTEST_NEEDS_DEVICE();
  const sim::Bernoulli process(0.3);
  for (const std::uint64_t bytes : {kPayload * 64, kPayload * 200 + 8, kPayload * 5 + 3}) {
    expect_the_hosts_losses(process, bytes, 0);
  }
  expect_the_hosts_losses(process, kPayload * 100, 2);
}

TEST(LosePackets, TheDeviceDrawsTheFatesOfChains) {
  DROPTEST_NEEDS_DEVICE();
  expect_the_hosts_losses(sim::GilbertElliott({0.01, 0.02, 0, 1}), kPayload * 300, 0);
  expect_the_hosts_losses(sim::GilbertElliott({0.001, 0.002, 0.1, 0.8}), kPayload * 300, 0);
  expect_the_hosts_losses(sim::GilbertElliott({0.95, 0.9, 0, 1}), kPayload * 300, 0);
}

TEST(LosePackets, ACopyLeavesItsInput) {
  DROPTEST_NEEDS_DEVICE();
  Stream stream;
  const sim::Bernoulli always(1);
  Flows flows(always, 1, stream);
  DeviceBuffer<std::byte> from(2 * kPayload, "input");
  DeviceBuffer<std::byte> to(2 * kPayload, "copy");
  const std::vector<std::byte> sent(2 * kPayload, std::byte{5});
  copy_to_device(std::span(sent), from.elems().data(), stream);
  lose_packets(flows.table().part(0), {from.elems().data(), to.elems().data(), 2 * kPayload}, kPayload,
               stream.handle());
  std::vector<std::byte> input(2 * kPayload);
  std::vector<std::byte> copy(2 * kPayload);
  copy_to_host(from.elems().data(), std::span(input), stream);
  copy_to_host(to.elems().data(), std::span(copy), stream);
  stream.synchronize();
  EXPECT_EQ(input, sent);
  EXPECT_EQ(copy, std::vector<std::byte>(2 * kPayload));
}

}  // namespace
}  // namespace droptest::nccl_shim::lose_packets_test
