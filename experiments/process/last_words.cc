// SPDX-License-Identifier: Apache-2.0
#include "experiments/process/last_words.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace droptest::experiments {
namespace {

constexpr const char* kMemoryFile = "droptest's last words";

/// The line without a prefix "[rank0]: " or "[rank0]:[W...] ".
std::string_view without_rank(std::string_view line) {
  constexpr std::string_view kRank = "[rank";
  if (!line.starts_with(kRank)) return line;
  const std::size_t end = line.find("]: ");
  return end == std::string_view::npos ? line : line.substr(end + 3);
}

/// Whether a line names an error: "ValueError: a reason", "package.SomeError: a reason", "AssertionError". torchrun's
/// "ChildFailedError:" does not count, since a rank is its cause.
bool names_an_error(std::string_view line) {
  const std::size_t end = std::min(line.find(": "), line.size());
  std::string_view name = line.substr(0, end);
  if (name.ends_with(':') || name.ends_with("ChildFailedError")) return false;
  const auto in_name = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.'; };
  return (name.ends_with("Error") || name.ends_with("Exception") || name == "KeyboardInterrupt") &&
         std::all_of(name.begin(), name.end(), in_name);
}

}  // namespace

std::string last_error(const std::string& log_path) {
  std::ifstream log(log_path);
  std::string error;
  std::string last;
  for (std::string line; std::getline(log, line);) {
    const std::string_view text = without_rank(line);
    if (names_an_error(text)) error = text;
    const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
    if (std::any_of(text.begin(), text.end(), is_letter)) last = text;
  }
  return error.empty() ? last : error;
}

std::string last_words(const std::string& log_path) {
  constexpr std::string_view kPrefix = "droptest: error: ";
  std::ifstream log(log_path);
  std::string last;
  for (std::string line; std::getline(log, line);) {
    if (!line.empty()) last = line;
  }
  return last.starts_with(kPrefix) ? last.substr(kPrefix.size()) : last;
}

SpokenWords::SpokenWords() : file_(::memfd_create(kMemoryFile, MFD_CLOEXEC)) {}

std::string SpokenWords::path() const {
  if (!file_.is_open()) return {};
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(file_.value());
}

void speak_to_parent(std::string_view message) {
  const char* path = std::getenv(kSpokenWordsVariable);
  if (path == nullptr) return;
  // This process may outlive its parent; another process may have the parent's number by now.
  std::error_code error;
  const std::string file = std::filesystem::read_symlink(path, error).string();
  if (file.starts_with(std::string("/memfd:") + kMemoryFile)) std::ofstream(path, std::ios::app) << message << "\n";
}

}  // namespace droptest::experiments
