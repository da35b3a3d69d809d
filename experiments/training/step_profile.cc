// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/step_profile.h"

#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "comm/call.h"
#include "sim/traffic_class.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

// The activities: phases of models, phases of trainers, traffic classes.
constexpr std::array<std::string_view, 7> kTrainerPhases = {"data",    "evaluation", "sampling", "checkpoint",
                                                            "records", "device",     "other"};
constexpr std::size_t kFirstOfTrainer = models::kPhaseNames.size();
constexpr std::size_t kFirstClass = kFirstOfTrainer + kTrainerPhases.size();
constexpr std::size_t kActivities = kFirstClass + sim::kAllTrafficClasses.size();

std::size_t activity_of(TrainerPhase phase) { return kFirstOfTrainer + static_cast<std::size_t>(phase); }
std::size_t activity_of(sim::TrafficClass traffic_class) {
  return kFirstClass + static_cast<std::size_t>(traffic_class);
}

/// More calls of a step are not timed one by one: they cost memory and time of a line.
constexpr std::size_t kMostCalls = 4096;

std::int64_t nanoseconds(std::chrono::nanoseconds time) { return time.count(); }

/// TimedCall::key; messages of an exchange have none.
std::uint64_t key_of(const comm::MeteredCall& call) {
  if (call.operation == comm::Operation::kExchange) return 0;
  std::uint64_t key = std::hash<std::string_view>()(call.group);
  for (const std::uint64_t part :
       {call.number, static_cast<std::uint64_t>(call.source + 1), static_cast<std::uint64_t>(call.destination + 1)}) {
    key = (key ^ part) * 0x9e3779b97f4a7c15U;
    key ^= key >> 32U;
  }
  return key;
}

comm::WallTimes::Inner inner_of(TrainerPhase phase) {
  const bool has_own_parts = phase == TrainerPhase::kOther || phase == TrainerPhase::kDevice;
  return has_own_parts ? comm::WallTimes::Inner::kCounts : comm::WallTimes::Inner::kIsCovered;
}

}  // namespace

StepProfile::StepProfile(std::function<comm::PacketTotals()> packets, const comm::Clock& clock)
    : times_(kActivities, activity_of(TrainerPhase::kOther), clock),
      device_timer_(clock),
      packets_(std::move(packets)) {}

StepProfile::Scope::Scope(StepProfile& profile, TrainerPhase phase)
    : comm::WallTimes::Scope(&profile.times_, activity_of(phase), inner_of(phase)) {}

void StepProfile::put_seconds(RankUsage& usage) {
  const std::vector<double> seconds = times_.take();
  usage.phase_seconds.clear();
  usage.communication_seconds.clear();
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    if (seconds[i] == 0) continue;
    if (i < kFirstOfTrainer) {
      usage.phase_seconds[std::string(models::kPhaseNames[i])] = seconds[i];
    } else if (i < kFirstClass) {
      usage.phase_seconds[std::string(kTrainerPhases[i - kFirstOfTrainer])] = seconds[i];
    } else {
      usage.communication_seconds[std::string(sim::traffic_class_name(sim::kAllTrafficClasses[i - kFirstClass]))] =
          seconds[i];
    }
  }
}

void StepProfile::begins(const comm::MeteredCall& call) {
  if (origin_) {
    const bool has_ends = call.source >= 0;
    call_.packets = packets_();
    call_.span = {{"name", std::string(comm::operation_name(call.operation)) + " " + std::string(call.name)},
                  {"cat", "communication"},
                  {"part", call.part == comm::MeteredCall::Part::kWhole   ? "whole"
                           : call.part == comm::MeteredCall::Part::kStart ? "start"
                                                                          : "wait"},
                  {"args",
                   {{"class", sim::traffic_class_name(call.traffic_class)},
                    {"operation", comm::operation_name(call.operation)},
                    {"bytes", call.bytes},
                    {"group", call.group}}}};
    if (call.layer >= 0) call_.span["args"]["layer"] = call.layer;
    call_.stream = call.stream != nullptr && device_timer_.is_on() ? call.stream : nullptr;
    if (call_.stream != nullptr) {
      device_timer_.begin(models::kPhaseNames.size() + device_calls_.size(), *call_.stream);
      device_calls_.push_back({{"name", call_.span["name"]}, {"cat", "communication"}, {"args", call_.span["args"]}});
    }
    if (call.operation != comm::Operation::kExchange) {
      call_.span["key"] = std::string(call.group) + ": " +
                          (has_ends ? std::to_string(call.source) + ">" + std::to_string(call.destination) + " " : "") +
                          std::to_string(call.number);
      if (has_ends) call_.span["end"] = call.operation == comm::Operation::kSend ? "source" : "destination";
    }
  }
  const comm::Clock::TimePoint begin = times_.enter(activity_of(call.traffic_class));
  is_timed_ = !times_.is_covered() && calls_.size() < kMostCalls;
  if (!is_timed_) return;
  TimedCall timed;
  timed.key = key_of(call);
  timed.begin = nanoseconds(begin.time_since_epoch());
  timed.traffic_class = call.traffic_class;
  timed.part = call.part;
  timed.receives = call.operation == comm::Operation::kRecv;
  calls_.push_back(timed);
}

void StepProfile::ends() {
  if (comm::Stream* const stream = std::exchange(call_.stream, nullptr)) device_timer_.end(*stream);
  const comm::Clock::TimePoint end = times_.leave();
  if (is_timed_) calls_.back().duration = nanoseconds(end.time_since_epoch()) - calls_.back().begin;
  is_timed_ = false;
}

std::vector<TimedCall> StepProfile::take_calls(comm::Clock::TimePoint origin) {
  for (TimedCall& call : calls_) call.begin -= nanoseconds(origin.time_since_epoch());
  return std::exchange(calls_, {});
}

void StepProfile::begin_step() {
  step_begin_ = times_.clock().now();
  calls_.clear();
}

void StepProfile::start_recording(comm::Clock::TimePoint origin, comm::Stream* stream) {
  origin_ = origin;
  times_.set_listener(this);
  if (stream != nullptr) device_timer_.start(*stream);
}

void StepProfile::end_step(std::uint64_t step) {
  if (!origin_) return;
  add({{"name", "step " + std::to_string(step)}, {"cat", "step"}, {"args", {{"step", step}}}}, step_begin_,
      times_.clock().now());
  if (device_timer_.is_on()) add_device(device_timer_.take_done());
}

json StepProfile::take_recording() {
  if (device_timer_.is_on()) add_device(device_timer_.stop());
  device_calls_.clear();
  origin_.reset();
  times_.set_listener(nullptr);
  return json(std::exchange(spans_, {}));
}

void StepProfile::ended(std::size_t activity, comm::Clock::TimePoint begin, comm::Clock::TimePoint end) {
  if (begin < *origin_) return;  // the activity began before the recording
  if (activity < kFirstOfTrainer) return add({{"name", models::kPhaseNames[activity]}, {"cat", "compute"}}, begin, end);
  if (activity < kFirstClass) {
    return add({{"name", kTrainerPhases[activity - kFirstOfTrainer]}, {"cat", "trainer"}}, begin, end);
  }
  if (call_.span.is_null()) return;
  const comm::PacketTotals packets = packets_();
  call_.span["args"]["packets"] = packets.packets - call_.packets.packets;
  call_.span["args"]["packets_lost"] = packets.lost - call_.packets.lost;
  add(std::exchange(call_.span, nullptr), begin, end);
}

void StepProfile::add_device(const std::vector<comm::StreamTimer::Piece>& pieces) {
  for (const comm::StreamTimer::Piece& piece : pieces) {
    json span = piece.label < models::kPhaseNames.size()
                    ? json{{"name", models::kPhaseNames[piece.label]}, {"cat", "compute"}}
                    : device_calls_.at(piece.label - models::kPhaseNames.size());
    span["stream"] = piece.stream;
    add(std::move(span), piece.begin, piece.end);
  }
}

double StepProfile::microseconds(comm::Clock::TimePoint time) const {
  return std::chrono::duration<double, std::micro>(time - *origin_).count();
}

void StepProfile::add(json span, comm::Clock::TimePoint begin, comm::Clock::TimePoint end) {
  span["ts"] = microseconds(begin);
  span["dur"] = std::chrono::duration<double, std::micro>(end - begin).count();
  spans_.push_back(std::move(span));
}

}  // namespace droptest::experiments
