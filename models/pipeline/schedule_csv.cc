// SPDX-License-Identifier: Apache-2.0
#include "models/pipeline/schedule_csv.h"

#include <charconv>
#include <cstddef>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

#include "models/pipeline/schedule_timing.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

constexpr std::string_view kPair = "OVERLAP_F_B";

/// One cell, with its place in the file for errors.
class Cell {
 public:
  Cell(std::string_view text, std::string where) : text_(text), where_(std::move(where)) {}

  std::vector<Action> actions() const {
    if (!text_.starts_with('(')) return {action(text_)};
    const std::size_t end = text_.find(')');
    const std::size_t middle = text_.find(';');
    if (end == std::string_view::npos || middle > end || text_.substr(end + 1) != kPair) fail();
    Action second = action(text_.substr(middle + 1, end - middle - 1));
    second.joins_previous = true;
    return {action(text_.substr(1, middle - 1)), second};
  }

 private:
  Action action(std::string_view text) const {
    Action action;
    const char* const end = text.data() + text.size();
    const auto stage = std::from_chars(text.data(), end, action.stage);
    if (stage.ec != std::errc() || stage.ptr == end || action.stage < 0) fail();
    const std::size_t kind = std::string_view("FIWB").find(*stage.ptr);
    if (kind == std::string_view::npos) fail();
    action.kind = static_cast<Action::Kind>(kind);
    const auto micro_batch = std::from_chars(stage.ptr + 1, end, action.micro_batch);
    if (micro_batch.ec != std::errc() || micro_batch.ptr != end || action.micro_batch < 0) fail();
    return action;
  }
  [[noreturn]] void fail() const {
    throw ConfigError(where_ + ": got \"" + std::string(text_) +
                      "\", want stage, F, I, W or B, and micro-batch as in \"2F0\", or two of them as in "
                      "\"(0F7;7B3)OVERLAP_F_B\", or nothing; messages follow from these");
  }

  std::string_view text_;
  std::string where_;
};

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\"");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\"") - first + 1);
}

/// The parts of a text between separators; none if the text is empty.
std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    text = end == std::string_view::npos ? std::string_view{} : text.substr(end + 1);
  }
  return parts;
}

}  // namespace

PipelineSchedule schedule_from_csv(std::string_view text, const std::string& name) {
  PipelineSchedule schedule;
  const std::vector<std::string_view> lines = split(text, '\n');
  for (std::size_t line = 0; line < lines.size(); ++line) {
    std::vector<Action> row;
    const std::vector<std::string_view> cells = split(lines[line], ',');
    for (std::size_t column = 0; column < cells.size(); ++column) {
      const std::string_view content = trimmed(cells[column]);
      if (content.empty()) continue;
      const Cell cell(content, name + ": line " + std::to_string(line + 1) + ", cell " + std::to_string(column + 1));
      for (const Action& action : cell.actions()) row.push_back(action);
    }
    schedule.ranks.push_back(std::move(row));
  }
  return schedule;
}

std::string csv_of(const PipelineSchedule& schedule) {
  std::ostringstream csv;
  const ScheduleTiming timing = time_schedule(schedule, {});
  for (const auto& row : timing.ranks) {
    std::vector<std::string> cells;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (row[i].action.joins_previous) continue;
      const bool has_pair = i + 1 < row.size() && row[i + 1].action.joins_previous;
      cells.resize(static_cast<std::size_t>(row[i].begin) + 1);
      cells.back() = has_pair ? "(" + row[i].action.text() + ";" + row[i + 1].action.text() + ")" + std::string(kPair)
                              : row[i].action.text();
    }
    for (std::size_t i = 0; i < cells.size(); ++i) csv << (i == 0 ? "" : ",") << cells[i];
    csv << '\n';
  }
  return csv.str();
}

}  // namespace droptest::models
