// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/trace.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace droptest::experiments {
namespace {

using nlohmann::json;

constexpr int kRankThread = 0;
constexpr int kStepThread = 1;
constexpr int kFirstDeviceThread = 2;  // first thread of the streams in the order of their first work

/// Threads have numbers of their own over all ranks: Perfetto takes equal numbers for one thread.
int thread_number(std::size_t rank, int track) { return 1000 * (static_cast<int>(rank) + 1) + track; }

json metadata(const char* name, std::size_t rank, int thread, json args) {
  return {{"ph", "M"}, {"name", name}, {"pid", rank}, {"tid", thread_number(rank, thread)}, {"args", std::move(args)}};
}

/// The time at which the data of each call could begin to move: the last begin over its ranks; for a message, its
/// sender's begin.
std::map<std::string, double> ready_times(const std::vector<json>& ranks) {
  std::map<std::string, double> ready;
  for (const json& spans : ranks) {
    for (const json& span : spans) {
      if (!span.contains("key") || span["part"] == "wait" || span.value("end", "") == "destination") continue;
      const double begin = span["ts"].get<double>();
      const auto [entry, is_new] = ready.try_emplace(span["key"].get<std::string>(), begin);
      if (!is_new) entry->second = std::max(entry->second, begin);
    }
  }
  return ready;
}

/// Events of one rank.
class RankEvents {
 public:
  RankEvents(std::size_t rank, const std::map<std::string, double>& ready, json& events)
      : rank_(rank), ready_(ready), events_(events) {}

  void add(const json& span) {
    json event = {{"ph", "X"},
                  {"name", span["name"]},
                  {"cat", span["cat"]},
                  {"pid", rank_},
                  {"tid", thread_number(rank_, kRankThread)},
                  {"ts", span["ts"]},
                  {"dur", span["dur"]},
                  {"args", json::object()}};
    if (span.contains("args")) event["args"] = span["args"];
    if (span["cat"] == "step") event["tid"] = thread_number(rank_, kStepThread);
    if (span.contains("stream")) {
      event["tid"] = thread_number(rank_, kFirstDeviceThread + name_stream(span["stream"].get<int>()));
    } else if (span["cat"] == "communication") {
      add_times(span, event);
    }
    events_.push_back(std::move(event));
  }

 private:
  int name_stream(int stream) {
    for (; streams_ <= stream; ++streams_) {
      const std::string name = streams_ == 0 ? "device" : "device, stream " + std::to_string(streams_ + 1);
      events_.push_back(metadata("thread_name", rank_, kFirstDeviceThread + streams_, {{"name", name}}));
    }
    return stream;
  }

  void add_times(const json& span, json& event) {
    const double begin = span["ts"].get<double>();
    const double duration = span["dur"].get<double>();
    const std::string part = span["part"].get<std::string>();
    json& args = event["args"];
    const double in_calls_before = std::exchange(in_calls_, in_calls_ + duration);
    if (part != "whole") args["part"] = part;
    if (part == "start") {
      started_[span["key"].get<std::string>()] = {begin + duration, in_calls_};
      return;
    }
    const auto ready = span.contains("key") ? ready_.find(span["key"].get<std::string>()) : ready_.end();
    if (ready != ready_.end()) {
      const double waiting = std::clamp(ready->second - begin, 0.0, duration);
      args["waiting_us"] = waiting;
      args["transfer_us"] = duration - waiting;
    }
    if (part == "whole") return;
    const auto started = started_.find(span["key"].get<std::string>());
    if (started == started_.end()) return;  // it was started before the recording
    const auto [from, in_calls_then] = started->second;
    args["overlap_us"] = std::max(0.0, begin - from - (in_calls_before - in_calls_then));
    add_flight(event, from, begin + duration);
    started_.erase(started);
  }

  /// Shows the call on a track of its own, from the end of its start to the end of its wait.
  void add_flight(const json& event, double begin, double end) {
    json flight = {{"ph", "b"},
                   {"name", event["name"]},
                   {"cat", "under way"},
                   {"pid", rank_},
                   {"tid", thread_number(rank_, kRankThread)},
                   {"ts", begin},
                   {"id2", {{"local", std::to_string(++flights_)}}},  // an id of only this process
                   {"args", event["args"]}};
    events_.push_back(flight);
    flight["ph"] = "e";
    flight["ts"] = end;
    flight["args"] = json::object();
    events_.push_back(std::move(flight));
  }

  std::size_t rank_;
  const std::map<std::string, double>& ready_;
  json& events_;
  double in_calls_ = 0;  ///< microseconds in calls so far; spans come in the order of their ends, and calls do not nest
  struct Start {
    double end = 0;
    double in_calls = 0;  ///< microseconds in calls until then
  };
  std::map<std::string, Start> started_;  ///< starts by key
  int flights_ = 0;
  int streams_ = 0;  ///< streams that have a name
};

}  // namespace

json trace_document(const std::vector<json>& ranks, const json& run) {
  json events = json::array();
  const std::map<std::string, double> ready = ready_times(ranks);
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    events.push_back(metadata("process_name", rank, kRankThread, {{"name", "rank " + std::to_string(rank)}}));
    events.push_back(metadata("process_sort_index", rank, kRankThread, {{"sort_index", rank}}));
    events.push_back(metadata("thread_name", rank, kRankThread, {{"name", "work"}}));
    events.push_back(metadata("thread_name", rank, kStepThread, {{"name", "steps"}}));
    RankEvents of_rank(rank, ready, events);
    for (const json& span : ranks[rank]) of_rank.add(span);
  }
  return {{"displayTimeUnit", "ms"}, {"otherData", run}, {"traceEvents", std::move(events)}};
}

}  // namespace droptest::experiments
