// SPDX-License-Identifier: Apache-2.0
#include "experiments/cli/watch_frame.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "experiments/cli/outcome_text.h"

namespace droptest::cli {
namespace {

using experiments::WatchedRun;
using nlohmann::json;

constexpr std::size_t kMostAnomalies = WatchedRun::kLastEvents;
constexpr std::size_t kMostUnreadable = 8;

std::uint64_t count_anomalies(const WatchedRun& run) {
  std::uint64_t all = 0;
  for (const auto& [kind, count] : run.events()) all += count;
  return all;
}

/// Control characters of records' texts must not move the cursor.
std::string printable(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text;
}

std::string cut_to(std::string line, std::size_t columns) {
  if (line.size() <= columns) return line;
  while (columns > 0 && (static_cast<unsigned char>(line[columns]) & 0xc0U) == 0x80U) --columns;
  line.resize(columns);
  return line;
}

/// The first and last bytes of a text, at most so many.
std::string without_middle(std::string text, std::size_t most) {
  constexpr std::string_view kCut = "...";
  if (text.size() <= most || most <= kCut.size()) return text;
  const std::size_t kept = most - kCut.size();
  std::size_t tail = text.size() - kept / 2;
  while (tail < text.size() && (static_cast<unsigned char>(text[tail]) & 0xc0U) == 0x80U) ++tail;
  return cut_to(text, kept - kept / 2) + std::string(kCut) + text.substr(tail);
}

/// Shortens the texts of the first column so that the other columns can be seen.
void shorten_names(std::vector<std::vector<std::string>>& table, std::size_t columns) {
  std::size_t others = 0;
  for (std::size_t c = 1; c < table[0].size(); ++c) {
    std::size_t width = 0;
    for (const std::vector<std::string>& row : table) width = std::max(width, row[c].size());
    others += width + 2;
  }
  constexpr std::size_t kLeast = 24;  // shortest length of a name; its end may then hide the last columns
  const std::size_t room = std::max(kLeast, columns > others ? columns - others : 0);
  for (std::vector<std::string>& row : table) row[0] = without_middle(std::move(row[0]), room);
}

std::string percent_text(const std::optional<double>& rate) {
  if (!rate) return "-";
  char text[32];
  std::snprintf(text, sizeof text, *rate != 0 && *rate < 1e-4 ? "%.3g %%" : "%.2f %%", 100 * *rate);
  return text;
}

std::string speed_text(const std::optional<double>& speed) {
  return speed ? std::to_string(std::llround(*speed)) : std::string("-");
}

/// The heading: "54 runs: 30 completed, 2 running, 22 waiting; 61000 tokens/s; 3 min 20 s left".
std::string heading(const experiments::WatchedRuns& all) {
  const auto runs = all.runs();
  std::map<WatchedRun::State, std::size_t> counts;
  double speed = 0;
  double done = 0;
  double spent = 0;
  double left = 0;
  std::size_t going = 0;
  std::uint64_t wanted = 0;
  for (const WatchedRun* run : runs) wanted = std::max(wanted, run->steps());
  for (const WatchedRun* run : runs) {
    ++counts[run->state()];
    const double steps = static_cast<double>(run->steps() == 0 ? wanted : run->steps());
    if (!run->has_ended()) left += std::max(0.0, steps - static_cast<double>(run->step()));
    if (run->state() == WatchedRun::State::kRunning) {
      ++going;
      speed += run->tokens_per_second().value_or(0);
    }
    if (run->has_lines()) {
      done += static_cast<double>(run->step());
      spent += run->last_line().value("seconds", 0.0);
    }
  }
  std::string text = all.folder() + ": " + std::to_string(runs.size()) + (runs.size() == 1 ? " run" : " runs");
  std::string comma = ": ";
  for (const auto& [state, count] : counts) {
    text += comma + std::to_string(count) + " " + std::string(experiments::state_name(state));
    comma = ", ";
  }
  if (speed > 0) text += "; " + speed_text(speed) + " tokens/s";
  // Waiting runs take turns on the places of the runs that go on now.
  if (going > 0 && done > 0 && left > 0) {
    text += "; " + duration_text(left * spent / done / static_cast<double>(going)) + " left";
  }
  return text;
}

/// The state of a run that has not ended; on another machine with the age of its last line, by which it is judged.
std::string state_text(const WatchedRun& run) {
  std::string text(experiments::state_name(run.state()));
  if (run.holder() && run.holder()->silent_seconds) {
    text += " (" + duration_text(*run.holder()->silent_seconds) + " ago" +
            run.holder()->name.substr(run.holder()->name.find(" on host ")) + ")";
  }
  return printable(std::move(text));
}

std::vector<std::string> run_row(const WatchedRun& run, const std::string& experiment) {
  const std::string name = run.point().empty() ? run.run_id() : run.title();
  const auto left = run.seconds_left();
  const bool goes_on = run.state() == WatchedRun::State::kRunning;
  return {printable(run.experiment() == experiment ? name : run.experiment() + ": " + name),
          run.seed(),
          run.has_ended() ? status_text(run.summary()) : state_text(run),
          std::to_string(run.step()) + "/" + (run.steps() == 0 ? "-" : std::to_string(run.steps())),
          loss_text(run.last("train_loss")),
          loss_text(run.last("validation_loss")),
          percent_text(run.realised_loss_rate()),
          speed_text(run.tokens_per_second()),
          goes_on && left ? duration_text(*left) : "-",
          std::to_string(count_anomalies(run))};
}

/// The runs that go on first, then those that ended otherwise than planned, then the others as they are listed.
std::vector<const WatchedRun*> in_order_of_interest(std::vector<const WatchedRun*> runs) {
  const auto rank = [](const WatchedRun* run) {
    using enum WatchedRun::State;
    static constexpr std::array kOrder = {kRunning, kFailed, kDiverged, kStopped, kCompleted, kWaiting};
    return std::find(kOrder.begin(), kOrder.end(), run->state()) - kOrder.begin();
  };
  std::stable_sort(runs.begin(), runs.end(),
                   [&rank](const WatchedRun* a, const WatchedRun* b) { return rank(a) < rank(b); });
  return runs;
}

/// A line: "step 120, seed 1, bernoulli ...: loss spike: train_loss is 5.1 (robust z 12.1, threshold 8): ...".
std::string anomaly_line(const WatchedRun& run, const json& event) {
  return printable("step " + event.at("step").dump() + ", " + (run.point().empty() ? run.run_id() : run.title()) +
                   ", seed " + run.seed() + ": " + event.at("message").get<std::string>());
}

}  // namespace

std::string watch_frame(const experiments::WatchedRuns& all, std::size_t columns, std::size_t rows) {
  const std::vector<const WatchedRun*> runs = in_order_of_interest(all.runs());
  std::vector<std::pair<double, std::string>> anomalies;
  std::uint64_t all_anomalies = 0;
  for (const WatchedRun* run : runs) {
    all_anomalies += count_anomalies(*run);
    for (const json& event : run->last_events()) {
      anomalies.emplace_back(run->started() + event.value("seconds", 0.0), anomaly_line(*run, event));
    }
  }
  std::stable_sort(anomalies.begin(), anomalies.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  const std::size_t shown_anomalies = std::min(anomalies.size(), kMostAnomalies);
  std::vector<std::string> unreadable;
  for (std::string& problem : all.unreadable()) unreadable.push_back(printable(std::move(problem)));
  const std::size_t shown_unreadable = std::min(unreadable.size(), kMostUnreadable);
  const std::size_t taken =
      4 + (shown_anomalies == 0 ? 0 : shown_anomalies + 2) + (shown_unreadable == 0 ? 0 : shown_unreadable + 2);
  const std::size_t shown = std::min(runs.size(), std::max<std::size_t>(rows > taken ? rows - taken : 1, 1));

  const std::string experiment = runs.empty() ? "" : runs.front()->experiment();
  std::vector<std::vector<std::string>> table = {{"run", "seed", "state", "step", "training loss", "validation loss",
                                                  "loss rate", "tokens/s", "time left", "anomalies"}};
  for (std::size_t i = 0; i < shown; ++i) table.push_back(run_row(*runs[i], experiment));
  shorten_names(table, columns);
  std::string text = heading(all) + "\n\n" + table_text(table);
  if (shown < runs.size()) text += "and " + std::to_string(runs.size() - shown) + " more\n";
  if (shown_anomalies != 0) {
    text += "\nanomalies, the last " + std::to_string(shown_anomalies) + " of " + std::to_string(all_anomalies) + ":\n";
    for (std::size_t i = anomalies.size() - shown_anomalies; i < anomalies.size(); ++i) {
      text += anomalies[i].second + "\n";
    }
  }
  if (shown_unreadable != 0) {
    text += "\nleft out: what this version does not read in " + std::to_string(unreadable.size()) +
            " files, the first " + std::to_string(shown_unreadable) + ":\n";
    for (std::size_t i = 0; i < shown_unreadable; ++i) text += unreadable[i] + "\n";
  }
  std::string frame;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = text.find('\n', begin);
    frame += cut_to(text.substr(begin, end - begin), columns) + "\n";
    begin = end + 1;
  }
  return frame;
}

}  // namespace droptest::cli
