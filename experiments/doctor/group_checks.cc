// SPDX-License-Identifier: Apache-2.0
#include "experiments/doctor/group_checks.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>

#include "comm/allowed_cores.h"
#include "comm/rank_agreement.h"
#include "experiments/doctor/machine_checks.h"
#include "experiments/records/provenance.h"

namespace droptest::experiments {
namespace {

constexpr int kClockRounds = 5;
/// People compare times in the records of several machines, in seconds.
constexpr double kMostClockSkewSeconds = 1;
/// Messages may fill one part in this many of the free memory.
constexpr std::uint64_t kMemoryShare = 2;
/// Number of buffers: input and output.
constexpr std::uint64_t kBuffersPerRank = 2;

comm::Message control(const char* name) { return {sim::TrafficClass::kControl, name, -1}; }

/// Each rank's clock is read when all have come to a barrier; the median of several differences counts.
std::vector<double> measure_clock_offsets(comm::Communicator& group) {
  using std::chrono::nanoseconds;
  const auto ranks = static_cast<std::size_t>(group.world_size());
  const std::vector<std::uint64_t> ones(ranks, 1);
  std::vector<std::vector<double>> differences(ranks);
  for (int round = 0; round < kClockRounds; ++round) {
    group.barrier(control("clock"));
    const auto now = std::chrono::duration_cast<nanoseconds>(std::chrono::system_clock::now().time_since_epoch());
    const auto own = static_cast<std::uint64_t>(now.count());
    std::vector<std::uint64_t> all(ranks);
    group.all_gather(comm::ConstTensor(std::span<const std::uint64_t>(&own, 1)),
                     comm::Tensor(std::span<std::uint64_t>(all)), ones, control("clock"));
    for (std::size_t r = 0; r < ranks; ++r) {
      differences[r].push_back(static_cast<double>(static_cast<std::int64_t>(all[r] - all[0])) / 1e9);
    }
  }
  std::vector<double> offsets;
  for (const std::vector<double>& of_rank : differences) offsets.push_back(median(of_rank));
  return offsets;
}

/// The plan of rank 0 for all ranks, with sizes that fit into its memory for that many ranks.
BandwidthPlan agree_on_plan(comm::Communicator& group, const BandwidthPlan& plan) {
  const auto ranks = static_cast<std::uint64_t>(group.world_size());
  std::uint64_t largest = plan.to_bytes;
  if (const std::optional<std::uint64_t> free = available_memory_bytes()) {
    largest = std::min(largest, *free / kMemoryShare / kBuffersPerRank / ranks);
  }
  std::array<std::uint64_t, 4> values = {plan.from_bytes, largest, static_cast<std::uint64_t>(plan.repetitions),
                                         static_cast<std::uint64_t>(plan.longest.count())};
  group.broadcast(comm::Tensor(std::span<std::uint64_t>(values)), 0, control("plan"));
  return {values[0], values[1], static_cast<int>(values[2]), std::chrono::milliseconds(values[3]), plan.memory};
}

nlohmann::ordered_json facts_json(const RankFacts& facts) {
  nlohmann::ordered_json record;
  record["host"] = facts.host;
  record["cores"] = facts.cores;
  record["build"] = facts.build;
  record["findings"] = nlohmann::ordered_json::array();
  for (const Finding& finding : facts.findings) record["findings"].push_back(to_json(finding));
  return record;
}

/// Paths and messages of the system need not be UTF-8.
std::string facts_text(const RankFacts& facts) {
  return facts_json(facts).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

RankFacts facts_from_json(const nlohmann::json& record) {
  RankFacts facts;
  facts.host = record.at("host");
  facts.cores = record.at("cores").get<std::vector<int>>();
  facts.build = record.at("build");
  for (const nlohmann::json& finding : record.at("findings")) facts.findings.push_back(finding_from_json(finding));
  return facts;
}

/// The ranks that are on each machine.
std::map<std::string, std::vector<std::size_t>> ranks_of_hosts(const std::vector<RankFacts>& ranks) {
  std::map<std::string, std::vector<std::size_t>> hosts;
  for (std::size_t r = 0; r < ranks.size(); ++r) hosts[ranks[r].host].push_back(r);
  return hosts;
}

Finding hosts_finding(const std::vector<RankFacts>& ranks) {
  const auto hosts = ranks_of_hosts(ranks);
  std::string seen = std::to_string(ranks.size()) + (ranks.size() == 1 ? " rank on " : " ranks on ") +
                     std::to_string(hosts.size()) + (hosts.size() == 1 ? " machine: " : " machines: ");
  const char* separator = "";
  for (const auto& [host, members] : hosts) {
    seen += separator + host + " (" + std::to_string(members.size()) + ")";
    separator = ", ";
  }
  return {"hosts", "", Health::kOk, seen, ""};
}

Finding cores_finding(const std::vector<RankFacts>& ranks, int threads_per_rank) {
  Finding finding{"cores", "", Health::kOk, "", ""};
  for (const auto& [host, members] : ranks_of_hosts(ranks)) {
    std::set<int> cores;  // ranks may have the same ones, or each its own
    for (const std::size_t r : members) cores.insert(ranks[r].cores.begin(), ranks[r].cores.end());
    const std::size_t threads = members.size() * static_cast<std::size_t>(threads_per_rank);
    finding.seen += (finding.seen.empty() ? "" : "; ") + host + ": " + std::to_string(members.size()) + " x " +
                    std::to_string(threads_per_rank) + " threads on " + std::to_string(cores.size()) + " cores";
    if (threads <= cores.size()) continue;
    finding.health = Health::kWarning;
    finding.advice =
        "results are the same, but threads take turns: for speed choose a smaller /backend/threads_per_rank or fewer "
        "ranks in /parallel, or use more cores";
  }
  return finding;
}

Finding builds_finding(const std::vector<RankFacts>& ranks) {
  std::string other;
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    if (ranks[r].build == ranks[0].build) continue;
    other += "; rank " + std::to_string(r) + " on " + ranks[r].host + " has " + ranks[r].build;
  }
  if (other.empty()) return {"builds", "", Health::kOk, "all ranks have " + ranks[0].build, ""};
  return {"builds", "", Health::kFailed, "rank 0 has " + ranks[0].build + other, "install one build on all machines"};
}

std::string seconds_text(double seconds) {
  std::array<char, 32> text{};
  if (seconds < 1e-3) {
    std::snprintf(text.data(), text.size(), "%.3g us", seconds * 1e6);
  } else if (seconds < 1) {
    std::snprintf(text.data(), text.size(), "%.3g ms", seconds * 1e3);
  } else {
    std::snprintf(text.data(), text.size(), "%.3g s", seconds);
  }
  return text.data();
}

Finding clocks_finding(const GroupReport& report) {
  std::size_t farthest = 0;
  for (std::size_t r = 0; r < report.clock_offsets_seconds.size(); ++r) {
    if (std::abs(report.clock_offsets_seconds[r]) > std::abs(report.clock_offsets_seconds[farthest])) farthest = r;
  }
  const double skew = report.clock_offsets_seconds[farthest];
  if (std::abs(skew) <= kMostClockSkewSeconds) {
    return {"clocks", "", Health::kOk, "wall clocks within " + seconds_text(std::abs(skew)), ""};
  }
  return {"clocks", "", Health::kWarning,
          "the clock of rank " + std::to_string(farthest) + " on " + report.ranks[farthest].host + " is " +
              seconds_text(std::abs(skew)) + (skew > 0 ? " ahead" : " behind"),
          "times in records will not fit together: let NTP or chrony set the clocks"};
}

std::string gigabytes_per_second(double bytes_per_second) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g GB/s", bytes_per_second / 1e9);
  return text.data();
}

Finding all_reduce_finding(const GroupReport& report) {
  if (report.points.empty()) {
    return {"all-reduce", "", Health::kSkipped, "no size was left to measure", "give a smaller --from-bytes"};
  }
  for (const BandwidthPoint& point : report.points) {
    if (point.wrong_elements == 0) continue;
    return {"all-reduce", "", Health::kFailed,
            bytes_text(point.bytes) + ": " + std::to_string(point.wrong_elements) + " elements are not the sum",
            "do not trust any run here: look for broken memory or network hardware, or report a bug"};
  }
  const BandwidthPoint& first = report.points.front();
  const BandwidthPoint& last = report.points.back();
  const auto ranks = static_cast<int>(report.ranks.size());
  std::string seen = "sums are right; " + bytes_text(first.bytes) + " in " + seconds_text(first.median_seconds) + ", " +
                     bytes_text(last.bytes) + " at " +
                     gigabytes_per_second(algorithm_bandwidth(last.bytes, last.median_seconds)) + ", on the bus " +
                     gigabytes_per_second(bus_bandwidth(last.bytes, last.median_seconds, ranks));
  if (report.left_out_above_bytes != 0) {
    seen += "; sizes above " + bytes_text(report.left_out_above_bytes) + " were left out to spare memory";
  }
  return {"all-reduce", "", Health::kOk, seen, ""};
}

}  // namespace

RankFacts own_facts() {
  const Provenance build = build_provenance();
  RankFacts facts;
  facts.host = build.host;
  facts.cores = comm::allowed_cores();
  facts.build = "droptest " + build.version + " (" + build.commit + ")";
  for (const auto& [name, version] : build.libraries) facts.build += ", " + name + " " + version;
  return facts;
}

nlohmann::ordered_json to_json(const GroupReport& report) {
  nlohmann::ordered_json record;
  record["ranks"] = nlohmann::ordered_json::array();
  for (const RankFacts& facts : report.ranks) record["ranks"].push_back(facts_json(facts));
  record["clock_offsets_seconds"] = report.clock_offsets_seconds;
  record["points"] = nlohmann::ordered_json::array();
  for (const BandwidthPoint& point : report.points) {
    record["points"].push_back({{"bytes", point.bytes},
                                {"repetitions", point.repetitions},
                                {"median_seconds", point.median_seconds},
                                {"wrong_elements", point.wrong_elements}});
  }
  record["left_out_above_bytes"] = report.left_out_above_bytes;
  return record;
}

GroupReport group_report_from_json(const nlohmann::json& record) {
  GroupReport report;
  for (const nlohmann::json& facts : record.at("ranks")) report.ranks.push_back(facts_from_json(facts));
  report.clock_offsets_seconds = record.at("clock_offsets_seconds").get<std::vector<double>>();
  for (const nlohmann::json& point : record.at("points")) {
    report.points.push_back(
        {point.at("bytes"), point.at("repetitions"), point.at("median_seconds"), point.at("wrong_elements")});
  }
  report.left_out_above_bytes = record.at("left_out_above_bytes");
  return report;
}

GroupReport examine_group(comm::Communicator& group, const RankFacts& own, const BandwidthPlan& plan) {
  GroupReport report;
  for (const std::string& text : comm::gather_texts(facts_text(own), group, "facts")) {
    report.ranks.push_back(facts_from_json(nlohmann::json::parse(text)));
  }
  report.clock_offsets_seconds = measure_clock_offsets(group);
  const BandwidthPlan agreed = agree_on_plan(group, plan);
  if (agreed.to_bytes < plan.to_bytes) report.left_out_above_bytes = agreed.to_bytes;
  report.points = measure_all_reduce(group, message_sizes(agreed), agreed);
  return report;
}

bool on_one_host(const GroupReport& report) { return ranks_of_hosts(report.ranks).size() == 1; }

std::vector<Finding> group_findings(const GroupReport& report, int threads_per_rank) {
  std::vector<Finding> findings = {hosts_finding(report.ranks), cores_finding(report.ranks, threads_per_rank),
                                   builds_finding(report.ranks), clocks_finding(report), all_reduce_finding(report)};
  const std::vector<Finding>& first = report.ranks.front().findings;
  const bool one_host = on_one_host(report);
  for (std::size_t r = 1; r < report.ranks.size(); ++r) {
    for (Finding finding : report.ranks[r].findings) {
      if (one_host && finding.check == kHostNameCheck) continue;
      const bool known = std::any_of(first.begin(), first.end(), [&finding](const Finding& other) {
        return other.check == finding.check && other.health == finding.health && other.seen == finding.seen;
      });
      if (known) continue;
      finding.about = "rank " + std::to_string(r) + " on " + report.ranks[r].host;
      findings.push_back(std::move(finding));
    }
  }
  return findings;
}

}  // namespace droptest::experiments
