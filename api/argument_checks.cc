// SPDX-License-Identifier: Apache-2.0
#include "api/argument_checks.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <stdexcept>
#include <string>

#include "api/argument_error.h"
#include "api/fate_questions.h"
#include "sim/error.h"

namespace droptest::api {
namespace {

class ForkError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

thread_local std::string last_message;  // NOLINT: the header promises a message for each thread

droptest_status fail(droptest_status status, const char* message) noexcept {
  try {
    last_message = message;
  } catch (...) {
    last_message.clear();
  }
  return status;
}

}  // namespace

const char* last_error() noexcept { return last_message.c_str(); }

droptest_status status_of_exception() noexcept {
  try {
    throw;
  } catch (const ForkError& error) {
    return fail(DROPTEST_FORKED, error.what());
  } catch (const MismatchError& error) {
    return fail(DROPTEST_MISMATCH, error.what());
  } catch (const ArgumentError& error) {
    return fail(DROPTEST_ARGUMENT_ERROR, error.what());
  } catch (const ConfigError& error) {
    return fail(DROPTEST_CONFIG_ERROR, error.what());
  } catch (const DeviceError& error) {
    return fail(DROPTEST_DEVICE_ERROR, error.what());
  } catch (const std::exception& error) {
    return fail(DROPTEST_INTERNAL_ERROR, error.what());
  } catch (...) {
    return fail(DROPTEST_INTERNAL_ERROR, "unknown exception");
  }
}

void require(bool holds, const char* message) {
  if (!holds) throw ArgumentError(message);
}

// The network must be of this process. A network is never read in a child: its mutex may be locked there for ever.
const droptest_network& own(const droptest_network* network) {
  require(network != nullptr, "network: got NULL, want a network");
  if (network->process != ::getpid()) {
    throw ForkError("network: got one that process " + std::to_string(network->process) + " made before fork(), in " +
                    "process " + std::to_string(::getpid()) + ", want one made in this process");
  }
  return *network;
}
droptest_network& own(droptest_network* network) {
  return const_cast<droptest_network&>(own(static_cast<const droptest_network*>(network)));
}
droptest_network& network_of(const droptest_flow* flow) {
  require(flow != nullptr, "flow: got NULL, want a flow");
  return own(flow->network);
}
droptest_network& network_of(const droptest_group* group) {
  require(group != nullptr, "group: got NULL, want a group");
  return own(group->network);
}

sim::TrafficClass checked_class(droptest_class traffic_class) {
  const auto number = static_cast<std::size_t>(traffic_class);
  require(number > 0 && number < sim::kAllTrafficClasses.size(),
          "traffic_class: want a class that can lose packets, DROPTEST_TP_FORWARD to DROPTEST_TP_RECOMPUTATION");
  return static_cast<sim::TrafficClass>(number);
}

comm::ElementType checked_type(droptest_type type) {
  require(type >= DROPTEST_FLOAT32 && type <= DROPTEST_UINT8, "type: want one of droptest_type");
  return static_cast<comm::ElementType>(type);
}

std::uint16_t checked_rank(std::int32_t rank, const droptest_network& network, const char* name) {
  if (rank < 0 || rank >= network.world_size) {
    throw ArgumentError(std::string(name) + ": got rank " + std::to_string(rank) + ", want 0 to " +
                        std::to_string(network.world_size - 1));
  }
  return static_cast<std::uint16_t>(rank);
}

comm::GroupNumber checked_group(std::uint32_t number, const droptest_network& network, sim::TrafficClass of) {
  const bool by_message = network.of(of).burst_scope == comm::BurstScope::kMessage;
  const std::uint32_t most = by_message ? 255 : 65535;
  if (number > most) {
    throw ArgumentError("group: got the number " + std::to_string(number) + ", want 0 to " + std::to_string(most));
  }
  return static_cast<comm::GroupNumber>(number);
}

namespace {

std::uint64_t checked_elements(std::uint64_t elements, comm::ElementType type) {
  const std::uint64_t most = ~std::uint64_t{0} / comm::element_bytes(type);
  if (elements <= most) return elements;
  throw ArgumentError("elements: got " + std::to_string(elements) + ", want at most " + std::to_string(most) +
                      ", of fewer than 2^64 bytes");
}

}  // namespace

ProgramCall checked_call(const droptest_call* call) {
  require(call != nullptr && call->operation != nullptr, "call: got NULL, want a call with an operation");
  const comm::ElementType type = checked_type(call->type);
  return {call->operation, call->group == nullptr ? "" : call->group, call->group_ranks, type,
          checked_elements(call->elements, type)};
}

sim::Packetizer packets_of(const droptest_flow& flow, std::uint64_t elements, droptest_type type) {
  const comm::ElementType of = checked_type(type);
  return flow.network->packets(flow.link.traffic_class, of, checked_elements(elements, of));
}

comm::Tensor tensor_of(void* data, std::uint64_t elements, droptest_type type) {
  const comm::ElementType of = checked_type(type);
  require(data != nullptr || elements == 0, "data: got NULL, want the elements of the message");
  return {of, {static_cast<std::byte*>(data), checked_elements(elements, of) * comm::element_bytes(of)}};
}

// The number of words of a mask for that many packets.
std::size_t checked_words(const std::uint64_t* mask, std::size_t words, std::uint64_t packets) {
  const std::uint64_t wanted = (packets + 63) / 64;
  if (words < wanted || (mask == nullptr && wanted > 0)) {
    throw ArgumentError("mask: got " + std::to_string(mask == nullptr ? 0 : words) + " words of 64 bits, want " +
                        std::to_string(wanted) + " for " + std::to_string(packets) + " packets");
  }
  return static_cast<std::size_t>(wanted);
}

sim::PacketMask mask_of(const std::uint64_t* mask, const sim::Packetizer& packets) {
  sim::PacketMask lost(packets.packets());
  checked_words(mask, lost.words().size(), packets.packets());
  std::copy_n(mask, lost.words().size(), lost.words().begin());
  return lost;
}

}  // namespace droptest::api
