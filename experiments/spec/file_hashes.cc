// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/file_hashes.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "comm/file_descriptor.h"
#include "comm/json/json_text.h"
#include "comm/json/read_file.h"
#include "comm/spec/sha256.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// The status of an open file. Throws: ConfigError for a file that is not a regular one.
struct stat status_of(const comm::FileDescriptor& file, const std::string& path) {
  struct stat status {};
  if (::fstat(file.value(), &status) != 0) comm::fail_on_file("read", path, errno);
  if (!S_ISREG(status.st_mode)) throw ConfigError("read " + path + ": is no regular file");
  return status;
}

std::string hash_of(const comm::FileDescriptor& file, const std::string& path, const std::function<void()>& on_piece) {
  constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
  std::string piece(kPieceBytes, '\0');
  comm::Sha256 hash;
  for (;;) {
    const ssize_t got = ::read(file.value(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) comm::fail_on_file("read", path, errno);
    if (got == 0) return hash.hex();
    hash.add(std::string_view(piece.data(), static_cast<std::size_t>(got)));
    on_piece();
  }
}

}  // namespace

const std::string& FileHashes::of(const std::string& path) {
  const comm::FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) comm::fail_on_file("read", path, errno);
  const auto identify = [&file, &path] {
    const struct stat status = status_of(file, path);
    return Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec);
  };
  const Identity identity = identify();
  const auto found = known_.find(identity);
  if (found != known_.end()) return found->second;
  std::string hash = hash_of(file, path, on_piece_);
  if (identify() != identity) {
    throw ConfigError("read " + path + ": changed while it was read; want a file that no other program writes into");
  }
  return known_[identity] = std::move(hash);
}

nlohmann::json FileHashes::known_of(std::span<const std::string> paths) const {
  nlohmann::json known = nlohmann::json::array();
  for (const std::string& path : paths) {
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0) continue;
    const auto found = known_.find(
        Identity(status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec));
    if (found != known_.end()) known.push_back({found->first, found->second});
  }
  return known;
}

void FileHashes::remember(const nlohmann::json& known) {
  try {
    for (const nlohmann::json& one : known) known_[one.at(0).get<Identity>()] = one.at(1).get<std::string>();
  } catch (const nlohmann::json::exception&) {
    throw ConfigError("hashes of files: got " + comm::quote_json(known) + ", want pairs of a file and its hash");
  }
}

}  // namespace droptest::experiments
