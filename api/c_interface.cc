// SPDX-License-Identifier: Apache-2.0
// The functions of droptest.h.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "api/argument_checks.h"
#include "api/argument_error.h"
#include "api/droptest.h"
#include "api/fate_questions.h"
#include "api/network_identity.h"
#include "api/rank_network.h"
#include "api/rank_statistics.h"
#include "comm/json/read_file.h"
#include "comm/lossy/fill/packet_runs.h"
#include "sim/error.h"

namespace {

using droptest::ConfigError;
using droptest::api::ArgumentError;
using droptest::api::checked_call;
using droptest::api::checked_class;
using droptest::api::checked_group;
using droptest::api::checked_rank;
using droptest::api::checked_words;
using droptest::api::DrawnMessage;
using droptest::api::Exemption;
using droptest::api::ForeignMemory;
using droptest::api::guarded;
using droptest::api::mask_of;
using droptest::api::network_of;
using droptest::api::own;
using droptest::api::packets_of;
using droptest::api::ProgramCall;
using droptest::api::require;
using droptest::api::tensor_of;
using droptest::comm::Tally;
using droptest::comm::Tensor;
using droptest::sim::Half;
using droptest::sim::Link;
using droptest::sim::Packetizer;
using droptest::sim::PacketMask;
using droptest::sim::TrafficClass;

void put_summary(const DrawnMessage& drawn, droptest_message* message) {
  if (message != nullptr) *message = drawn.summary;
}

// Called before packets are used up: a call that fails uses up none.
void check_fill(const droptest_network& network, TrafficClass traffic_class, Half half, droptest_reduction reduction,
                const droptest_memory* memory) {
  require(reduction == DROPTEST_SUM || reduction == DROPTEST_MAX, "reduction: want DROPTEST_SUM or DROPTEST_MAX");
  if (droptest::comm::can_lose(network.of(traffic_class, half))) ForeignMemory::check(memory);
}

void fill(droptest_network& network, const PacketMask* lost, droptest_reduction reduction, Tensor data,
          const Packetizer& packets, const droptest_memory* memory) {
  if (lost == nullptr) return;
  network.memory.change(memory, data, [&](Tensor tensor) {
    if (reduction == DROPTEST_MAX) {
      droptest::comm::lowest_lost(tensor, lost, packets);
    } else {
      droptest::comm::zero_lost(tensor, lost, packets);
    }
  });
}

void put_text(const std::string& from, char* text, std::size_t size, std::size_t* needed) {
  if (needed != nullptr) *needed = from.size() + 1;
  if (text != nullptr && size > from.size()) std::memcpy(text, from.c_str(), from.size() + 1);
}

}  // namespace

extern "C" {

const char* droptest_last_error(void) { return droptest::api::last_error(); }

const char* droptest_version(void) { return DROPTEST_VERSION; }

const char* droptest_class_name(droptest_class traffic_class) {
  const auto number = static_cast<std::size_t>(traffic_class);
  if (number >= droptest::sim::kAllTrafficClasses.size()) return nullptr;
  return droptest::sim::traffic_class_name(static_cast<TrafficClass>(number)).data();  // the text of a literal
}

droptest_status droptest_class_from_name(const char* name, droptest_class* traffic_class) {
  return guarded([&] {
    require(name != nullptr && traffic_class != nullptr, "name, traffic_class: got NULL, want both");
    *traffic_class = static_cast<droptest_class>(droptest::sim::traffic_class_from_name(name));
  });
}

droptest_status droptest_network_create(const char* json, const char* where, int32_t rank, int32_t world_size,
                                        droptest_network** network) {
  return guarded([&] {
    require(json != nullptr && where != nullptr && network != nullptr,
            "json, where, network: got NULL, want a text, its name and a place for the result");
    if (world_size < 1 || world_size > 65534 || rank < 0 || rank >= world_size) {
      throw ArgumentError("rank, world_size: got rank " + std::to_string(rank) + " of " + std::to_string(world_size) +
                          ", want 0 <= rank < world_size <= 65534");
    }
    auto made = std::make_unique<droptest_network>(droptest::comm::program_network_from_json(json, where, world_size),
                                                   rank, world_size);
    made->statistics = std::make_unique<droptest::api::StatisticsPlace>(made->program.statistics, rank, where);
    *network = made.release();
  });
}

droptest_status droptest_network_read(const char* file, int32_t rank, int32_t world_size, droptest_network** network) {
  std::string text;
  const droptest_status status = guarded([&] {
    if (file == nullptr) file = std::getenv("DROPTEST_NETWORK");
    if (file == nullptr)
      throw ConfigError("DROPTEST_NETWORK: is not set, want the name of a file with a network in JSON");
    text = droptest::comm::read_file(file);
  });
  return status == DROPTEST_OK ? droptest_network_create(text.c_str(), file, rank, world_size, network) : status;
}

void droptest_network_destroy(droptest_network* network) {
  if (network != nullptr && network->process == ::getpid()) delete network;
}

droptest_status droptest_network_digest(const droptest_network* network, uint64_t* digest) {
  return guarded([&] {
    const droptest_network& of = own(network);
    require(digest != nullptr, "digest: got NULL, want a place for the result");
    *digest = droptest::api::network_digest(of);
  });
}

droptest_status droptest_network_identity(const droptest_network* network, char* text, size_t size, size_t* needed) {
  return guarded([&] { put_text(own(network).program.identity, text, size, needed); });
}

droptest_status droptest_network_check_peer(const droptest_network* network, int32_t peer, const char* identity) {
  return guarded([&] {
    const droptest_network& of = own(network);
    require(identity != nullptr, "identity: got NULL, want that of another rank");
    droptest::api::check_peer(of, checked_rank(peer, of, "peer"), identity);
  });
}

droptest_status droptest_network_can_lose(const droptest_network* network, droptest_class traffic_class,
                                          int32_t* can_lose) {
  return guarded([&] {
    const droptest_network& of = own(network);
    require(can_lose != nullptr, "can_lose: got NULL, want a place for the result");
    const droptest::comm::ClassNetwork& of_class = of.of(checked_class(traffic_class));
    *can_lose = droptest::comm::can_lose(of_class.reduce) || droptest::comm::can_lose(of_class.gather) ? 1 : 0;
  });
}

droptest_status droptest_network_set_step(droptest_network* network, uint64_t step) {
  return guarded([&] {
    droptest_network& of = own(network);
    const std::scoped_lock lock(of.mutex);
    of.set_step(step);
  });
}

droptest_status droptest_network_save_state(const droptest_network* network, void* data, size_t size, size_t* needed) {
  return guarded([&] {
    auto& of = const_cast<droptest_network&>(own(network));
    require(needed != nullptr, "needed: got NULL, want a place for the size");
    require(data != nullptr || size == 0, "data: got NULL with a size, want memory of that size");
    const std::scoped_lock lock(of.mutex);
    const std::vector<std::byte> bytes = of.save_state();
    *needed = bytes.size();
    if (bytes.size() <= size) std::memcpy(data, bytes.data(), bytes.size());
  });
}

droptest_status droptest_network_load_state(droptest_network* network, const void* data, size_t size) {
  return guarded([&] {
    droptest_network& of = own(network);
    require(data != nullptr, "data: got NULL, want a saved state");
    const std::scoped_lock lock(of.mutex);
    of.load_state({static_cast<const std::byte*>(data), size});
  });
}

droptest_status droptest_classify(droptest_network* network, const droptest_call* call, droptest_class* traffic_class) {
  return guarded([&] {
    droptest_network& of = own(network);
    require(traffic_class != nullptr, "traffic_class: got NULL, want a place for the result");
    const ProgramCall checked = checked_call(call);
    const droptest::api::CallClass found = of.rules.of(checked, of.program.network);
    const bool counts = checked.operation != "recv";  // whose sender does
    if (found.exemption && counts) {
      const std::scoped_lock lock(of.mutex);
      of.count_exempt(*found.exemption, checked);
    }
    *traffic_class = static_cast<droptest_class>(found.traffic_class);
  });
}

droptest_status droptest_count_exempt(droptest_network* network, const droptest_call* call) {
  return guarded([&] {
    droptest_network& of = own(network);
    const ProgramCall checked = checked_call(call);
    const std::scoped_lock lock(of.mutex);
    of.count_exempt(Exemption::kNoLossLayer, checked);
  });
}

droptest_status droptest_flow_open(droptest_network* network, const droptest_link* link, int32_t counted,
                                   droptest_flow** flow) {
  return guarded([&] {
    droptest_network& of = own(network);
    require(link != nullptr && flow != nullptr, "link, flow: got NULL, want a link and a place for the result");
    require(link->half == DROPTEST_REDUCE || link->half == DROPTEST_GATHER,
            "half: want DROPTEST_REDUCE or DROPTEST_GATHER");
    const Link on{checked_class(link->traffic_class), static_cast<Half>(link->half),
                  checked_rank(link->source, of, "source"),
                  link->destination == DROPTEST_EVERY_DESTINATION ? Link::kEveryDestination
                                                                  : checked_rank(link->destination, of, "destination")};
    const std::scoped_lock lock(of.mutex);
    *flow = &of.flow(on, checked_group(link->group, of, on.traffic_class),
                     counted != 0 ? Tally::kCounted : Tally::kOtherEnd);
  });
}

droptest_status droptest_flow_packets(const droptest_flow* flow, uint64_t elements, droptest_type type,
                                      uint64_t* packets) {
  return guarded([&] {
    network_of(flow);
    require(packets != nullptr, "packets: got NULL, want a place for the result");
    *packets = packets_of(*flow, elements, type).packets();
  });
}

droptest_status droptest_flow_next(droptest_flow* flow, uint64_t elements, droptest_type type, uint64_t* mask,
                                   size_t mask_words, droptest_message* message) {
  return guarded([&] {
    droptest_network& of = network_of(flow);
    const Packetizer packets = packets_of(*flow, elements, type);
    const std::size_t words = checked_words(mask, mask_words, packets.packets());
    const std::scoped_lock lock(of.mutex);
    const DrawnMessage drawn = of.next(*flow, packets);
    if (drawn.any_missing) {
      std::copy_n(drawn.missing.words().begin(), words, mask);
    } else {
      std::fill_n(mask, words, 0);
    }
    put_summary(drawn, message);
  });
}

droptest_status droptest_flow_fates(const droptest_flow* flow, uint64_t first_packet, uint64_t packets, uint64_t* mask,
                                    size_t mask_words) {
  return guarded([&] {
    droptest_network& of = network_of(flow);
    const std::size_t words = checked_words(mask, mask_words, packets);
    const std::scoped_lock lock(of.mutex);
    const droptest::sim::FateReport report = droptest::api::fates_of(*flow, first_packet, packets);
    std::copy_n(report.fates.words().begin(), words, mask);
  });
}

droptest_status droptest_flow_lost_ranges(const droptest_flow* flow, const uint64_t* mask, uint64_t elements,
                                          droptest_type type, droptest_range* ranges, size_t capacity, size_t* count) {
  return guarded([&] {
    network_of(flow);
    require(count != nullptr && (ranges != nullptr || capacity == 0),
            "count, ranges: got NULL, want places for results");
    const Packetizer packets = packets_of(*flow, elements, type);
    const PacketMask lost = mask_of(mask, packets);
    std::vector<droptest::sim::ElementRange> found;
    droptest::comm::append_lost(&lost, packets, 0, found);
    *count = found.size();
    for (std::size_t i = 0; i < std::min(capacity, found.size()); ++i) ranges[i] = {found[i].begin, found[i].end};
  });
}

droptest_status droptest_flow_lose(droptest_flow* flow, droptest_reduction reduction, void* data, uint64_t elements,
                                   droptest_type type, const droptest_memory* memory, droptest_message* message) {
  return guarded([&] {
    droptest_network& of = network_of(flow);
    const Packetizer packets = packets_of(*flow, elements, type);
    const Tensor tensor = tensor_of(data, elements, type);
    check_fill(of, flow->link.traffic_class, flow->link.half, reduction, memory);
    const std::scoped_lock lock(of.mutex);
    const DrawnMessage drawn = of.next(*flow, packets);
    fill(of, drawn.lost(), reduction, tensor, packets, memory);
    put_summary(drawn, message);
  });
}

droptest_status droptest_flow_fill(droptest_flow* flow, const uint64_t* mask, droptest_reduction reduction, void* data,
                                   uint64_t elements, droptest_type type, const droptest_memory* memory) {
  return guarded([&] {
    droptest_network& of = network_of(flow);
    const Packetizer packets = packets_of(*flow, elements, type);
    const PacketMask lost = mask_of(mask, packets);
    const Tensor tensor = tensor_of(data, elements, type);
    check_fill(of, flow->link.traffic_class, flow->link.half, reduction, memory);
    const std::scoped_lock lock(of.mutex);
    fill(of, &lost, reduction, tensor, packets, memory);
  });
}

droptest_status droptest_group_open(droptest_network* network, droptest_class traffic_class, uint32_t number,
                                    const int32_t* members, int32_t member_count, droptest_group** group) {
  return guarded([&] {
    droptest_network& of = own(network);
    require(members != nullptr && member_count > 0 && group != nullptr,
            "members, group: got NULL or no members, want the group's world ranks and a place for the result");
    std::vector<std::uint16_t> ranks;
    for (std::int32_t i = 0; i < member_count; ++i) {
      ranks.push_back(checked_rank(members[i], of, "members"));
      if (std::find(ranks.begin(), ranks.end() - 1, ranks.back()) == ranks.end() - 1) continue;
      throw ArgumentError("members: got rank " + std::to_string(members[i]) +
                          " twice, want each rank of the group once");
    }
    const TrafficClass checked = checked_class(traffic_class);
    const std::scoped_lock lock(of.mutex);
    *group = &of.group(checked, checked_group(number, of, checked), std::move(ranks));
  });
}

droptest_status droptest_group_reduce(droptest_group* group, droptest_reduction reduction, void* data,
                                      uint64_t elements, droptest_type type, const droptest_memory* memory,
                                      droptest_message* message, uint64_t* unfinished_sum) {
  return guarded([&] {
    droptest_network& of = network_of(group);
    const Tensor tensor = tensor_of(data, elements, type);
    check_fill(of, group->traffic_class, Half::kReduce, reduction, memory);
    if (droptest::api::has_no_loss_layer(*group, reduction)) {
      const std::scoped_lock lock(of.mutex);
      of.count_exempt(Exemption::kNoLossLayer, {"", "", 0, tensor.type, elements});
      put_summary({}, message);
      if (unfinished_sum != nullptr) *unfinished_sum = 0;
      return;
    }
    droptest::api::check_sum(*group, reduction, tensor.type, unfinished_sum != nullptr);
    const Packetizer packets = of.packets(group->traffic_class, tensor.type, elements);
    const std::scoped_lock lock(of.mutex);
    const DrawnMessage drawn = of.next_of(*group, Half::kReduce, packets);
    fill(of, drawn.lost(), reduction, tensor, packets, memory);
    const std::uint64_t unfinished = of.keep_unfinished(*group, tensor.type, packets, drawn.lost());
    put_summary(drawn, message);
    if (unfinished_sum != nullptr) *unfinished_sum = unfinished;
  });
}

droptest_status droptest_group_finish_reduce(droptest_group* group, uint64_t sum, void* data, uint64_t first_element,
                                             uint64_t elements, const droptest_memory* memory) {
  return guarded([&] {
    droptest_network& of = network_of(group);
    require(data != nullptr || elements == 0, "data: got NULL, want the results");
    const std::scoped_lock lock(of.mutex);
    of.finish(*group, sum, memory, data, first_element, elements);
  });
}

droptest_status droptest_group_gather(droptest_group* group, void* data, uint64_t elements, droptest_type type,
                                      const droptest_memory* memory, droptest_message* message) {
  return guarded([&] {
    droptest_network& of = network_of(group);
    const Tensor tensor = tensor_of(data, elements, type);
    const Packetizer packets = of.packets(group->traffic_class, tensor.type, elements);
    check_fill(of, group->traffic_class, Half::kGather, DROPTEST_SUM, memory);
    const std::scoped_lock lock(of.mutex);
    const DrawnMessage drawn = of.next_of(*group, Half::kGather, packets);
    fill(of, drawn.lost(), DROPTEST_SUM, tensor, packets, memory);
    put_summary(drawn, message);
  });
}

droptest_status droptest_flow_counts(const droptest_flow* flow, droptest_counts* counts) {
  return guarded([&] {
    droptest_network& of = network_of(flow);
    require(counts != nullptr, "counts: got NULL, want a place for the result");
    const std::scoped_lock lock(of.mutex);
    *counts = droptest::api::counts_of(*flow);
  });
}

droptest_status droptest_flow_verify(const droptest_flow* flow, uint64_t packets, uint64_t digest) {
  return guarded([&] {
    network_of(flow);
    droptest::api::verify(*flow, packets, digest);
  });
}

droptest_status droptest_flow_law(const droptest_flow* flow, droptest_law* law) {
  return guarded([&] {
    network_of(flow);
    require(law != nullptr, "law: got NULL, want a place for the result");
    *law = droptest::api::law_of(*flow);
  });
}

droptest_status droptest_flow_count(droptest_flow* flow, uint64_t messages, uint64_t packets, uint64_t bytes,
                                    uint64_t* lost) {
  return guarded([&] {
    droptest_network& of = network_of(flow);
    const std::scoped_lock lock(of.mutex);
    const std::uint64_t number = of.count_messages(*flow, messages, packets, bytes);
    if (lost != nullptr) *lost = number;
  });
}

droptest_status droptest_flow_report(const droptest_flow* flow, uint64_t first_packet, uint64_t packets, char* text,
                                     size_t size, size_t* needed) {
  return guarded([&] {
    droptest_network& of = network_of(flow);
    const std::scoped_lock lock(of.mutex);
    put_text(droptest::api::report_of(*flow, first_packet, packets), text, size, needed);
  });
}

droptest_status droptest_network_statistics(const droptest_network* network, char* text, size_t size, size_t* needed) {
  return guarded([&] {
    auto& of = const_cast<droptest_network&>(own(network));
    const std::scoped_lock lock(of.mutex);
    put_text(droptest::api::statistics_of_rank(of).dump(2), text, size, needed);
  });
}

droptest_status droptest_network_write_statistics(droptest_network* network, const char* folder) {
  return guarded([&] {
    droptest_network& of = own(network);
    const std::string named = folder == nullptr ? of.program.statistics : folder;
    if (named.empty()) return;
    const std::scoped_lock lock(of.mutex);
    droptest::api::write_statistics(of, named);
  });
}

}  // extern "C"
