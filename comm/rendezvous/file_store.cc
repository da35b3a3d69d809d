// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/file_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "comm/file_descriptor.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

class FileStore final : public LaunchStore {
 public:
  FileStore(const std::string& directory, const std::string& launch_id)
      : directory_(std::filesystem::path(directory) / launch_id),
        where_("directory " + directory + ", launch " + launch_id) {
    std::error_code error;
    std::filesystem::create_directories(directory_, error);
    if (error) throw ConfigError("rendezvous: cannot create " + directory_.string() + ": " + error.message());
  }

  // Linking is atomic and refuses a name that exists, on network file systems too: the first writer wins, and a reader
  // never sees a partial value.
  bool set_if_absent(const std::string& key, std::string_view value) override {
    const std::string path = path_of(key);
    const std::string draft = write_draft(path, value);
    const int result = ::link(draft.c_str(), path.c_str());
    const int error = errno;
    ::unlink(draft.c_str());
    if (result == 0) return true;
    if (error == EEXIST) return false;
    fail("link", path, error);
  }

  std::optional<std::string> get(const std::string& key) override {
    const std::string path = path_of(key);
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (file.value() < 0) {
      if (errno == ENOENT) return std::nullopt;
      fail("open", path, errno);
    }
    std::string value;
    char block[4096];
    for (;;) {
      const ssize_t got = ::read(file.value(), block, sizeof block);
      if (got == 0) return value;
      if (got > 0) {
        value.append(block, static_cast<std::size_t>(got));
      } else if (errno != EINTR) {
        fail("read", path, errno);
      }
    }
  }

  void clear() override {
    // A value can be read before its writer has removed the draft, and several ranks may clear at once: an entry that
    // another process has removed meanwhile is gone as well, and must not end the removal of the others.
    while (::rmdir(directory_.c_str()) != 0 && (errno == ENOTEMPTY || errno == EEXIST)) {
      std::error_code error;
      for (std::filesystem::directory_iterator entry(directory_, error), end; !error && entry != end;
           entry.increment(error)) {
        if (::unlink(entry->path().c_str()) != 0 && errno != ENOENT) return;
      }
      if (error && error != std::errc::no_such_file_or_directory) return;
    }
  }

  const std::string& where() const override { return where_; }

 private:
  std::string path_of(std::string key) const {
    for (char& c : key) {
      if (c == '/') c = '-';
    }
    return (directory_ / key).string();
  }

  [[noreturn]] void fail(const char* what, const std::string& path, int error) const {
    throw CommError("rendezvous: cannot " + std::string(what) + " " + path + ": " +
                    std::generic_category().message(error));
  }

  // A draft has a name that no other writer has, not even a process with the same number on another host.
  std::string write_draft(const std::string& path, std::string_view value) const {
    std::string draft = path + ".draft.XXXXXX";
    const FileDescriptor file(::mkostemp(draft.data(), O_CLOEXEC));
    if (file.value() < 0) fail("create", draft, errno);
    ::fchmod(file.value(), 0644);
    while (!value.empty()) {
      const ssize_t written = ::write(file.value(), value.data(), value.size());
      if (written >= 0) {
        value.remove_prefix(static_cast<std::size_t>(written));
      } else if (errno != EINTR) {
        fail("write", draft, errno);
      }
    }
    return draft;
  }

  const std::filesystem::path directory_;
  const std::string where_;
};

}  // namespace

std::unique_ptr<LaunchStore> open_file_store(const std::string& directory, const std::string& launch_id) {
  if (directory.empty()) throw ConfigError("rendezvous: no directory, want one that all ranks see");
  return std::make_unique<FileStore>(directory, launch_id);
}

}  // namespace droptest::comm
