// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/free_port.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>

#include "comm/rendezvous/tcp_connection.h"

namespace droptest::comm {

int free_port() {
  constexpr int kLowest = 12000;
  constexpr int kPorts = 20000;
  static std::atomic<int> next{::getpid() * 37};
  for (;;) {
    const int port = kLowest + next++ % kPorts;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    const FileDescriptor probe(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(probe.value(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return port;
  }
}

}  // namespace droptest::comm
