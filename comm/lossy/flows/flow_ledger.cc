// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/flows/flow_ledger.h"

#include <algorithm>
#include <memory>

#include "sim/error.h"

namespace droptest::comm {

Delivery delivery_of(const Message& message, const ClassNetwork& network, std::uint64_t step) {
  if (message.delivery == Delivery::kCertain) return Delivery::kCertain;
  return network.recovery.protect.covers(message, step) ? Delivery::kCertain : Delivery::kByNetwork;
}

const HalfNetwork& FlowLedger::half_of(const sim::Link& link) const {
  const auto& network = network_.of(link.traffic_class);
  DROPTEST_CHECK(network.has_value(), name_of(link) + " has no network");
  return network->of(link.half);
}

const sim::LossProcess* FlowLedger::process_of(const sim::Link& link) const {
  const HalfNetwork& half = half_of(link);
  return loss_of_link(half.links, link, half.loss.get());
}

double FlowLedger::missing_rate(const sim::Link& link, std::uint64_t packets) const {
  const sim::LossProcess* process = process_of(link);
  if (process == nullptr) return 0;
  const HalfNetwork& half = half_of(link);
  if (half.recovery == nullptr) return process->loss_rate();
  const std::optional<double> rate = half.recovery->residual_rate(*process, packets);
  DROPTEST_CHECK(rate.has_value(), name_of(link) + ": no residual rate of " + half.recovery->describe());
  return *rate;
}

Flow& FlowLedger::flow_of(const FlowKey& key) {
  std::pair<const FlowKey, Flow>* entry = last_ == nullptr ? nullptr : last_->second.next;
  if (entry == nullptr || entry->first != key) {
    auto found = flows_.find(key);
    if (found == flows_.end()) found = flows_.try_emplace(key, key.link, process_of(key.link)).first;
    entry = &*found;
    if (last_ != nullptr) last_->second.next = entry;
  }
  last_ = entry;
  return entry->second;
}

std::uint64_t FlowLedger::take_draws(const sim::Link& link, std::uint64_t count) {
  std::uint64_t& taken = draws_[link];
  const std::uint64_t first = taken;
  taken += count;
  return first;
}

void FlowLedger::visit_state(sim::StateVisitor& visitor) {
  using Part = sim::StateVisitor::Part;
  using Place = sim::StateVisitor::Place;
  visit_value(visitor, draws_);
  std::uint64_t size = flows_.size();
  visit_value(visitor, size);
  if (visitor.turn() == sim::StateVisitor::Turn::kSave) {
    for (auto& [key, flow] : flows_) {
      const Part part(visitor, typeid(Flow), Place::kElement);
      FlowKey copy = key;
      visit_value(visitor, copy);
      flow.visit_state(visitor, key.link);
    }
    return;
  }
  last_ = nullptr;
  flows_.clear();
  for (std::uint64_t i = 0; i < size; ++i) {
    const Part part(visitor, typeid(Flow), Place::kElement);
    FlowKey key;
    visit_value(visitor, key);
    flows_.try_emplace(key, key.link, process_of(key.link)).first->second.visit_state(visitor, key.link);
  }
}

struct FlowLedger::Sent {
  FlowKey key;
  Flow& flow;
  const HalfNetwork& half;
  std::uint64_t packets;  // packets of the first transmission
  LinkPosition position;  // position of the flow before the message
  std::optional<SendTime> time;
  std::optional<sim::PacketTimes> times;
  std::uint64_t number(const CallFates& call) const { return call.ordinal.value_or(position.messages); }
};

FlowLedger::Sent FlowLedger::send(CallFates& call, const sim::Link& link, const sim::Packetizer& packets) {
  const FlowKey key = key_of(link, call.group);
  Flow& flow = flow_of(key);
  const HalfNetwork& half = half_of(link);
  const std::uint64_t data = packets.packets();
  const std::uint64_t count = half.recovery == nullptr ? data : half.recovery->first_packets(data);
  if (call.phase != CallFates::Phase::kDraw) flow.check_ordinal(key, count, call.ordinal);
  Sent sent{key, flow, half, count, flow, {}, {}};
  if (call.phase == CallFates::Phase::kDraw) {
    DROPTEST_CHECK(!call.reserved->empty() && call.reserved->front().link == link,
                   name_of(link) + ": a call draws other messages than it has reserved");
    sent.position = call.reserved->front().position;
    call.reserved->pop_front();
  } else if (call.phase == CallFates::Phase::kReserve) {
    if (count > 0) (void)flow.place(key, count, network_.of(link.traffic_class)->burst_scope, call.ordinal);
    call.reserved->push_back({link, flow});
    return sent;
  }
  if (call.times != nullptr) take_times(call, sent);
  return sent;
}

void FlowLedger::take_times(const CallFates& call, Sent& sent) {
  sent.time = call.times->take(sent.key.link);
  if (!sent.time || sent.time->packet_seconds <= 0) return;
  const Carrier carrier = call.ends == CallFates::Ends::kApart ? Carrier::kMessage : Carrier::kCollective;
  sent.times = sent.time->repeated ? sent.time->repeated->place.times
                                   : sent.flow.times(carrier, sent.time->departs_seconds, sent.time->packet_seconds,
                                                     sent.time->is_stopped);
  if (sent.times && sent.times->departs_microseconds) sent.flow.leave(carrier, *sent.times, sent.packets);
}

void FlowLedger::pass(const CallFates& call, const Sent& sent) {
  Flow& flow = sent.flow;
  if (call.phase == CallFates::Phase::kDraw) {
    --flow.undrawn_messages;
    flow.undrawn_packets -= sent.packets;
  } else {
    flow.pass(sent.packets);
  }
  if (call.phase == CallFates::Phase::kReserve) {
    ++flow.undrawn_messages;
    flow.undrawn_packets += sent.packets;
  } else if (call.ends == CallFates::Ends::kApart) {
    ++flow.peer_messages;
  }
}

LinkPosition FlowLedger::position(const FlowKey& key) const {
  const auto found = flows_.find(key);
  if (found == flows_.end()) return {};
  return found->second;
}

void FlowLedger::pass_message(CallFates& call, const sim::Link& link, const sim::Packetizer& packets) {
  const Sent sent = send(call, link, packets);
  if (call.phase != CallFates::Phase::kReserve && sent.number(call) % kMessagesPerCheck == 0) {
    sim::PacketMask nobody_asks;
    draw(call, sent, packets, nobody_asks);
  }
  pass(call, sent);
}

bool FlowLedger::draw_message(CallFates& call, const sim::Link& link, const sim::Packetizer& packets, Tally tally,
                              sim::PacketMask& missing) {
  const Sent sent = send(call, link, packets);
  bool any_missing = false;
  if (call.phase != CallFates::Phase::kReserve) {
    if (tally == Tally::kCounted && counting_ == Counting::kOn && sent.flow.tally == nullptr)
      sent.flow.tally = std::make_unique<FlowTally>(link);
    any_missing = draw(call, sent, packets, missing);
  }
  pass(call, sent);
  return any_missing;
}

bool FlowLedger::draw(CallFates& call, const Sent& sent, const sim::Packetizer& packets, sim::PacketMask& missing) {
  bool any_missing = false;
  if (sent.packets > 0) {
    const Flow& flow = sent.flow;
    const sim::LossProcess* process = flow.process == nullptr ? nullptr : &flow.process->at_step(call.step);
    if (process != nullptr && process->can_lose() && call.delivery == Delivery::kByNetwork) {
      any_missing = lose(call, sent, *process, packets, missing);
    }
    if (flow.tally != nullptr) {
      flow.tally->count_bytes(sent.packets, packets);
      totals_.packets += sent.packets;
    }
  }
  // Late packets are missing, even if the recovery repaired them. Receivers wait for packets that arrive for certain.
  const std::uint64_t data = packets.packets();
  const std::uint64_t in_time = sent.time && sent.time->in_time ? std::min(*sent.time->in_time, data) : data;
  if (in_time < data && call.delivery == Delivery::kByNetwork) {
    if (!any_missing) missing.resize(data);
    for (std::uint64_t packet = in_time; packet < data; ++packet) missing.set_lost(packet);
    any_missing = true;
  }
  if (any_missing) call.verdict = Verdict::kLossy;
  return any_missing;
}

bool FlowLedger::lose(const CallFates& call, const Sent& sent, const sim::LossProcess& process,
                      const sim::Packetizer& packets, sim::PacketMask& missing) {
  const sim::Link& link = sent.key.link;
  Flow& flow = sent.flow;
  const ResentMessage* repeated = sent.time && sent.time->repeated ? &*sent.time->repeated : nullptr;
  const BurstScope scope = network_.of(link.traffic_class)->burst_scope;
  sim::MessagePosition place = sent.position.place(sent.key, sent.packets, scope, call.ordinal);
  DROPTEST_CHECK(repeated == nullptr || repeated->place.first_packet == place.first_packet,
                 name_of(link) + ": the clock has the message at packet " +
                     std::to_string(repeated->place.first_packet) + ", the loss layer at " +
                     std::to_string(place.first_packet));
  place.times = sent.times;
  // A message has its own fates under burst_scope "message", so no time passes between messages.
  if (place.times && scope == BurstScope::kMessage) place.times->departs_microseconds.reset();
  // Without a recovery, all lost packets stay missing.
  const sim::LinkRecovery* recovery = sent.half.recovery.get();
  sim::PacketMask& lost = recovery == nullptr ? missing : lost_;
  lost.resize(sent.packets);
  FlowTally* tally = flow.tally.get();
  // Messages with consecutive ordinals are neighbours, in whatever order they are sent. But times pass in the order of
  // the sends.
  const bool by_clock = process.keeps_time() && place.times && place.times->departs_microseconds;
  const auto order =
      call.ordinal && scope == BurstScope::kLink && !by_clock ? sim::MessageOrder::kAny : sim::MessageOrder::kByDraw;
  if (tally != nullptr && order == sim::MessageOrder::kByDraw && scope == BurstScope::kLink &&
      !process.counts_by_message()) {
    tally->fates.draw(process, network_.seed, place.first_packet, lost);
  } else {
    process.draw_message(network_.seed, link, place, lost);
    if (tally != nullptr && order == sim::MessageOrder::kAny) {
      tally->count_scattered(place.first_packet, process.first_draw(place), lost);
    } else if (tally != nullptr) {
      tally->fates.add(place.first_packet, process.first_draw(place), lost);
    }
  }
  if (tally != nullptr && scope == BurstScope::kMessage) {
    tally->theory.add_alone(process, network_.seed, link, place, sent.packets);
  } else if (tally != nullptr) {
    tally->theory.add(process, call.step, network_.seed, link, place, sent.packets, order);
  }
  const bool is_checked = sent.number(call) % kMessagesPerCheck == 0;
  if (is_checked && call.times == nullptr) flow.checked_fates.add(place.first_packet, lost);
  // Collectives, and messages from send to recv, are drawn in other orders at the two ends.
  if (is_checked && call.times != nullptr) flow.checked_fates.add_apart(place.first_packet, lost);
  if (tally != nullptr && by_clock) ++tally->counts.timed_messages;
  const std::uint64_t number = lost.lost_count();
  if (number == 0) return false;
  const std::uint64_t data = packets.packets();
  if (tally != nullptr) {
    totals_.lost += number;
    tally->count_lost(lost, number, recovery == nullptr ? data - 1 : recovery->position(data - 1, data), packets);
  }
  if (recovery != nullptr) {
    missing.resize(data);
    const auto draw_again = repeated == nullptr
                                ? sim::draws_by_attempt(process, network_.seed, link, place.first_packet)
                                : sim::draws_by_slot(process, network_.seed, link, place);
    const sim::LinkTiming timing = repeated == nullptr ? sim::LinkTiming{} : repeated->timing;
    const sim::Repair repair = recovery->recover(lost, draw_again, timing, missing);
    if (tally != nullptr) tally->count_repair(repair, missing);
    if (!missing.any_lost()) return false;
    if (is_checked) {
      flow.checked_missing.add(link, place.first_packet, missing,
                               call.times == nullptr ? order : sim::MessageOrder::kAny);
    }
    if (tally != nullptr) tally->missing.add(link, place.first_packet, missing, order);
  }
  if (tally != nullptr) tally->count_residual(missing, packets);
  return true;
}

}  // namespace droptest::comm
