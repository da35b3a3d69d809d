// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/metrics_tail.h"

#include <sys/stat.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

namespace droptest::experiments {

/// Whether the file has the last line that was taken in, at its place.
bool MetricsTail::goes_on(std::istream& file) const {
  std::string there(last_line_.size(), '\0');
  file.seekg(offset_ - static_cast<std::streamoff>(there.size()));
  return file.read(there.data(), static_cast<std::streamsize>(there.size())) && there == last_line_;
}

void MetricsTail::read(const std::function<void(std::string line)>& take) {
  struct stat before {};
  if (::stat(path_.c_str(), &before) != 0) return;
  std::ifstream file(path_, std::ios::binary);
  if (!file) return;
  // A run that continues from a checkpoint has a new file, without the lines after it.
  struct stat status {};
  if (::stat(path_.c_str(), &status) != 0 || status.st_ino != before.st_ino) return;  // replaced meanwhile
  if (status.st_ino != inode_ || !goes_on(file)) {
    inode_ = status.st_ino;
    offset_ = 0;
    last_line_.clear();
    lines_ = 0;
    bad_line_.clear();
    ++files_;
  }
  file.clear();
  file.seekg(offset_);
  for (std::string line; std::getline(file, line);) {
    // A line without its end is still being written; it is read again next time.
    if (file.eof()) break;
    last_line_ = line + "\n";
    offset_ += static_cast<std::streamoff>(last_line_.size());
    ++lines_;
    take(std::move(line));
  }
}

void MetricsTail::note_bad_line(std::uint64_t number) {
  if (bad_line_.empty()) bad_line_ = "line " + std::to_string(number) + ": no JSON object";
}

void MetricsTail::take_text(std::uint64_t number, const std::string& line, const Shorten& shorten, const Take& take) {
  nlohmann::json value = shorten(line);
  const bool is_checked = value.is_object();
  if (!is_checked) value = nlohmann::json::parse(line, nullptr, false);
  if (line.find('\0') != std::string::npos) value = nullptr;  // the parser takes it for the end of the line
  if (!value.is_object()) return note_bad_line(number);
  if (value.contains("step") && value.at("step").is_number_unsigned()) step_ = value.at("step");
  if (value.contains("train_loss") && value.at("train_loss").is_number()) train_loss_ = value.at("train_loss");
  take({number, std::move(value), is_checked});
}

void MetricsTail::update(const Take& take) {
  const auto whole = [](const std::string&) { return nlohmann::json(); };
  read([&](const std::string& line) { take_text(lines_, line, whole, take); });
}

void MetricsTail::update_to_last(const std::vector<std::string>& members, const Shorten& shorten, const Take& take) {
  struct Line {
    std::uint64_t number = 0;  ///< 0: there is none yet
    std::string text;
  };
  std::vector<Line> last_with(members.size());
  Line last;
  read([&](std::string line) {
    if (!line.starts_with('{') || !line.ends_with('}')) return note_bad_line(lines_);
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (line.find('"' + members[i] + '"') != std::string::npos) last_with[i] = {lines_, line};
    }
    last = {lines_, std::move(line)};
  });
  std::map<std::uint64_t, std::string> wanted;
  last_with.push_back(std::move(last));
  for (Line& line : last_with) {
    if (line.number > 0) wanted[line.number] = std::move(line.text);
  }
  for (const auto& [number, text] : wanted) take_text(number, text, shorten, take);
}

}  // namespace droptest::experiments
