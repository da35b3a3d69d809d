// SPDX-License-Identifier: Apache-2.0
#include "experiments/records/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "experiments/files/atomic_file.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::fail_on_file;
using comm::finite_or_null;
using nlohmann::json;

constexpr std::size_t kCopyBytes = std::size_t{1} << 16;  // buffer for a file that is copied

json to_json(const Divergence& divergence) {
  return {{"max", finite_or_null(divergence.max)}, {"rms", finite_or_null(divergence.rms)}};
}

void put_number(json& out, const char* name, const std::optional<double>& value) {
  if (value) out[name] = finite_or_null(*value);
}
template <class Count>
void put_number(json& out, const char* name, const std::optional<Count>& value) {
  if (value) out[name] = *value;
}
void put_number(json& out, const char* name, std::uint64_t count) {
  if (count != 0) out[name] = count;
}

/// Calls take(text, name) for each line that ends with a newline, without it, until take returns false; `name` names
/// the line in messages.
template <class Take>
void for_each_whole_line(const std::string& path, const Take& take) {
  std::ifstream file(path, std::ios::binary);
  if (!file) fail_on_file("read", path, errno);
  std::size_t number = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    if (!take(line, path + ": line " + std::to_string(++number))) return;
  }
  if (file.bad()) fail_on_file("read", path, errno);
}

}  // namespace

json to_json(const RankUsage& usage) {
  json out = {{"resident_bytes", usage.resident_bytes}, {"cpu_seconds", usage.cpu_seconds},
              {"cpu_percent", usage.cpu_percent},       {"busy_seconds", usage.busy_seconds},
              {"sent_bytes", usage.sent_bytes},         {"sent_bytes_per_second", usage.sent_bytes_per_second}};
  if (usage.device_bytes) out["device_bytes"] = *usage.device_bytes;
  if (!usage.phase_seconds.empty()) {
    out["wall_seconds"] = {{"phases", usage.phase_seconds}, {"communication", usage.communication_seconds}};
  }
  return out;
}

json to_json_line(const MetricsLine& line) {
  json out = {{"step", line.step}, {"tokens", line.tokens}, {"seconds", line.seconds}};
  line.visit_numbers([&out](const char* name, const auto& value) { put_number(out, name, value); });
  if (!line.classification.is_null()) out["classification"] = line.classification;
  if (line.divergence) {
    out["divergence"] = to_json(*line.divergence);
    out["divergence"]["groups"] = json::object();
    for (const auto& [group, divergence] : line.divergence_groups) {
      out["divergence"]["groups"][group] = to_json(divergence);
    }
  }
  for (const auto& [name, error] : line.classes) {
    out["classes"][name] = {{"nmse", finite_or_null(error.nmse)}, {"cosine", finite_or_null(error.cosine)}};
  }
  for (const auto& [name, loss] : line.losses) {
    out["losses"][name] = {{"packets", loss.packets},
                           {"lost", loss.lost},
                           {"configured_rate", finite_or_null(loss.configured_rate)},
                           {"realised_rate", finite_or_null(loss.realised_rate)},
                           {"z", finite_or_null(loss.z)}};
  }
  if (!line.ranks.empty()) out["ranks"] = line.ranks;
  return out;
}

MetricsWriter::MetricsWriter(std::string path, int descriptor) : path_(std::move(path)), file_(descriptor) {}

MetricsWriter MetricsWriter::create(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
  if (descriptor < 0) fail_on_file("write", path, errno);
  return {path, descriptor};
}

MetricsWriter MetricsWriter::resume(const std::string& path, std::uint64_t step,
                                    const std::function<void(const json& line)>& on_line) {
  // The lines go into another file: readers of the old one notice, and a crash leaves one or the other.
  write_file_atomically(path, [&](const WritePiece& write) {
    if (!std::filesystem::exists(path)) return;
    std::string kept;
    for_each_whole_line(path, [&](const std::string& text, const std::string& name) {
      const json line = comm::parse_json(text, name);
      if (!line.is_object() || !line.contains("step") || !line["step"].is_number_unsigned()) {
        throw ConfigError(name + ": /step: got " + comm::quote_json(line) + ", want a line of metrics");
      }
      if (line["step"].get<std::uint64_t>() > step) return false;
      on_line(line);
      kept += text + "\n";
      if (kept.size() >= kCopyBytes) {
        write(kept);
        kept.clear();
      }
      return true;
    });
    write(kept);
  });
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (descriptor < 0) fail_on_file("write", path, errno);
  return {path, descriptor};
}

void MetricsWriter::append(const json& line) {
  const std::string text = comm::canonical_json(line) + "\n";
  const off_t before = ::lseek(file_.value(), 0, SEEK_END);
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t written = ::write(file_.value(), rest.data(), rest.size());
    if (written < 0) {
      if (errno == EINTR) continue;
      const int error = errno;
      // Readers leave the torn line out if even this fails.
      if (before >= 0) (void)!::ftruncate(file_.value(), before);
      fail_on_file("write", path_, error);
    }
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
}

void for_each_line(const std::string& path, const std::function<void(const json& line)>& take) {
  for_each_whole_line(path, [&take](const std::string& text, const std::string& name) {
    take(comm::parse_json(text, name));
    return true;
  });
}

void MissingLines::has(std::uint64_t step) {
  if (every_ == 0 || step < next_) return;
  if (step > next_) (void)text_up_to(step - 1);
  next_ = step / every_ * every_ + every_;
}

std::string MissingLines::text_up_to(std::uint64_t step) {
  if (every_ == 0 || next_ > step) return text_;
  const std::uint64_t last = step / every_ * every_;
  constexpr int kMostRanges = 8;
  if (++ranges_ <= kMostRanges) {
    text_ += (text_.empty() ? "" : ", ") + std::to_string(next_);
    if (last > next_) text_ += " to " + std::to_string(last);
  } else if (ranges_ == kMostRanges + 1) {
    text_ += " and more";
  }
  next_ = last + every_;
  return text_;
}

}  // namespace droptest::experiments
