// SPDX-License-Identifier: Apache-2.0
#include "comm/json/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "sim/error.h"

namespace droptest::comm {
namespace {

/// A file that is open for reading.
class OpenFile {
 public:
  explicit OpenFile(const std::string& path) : descriptor_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor_ < 0) fail_on_file("read", path, errno);
  }
  ~OpenFile() { ::close(descriptor_); }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

void fail_on_file(std::string_view operation, const std::string& path, int error) {
  throw ConfigError(std::string(operation) + " " + path + ": " + std::generic_category().message(error));
}

std::string read_file(const std::string& path) {
  const OpenFile file(path);
  std::string content;
  std::array<char, 1 << 16> block{};
  for (;;) {
    const ssize_t got = ::read(file.descriptor(), block.data(), block.size());
    if (got < 0) {
      if (errno == EINTR) continue;
      fail_on_file("read", path, errno);
    }
    if (got == 0) return content;
    content.append(block.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace droptest::comm
