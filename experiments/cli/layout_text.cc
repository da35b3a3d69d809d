// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/layout_text.h"

#include <algorithm>
#include <cstdint>
#include <iomanip>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>
#include <vector>

#include "experiments/cli/outcome_text.h"

namespace droptest::cli {
namespace {

using nlohmann::json;

using Rows = std::vector<std::vector<std::string>>;

std::string joined(const json& list, const std::string& between) {
  std::string text;
  for (const json& item : list)
    text += (text.empty() ? "" : between) + (item.is_string() ? item.get<std::string>() : item.dump());
  return text;
}

/// A group in words: "{0, 2, 4, 6}"; the middle of a large one is left out.
std::string group_text(const json& group) {
  constexpr std::size_t kMost = 8;
  if (group.size() <= kMost) return "{" + joined(group, ", ") + "}";
  return "{" + group[0].dump() + ", " + group[1].dump() + ", " + group[2].dump() + ", ..., " + group.back().dump() +
         "}";
}

/// "h.3.mlp.c_fc" becomes {"h.*.mlp.c_fc", 3}; other names stay, without a block.
std::pair<std::string, int> without_block(const std::string& name) {
  if (!name.starts_with("h.")) return {name, -1};
  const std::size_t end = name.find('.', 2);
  return {"h.*" + name.substr(end), std::stoi(name.substr(2, end - 2))};
}

/// Lines that differ only by the block in their first column become one, with the range of blocks.
Rows folded(const Rows& rows) {
  struct Line {
    std::vector<std::string> row;
    int first, last;
  };
  std::vector<Line> lines;
  for (std::vector<std::string> row : rows) {
    const std::pair<std::string, int> found = without_block(row[0]);
    const int block = found.second;
    row[0] = found.first;
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const Line& line) {
      return block >= 0 && line.last == block - 1 && line.row == row;
    });
    if (same != lines.end()) {
      same->last = block;
    } else {
      lines.push_back({std::move(row), block, block});
    }
  }
  Rows result;
  for (Line& line : lines) {
    std::string& name = line.row[0];
    if (line.first >= 0) {
      const std::string blocks = line.first == line.last
                                     ? std::to_string(line.first)
                                     : "{" + std::to_string(line.first) + ".." + std::to_string(line.last) + "}";
      name.replace(name.find('*'), 1, blocks);
    }
    result.push_back(std::move(line.row));
  }
  return result;
}

/// The different values of a member, in the order of the ranks: "[768,384] or [768,192]".
std::string different(const json& ranks, const char* member) {
  json values = json::array();
  for (const json& rank : ranks) {
    if (std::find(values.begin(), values.end(), rank.at(member)) == values.end()) values.push_back(rank.at(member));
  }
  return joined(values, " or ");
}

/// "all_gather" becomes "all-gather".
std::string words(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string collectives_text(const json& list) {
  std::string text;
  std::map<std::pair<std::string, std::string>, std::uint64_t> bytes;  // bytes by class and operation
  for (const json& one : list) bytes[{one["class"], one["collective"]}] += one["bytes"].get<std::uint64_t>();
  for (const auto& [kind, sum] : bytes) {
    text += (text.empty() ? "" : ", ") + words(kind.second) + ", " + kind.first + ", " + std::to_string(sum) + " bytes";
  }
  return text.empty() ? "none" : text;
}

/// A share in words: "12.5 %".
std::string idle_text(double share) {
  std::ostringstream text;
  text << std::setprecision(3) << 100 * share << " %";
  return text.str();
}

/// A line for each rank, a column for each unit of time: F, I and W take one, B takes two.
std::string schedule_text(const json& schedule) {
  std::vector<std::vector<std::string>> lines;
  std::size_t width = 0;
  std::istringstream csv(schedule.at("csv").get<std::string>());
  for (std::string line; std::getline(csv, line);) {
    std::vector<std::string>& cells = lines.emplace_back();
    std::istringstream row(line);
    std::string second;
    for (std::string cell; std::getline(row, cell, ',');) {
      if (!second.empty()) cell = std::exchange(second, "");
      if (cell.starts_with('(')) {  // a pair: the forward pass takes a unit, and the other one follows
        second = cell.substr(cell.find(';') + 1, cell.find(')') - cell.find(';') - 1);
        cell = cell.substr(1, cell.find(';') - 1);
      }
      width = std::max(width, cell.size());
      cells.push_back(std::move(cell));
    }
  }
  std::string text = "schedule: micro-batches in flight " + joined(schedule.at("in_flight"), ", ") + "; idle " +
                     idle_text(schedule.at("idle_share")) + " of the ranks' time where links cost nothing\n";
  for (const std::vector<std::string>& cells : lines) {
    std::string line;
    for (const std::string& cell : cells) {
      line += (line.empty() ? "" : " ") + (cell.empty() ? "." : cell) +
              std::string(width - std::max<std::size_t>(1, cell.size()), ' ');
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace

std::string layout_text(const json& plan) {
  const json& layout = plan.at("layout");
  std::vector<std::string> used;
  std::string product;
  for (const json& dimension : layout.at("order")) {
    const auto name = dimension.get<std::string>();
    if (layout.at(name) == 1) continue;
    used.push_back(name);
    product += (product.empty() ? "" : " x ") + name + " " + layout.at(name).dump();
  }
  std::string text = layout.at("world_size").dump() + (layout.at("world_size") == 1 ? " rank" : " ranks");
  if (!used.empty()) text += ": " + product + (used.size() > 1 ? ", numbered in this order" : "");
  if (layout.at("zero") != 0) text += ", ZeRO " + layout.at("zero").dump();
  text += "\n";
  for (const auto& [name, groups] : plan.at("groups").items()) {
    text += name + ": " + std::to_string(groups.size()) + (groups.size() == 1 ? " group" : " groups") + " of " +
            std::to_string(groups[0].size()) + ", first " + group_text(groups[0]) +
            (groups.size() > 1 ? ", last " + group_text(groups.back()) : "") + "\n";
  }

  Rows ranks = {{"rank"}};
  ranks[0].insert(ranks[0].end(), used.begin(), used.end());
  ranks[0].insert(ranks[0].end(), {"blocks", "parameters", "updated"});
  for (const std::string& name : used) ranks[0].push_back(name + " neighbours");
  const json sequence = plan.value("sequence", json());
  if (!sequence.is_null()) ranks[0].insert(ranks[0].end(), {"tokens", "forward", "backward"});
  for (const json& rank : plan.at("ranks")) {
    std::vector<std::string>& row = ranks.emplace_back();
    row.push_back(rank.at("rank").dump());
    for (const std::string& name : used) row.push_back(rank.at("coordinates").at(name).dump());
    std::string blocks;
    for (const json& stage : rank.at("blocks")) {
      const int first = stage[0];
      const int last = stage[1].get<int>() - 1;
      blocks +=
          (blocks.empty() ? "" : ", ") + std::to_string(first) + (last > first ? " to " + std::to_string(last) : "");
    }
    row.push_back(blocks);
    row.push_back(rank.at("parameters").dump());
    row.push_back(rank.at("updated_parameters").dump());
    for (const std::string& name : used) {
      const json& ends = rank.at("neighbours").at(name);
      const auto end = [&ends](const char* side) { return ends.at(side).is_null() ? "-" : ends.at(side).dump(); };
      row.push_back(end("previous") + ", " + end("next"));
    }
    if (sequence.is_null()) continue;
    std::string tokens;
    for (const json& range : rank.at("tokens")) {
      tokens +=
          (tokens.empty() ? "" : ", ") + range[0].dump() + " to " + std::to_string(range[1].get<std::int64_t>() - 1);
    }
    row.push_back(tokens.empty() ? "none" : tokens);
    const auto place = rank.at("coordinates").at("sequence").get<std::size_t>();
    row.push_back(sequence.at("forward_bytes").at(place).dump());
    row.push_back(sequence.at("backward_bytes").at(place).dump());
  }
  if (!sequence.is_null()) {
    text += "\nattention over sequence ranks: ulysses " + sequence.at("ulysses").dump() + " x ring " +
            sequence.at("ring").dump() + (sequence.at("zigzag") == true ? ", zigzag" : "") +
            "; forward and backward: bytes that a rank sends in one block and micro-batch\n";
  }
  text += "\n" + table_text(ranks);

  Rows tensors;
  for (const json& tensor : plan.at("tensors")) {
    tensors.push_back({tensor.at("name"), tensor.at("sharding"), tensor.at("shape").dump(),
                       different(tensor.at("of_tensor_rank"), "shape"),
                       different(tensor.at("of_tensor_rank"), "parameters"), joined(tensor.at("stages"), ", ")});
  }
  tensors = folded(tensors);
  tensors.insert(tensors.begin(), {"tensor", "sharding", "shape", "shape per rank", "parameters per rank", "stage"});
  text += "\n" + table_text(tensors);

  Rows layers;
  for (const json& layer : plan.at("layers")) {
    layers.push_back({layer.at("layer"), collectives_text(layer.at("forward")), collectives_text(layer.at("backward")),
                      words(layer.at("gradients")), words(layer.at("parameters"))});
  }
  layers = folded(layers);
  layers.insert(layers.begin(), {"layer", "forward", "backward", "gradients", "parameters"});
  text += "\n" + table_text(layers);
  if (!plan.at("schedule").is_null()) text += "\n" + schedule_text(plan.at("schedule"));
  return text;
}

}  // namespace droptest::cli
