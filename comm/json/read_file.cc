// SPDX-License-Identifier: Apache-2.0
#include "comm/json/read_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <system_error>

#include "comm/file_descriptor.h"
#include "sim/error.h"

namespace droptest::comm {

void fail_on_file(std::string_view operation, const std::string& path, int error) {
  throw ConfigError(std::string(operation) + " " + path + ": " + std::generic_category().message(error));
}

std::string read_file(const std::string& path) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.value() < 0) fail_on_file("read", path, errno);
  std::string content;
  std::array<char, 1 << 16> block{};
  for (;;) {
    const ssize_t got = ::read(file.value(), block.data(), block.size());
    if (got < 0) {
      if (errno == EINTR) continue;
      fail_on_file("read", path, errno);
    }
    if (got == 0) return content;
    content.append(block.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace droptest::comm
