// SPDX-License-Identifier: Apache-2.0
#include "experiments/process/last_words.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

namespace droptest::experiments {
namespace {

constexpr const char* kMemoryFile = "droptest's last words";

}  // namespace

std::string last_words(const std::string& log_path) {
  constexpr std::string_view kPrefix = "droptest: error: ";
  std::ifstream log(log_path);
  std::string last;
  for (std::string line; std::getline(log, line);) {
    if (!line.empty()) last = line;
  }
  return last.starts_with(kPrefix) ? last.substr(kPrefix.size()) : last;
}

SpokenWords::SpokenWords() : descriptor_(::memfd_create(kMemoryFile, MFD_CLOEXEC)) {}

SpokenWords::~SpokenWords() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

SpokenWords::SpokenWords(SpokenWords&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}

std::string SpokenWords::path() const {
  if (descriptor_ < 0) return {};
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(descriptor_);
}

void speak_to_parent(std::string_view message) {
  const char* path = std::getenv(kSpokenWordsVariable);
  if (path == nullptr) return;
  // This process may outlive its parent, whose number another process may have by now.
  std::error_code error;
  const std::string file = std::filesystem::read_symlink(path, error).string();
  if (file.starts_with(std::string("/memfd:") + kMemoryFile)) std::ofstream(path, std::ios::app) << message << "\n";
}

}  // namespace droptest::experiments
