// SPDX-License-Identifier: Apache-2.0
#include "experiments/training/call_waits.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <unordered_map>

#include "comm/rank_agreement.h"

namespace droptest::experiments {
namespace {

struct ClassTime {
  std::int64_t all = 0;
  std::int64_t waiting = 0;
};

}  // namespace

std::vector<std::map<std::string, double>> waiting_shares(std::span<const std::vector<TimedCall>> ranks) {
  std::unordered_map<std::uint64_t, std::int64_t> ready;  // the time at which a call's data could begin to move
  for (const std::vector<TimedCall>& calls : ranks) {
    for (const TimedCall& call : calls) {
      if (call.key == 0 || call.part == comm::MeteredCall::Part::kWait || call.receives) continue;
      const auto [entry, is_new] = ready.try_emplace(call.key, call.begin);
      if (!is_new) entry->second = std::max(entry->second, call.begin);
    }
  }
  std::vector<std::map<std::string, double>> shares;
  for (const std::vector<TimedCall>& calls : ranks) {
    std::map<sim::TrafficClass, ClassTime> times;
    for (const TimedCall& call : calls) {
      ClassTime& time = times[call.traffic_class];
      time.all += call.duration;
      const auto found =
          call.part == comm::MeteredCall::Part::kStart || call.key == 0 ? ready.end() : ready.find(call.key);
      if (found != ready.end()) {
        time.waiting += std::clamp<std::int64_t>(found->second - call.begin, 0, call.duration);
      }
    }
    auto& of_rank = shares.emplace_back();
    for (const auto& [traffic_class, time] : times) {
      if (time.all == 0) continue;
      of_rank[std::string(sim::traffic_class_name(traffic_class))] =
          static_cast<double>(time.waiting) / static_cast<double>(time.all);
    }
  }
  return shares;
}

nlohmann::json gather_usage(const RankUsage& usage, std::span<const TimedCall> calls, comm::Communicator& group) {
  static_assert(std::is_trivially_copyable_v<TimedCall>);
  std::string own = to_json(usage).dump();  // a line of text, and then the bytes of the calls
  own += '\n';
  own.append(reinterpret_cast<const char*>(calls.data()), calls.size_bytes());
  nlohmann::json lines = nlohmann::json::array();
  std::vector<std::vector<TimedCall>> ranks;
  for (const std::string& text : gather_texts(own, group, "use of the machine")) {
    const std::size_t end = text.find('\n');
    lines.push_back(nlohmann::json::parse(text.substr(0, end)));
    std::vector<TimedCall>& of_rank = ranks.emplace_back((text.size() - end - 1) / sizeof(TimedCall));
    if (!of_rank.empty()) std::memcpy(of_rank.data(), text.data() + end + 1, of_rank.size() * sizeof(TimedCall));
  }
  const std::vector<std::map<std::string, double>> shares = waiting_shares(ranks);
  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    if (!lines[rank].contains("wall_seconds")) continue;
    nlohmann::json& wall = lines[rank]["wall_seconds"];
    wall["waiting"] = nlohmann::json::object();
    for (const auto& [traffic_class, share] : shares[rank]) {
      const double seconds = wall["communication"].value(traffic_class, 0.0);
      if (seconds > 0) wall["waiting"][traffic_class] = share * seconds;
    }
  }
  return lines;
}

}  // namespace droptest::experiments
