// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/plan_text.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "experiments/cli/outcome_text.h"
#include "experiments/doctor/machine_checks.h"

namespace droptest::cli {
namespace {

using nlohmann::json;

/// A count in words: "1.2 million", "340".
std::string count_text(double count) {
  char text[64];
  if (count < 1e4) {
    std::snprintf(text, sizeof text, "%.0f", count);
  } else {
    const int thousands = std::min(4, static_cast<int>(std::log10(count) / 3));
    static constexpr const char* kNames[] = {"", "thousand", "million", "billion", "trillion"};
    std::snprintf(text, sizeof text, "%.3g %s", count / std::pow(1000, thousands), kNames[thousands]);
  }
  return text;
}

std::string seeds_of(const json& run) { return experiments::seeds_text(run.at("seeds")); }

std::string run_text(const PrintedPlan& plan, const json& run, const experiments::PointNames& names) {
  if (!run.at("same_as").is_null()) {
    const json same = plan.run(run.at("same_as").get<std::size_t>());
    if (same.at("point") == run.at("point")) return "the run of seed " + seeds_of(same);
    const std::string point = names.text(same.at("point"), same.at("labels"));
    return "the run of " + point + (same.at("seeds") == run.at("seeds") ? "" : ", seed " + seeds_of(same));
  }
  return run.at("run_id").is_null() ? "-" : run.at("run_id").get<std::string>();
}

std::string packets_text(const json& packets) {
  if (packets.is_null()) return "?";
  std::string text;
  for (const auto& [traffic_class, count] : packets.items()) {
    text += (text.empty() ? "" : ", ") + traffic_class + " " + count_text(count.get<double>());
  }
  return text.empty() ? "none can be lost" : text;
}

/// Whether GEMMs have 16 bits and the messages of tensor parallelism are as large as without: a spec may not mean it.
bool has_wide_messages(const json& run) {
  const json& precision = run.at("precision");
  if (precision.is_null() || precision.at("message") != "float32") return false;
  return precision.at("compute") == "bfloat16" || precision.at("compute") == "float16";
}

void print_wide_messages(std::size_t wide, std::size_t runs, std::ostream& text) {
  if (wide == 0) return;
  text << "messages of tensor parallelism are float32, though products have 16 bits: "
       << (wide == runs ? "all runs" : std::to_string(wide) + " of " + std::to_string(runs) + " runs")
       << "; /training/precision/message sets their type\n";
}

std::uint64_t process_bytes(const json& memory) {
  return memory.is_null() ? std::uint64_t{0} : memory.at("process").get<std::uint64_t>();
}

/// `memory`: that of a rank of the run that takes most, with the spec's choice and with each strategy.
void print_memory(const json& memory, std::ostream& text) {
  if (process_bytes(memory) == 0) return;
  std::vector<std::pair<const char*, const char*>> columns = {
      {"parameters", "parameters"},   {"gradients", "gradients"},
      {"optimizer", "optimizer"},     {"activations", "activations"},
      {"slot", "of a slot"},          {"offload_buffers", "offload"},
      {"collectives", "collectives"}, {"loss_layer", "loss layer"},
      {"outer", "outer steps"},       {"total", "rank"},
      {"process", "process"}};
  if (memory.at("context") != 0) {
    columns.back() = {"context", "CUDA's context"};
    columns.emplace_back("process", "device");
  }
  std::vector<std::vector<std::string>> rows = {{"memory"}};
  for (const auto& [member, title] : columns) rows[0].emplace_back(title);
  const bool asks = memory.contains("largest_micro_batch");
  if (asks) rows[0].emplace_back("largest micro-batch");
  const auto add = [&](const std::string& name, const json& of) {
    std::vector<std::string>& row = rows.emplace_back(1, name);
    for (const auto& [member, title] : columns) {
      row.push_back(experiments::bytes_text(of.at(member).get<std::uint64_t>()));
    }
    if (asks) row.push_back(of.at("largest_micro_batch").dump());
  };
  add("as the spec says", memory);
  for (const auto& [name, of] : memory.at("strategies").items()) add(name, of);
  add("all offloaded", memory.at("all_offloaded"));
  text << table_text(rows);
}

}  // namespace

std::string plan_text(const PrintedPlan& plan) {
  const json& all = plan.about;
  std::ostringstream text;
  const auto number = [](const json& of, const char* name) { return of.at(name).get<std::size_t>(); };
  const auto plural = [](std::size_t count, const std::string& noun) {
    return std::to_string(count) + " " + noun + (count == 1 ? "" : "s");
  };
  text << all.at("name").get<std::string>() << ": " << plural(plan.runs, "run") << ", "
       << plural(number(all, "points"), "point") << " with " << plural(number(all, "seeds"), "seed")
       << " each; records go to " << all.at("folder").get<std::string>() << "\n";
  const json& best_over = all.at("best_over");
  for (const json& named : all.at("names")) {
    const std::string pointer = named.at("pointer");
    const json& values = all.at("differs").at(pointer);
    const bool chosen = std::find(best_over.begin(), best_over.end(), json(pointer)) != best_over.end();
    text << (chosen ? "the best of " : "differs: ") << pointer << ": " << plural(values.size(), "value") << "\n";
  }
  if (!all.at("no_ids").is_null()) text << "no run ids: " << all.at("no_ids").get<std::string>() << "\n";
  std::vector<std::vector<std::string>> rows = {
      {"point", "seed", "steps", "least memory per rank", "packets", "time", "state", "run"}};
  const auto names = experiments::PointNames::from_json(all.at("names"));
  std::size_t wide = 0;
  json largest;  // memory plan of the largest run
  for (std::size_t i = 0; i < plan.runs; ++i) {
    const json run = plan.run(i);
    if (has_wide_messages(run)) ++wide;
    if (process_bytes(run.at("memory")) > process_bytes(largest)) largest = run.at("memory");
    const json& memory = run.at("memory_per_rank_bytes");
    const json& seconds = run.at("seconds");
    rows.push_back({names.text(run.at("point"), run.at("labels")), seeds_of(run), run.at("steps").dump(),
                    memory.is_null() ? "?" : experiments::bytes_text(memory.get<std::uint64_t>()),
                    packets_text(run.at("packets")), seconds.is_null() ? "?" : duration_text(seconds.get<double>()),
                    run.at("finished").get<bool>() ? "finished" : "to do", run_text(plan, run, names)});
  }
  text << table_text(rows);
  print_wide_messages(wide, plan.runs, text);
  print_memory(largest, text);
  const json& estimate = all.at("estimate");
  const std::size_t to_do = number(estimate, "runs");
  if (const auto bytes = estimate.at("weights_bytes").get<std::uint64_t>(); bytes != 0) {
    text << "final weights take " << experiments::bytes_text(bytes) << R"(; /record/weights "none" keeps none)"
         << "\n";
  }
  if (to_do == 0) {
    text << "nothing is to do\n";
    return text.str();
  }
  text << plural(to_do, "run") << " to do: ";
  if (estimate.at("seconds").is_null()) {
    text << "no estimate of their time: " << estimate.at("basis").get<std::string>() << "\n";
    return text.str();
  }
  text << "about " << duration_text(estimate.at("seconds").get<double>()) << " with "
       << plural(number(estimate, "jobs"), "run") << " at once, " << estimate.at("basis").get<std::string>() << "\n";
  return text.str();
}

}  // namespace droptest::cli
