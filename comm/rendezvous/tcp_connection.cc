// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/tcp_connection.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

namespace droptest::comm {
namespace {

using How = ConnectionBroken::How;

// A host that drops packets must not block the attempts at its next address, or a retry.
constexpr std::chrono::seconds kConnectMost{3};
constexpr int kWaitingConnections = 1024;

std::string reason(int error) { return std::generic_category().message(error); }

struct AddressListFree {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};
using AddressList = std::unique_ptr<addrinfo, AddressListFree>;

AddressList resolve(const std::string& host, int port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) {
    throw ConnectionBroken(How::kClosed,
                           "cannot resolve the host name: " +
                               std::string(error == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(error)));
  }
  return AddressList(list);
}

// Waits until the socket is ready; false at the deadline.
bool ready(const Clock& clock, int fd, short events, TcpConnection::Deadline deadline) {
  try {
    return clock.wait_ready(fd, events, deadline);
  } catch (const std::system_error& error) {
    throw ConnectionBroken(How::kClosed, reason(error.code().value()));
  }
}

// A connection to a port of this machine without a listener can reach itself.
bool is_self_connected(int fd) {
  sockaddr_storage own{};
  sockaddr_storage peer{};
  socklen_t own_size = sizeof own;
  socklen_t peer_size = sizeof peer;
  return ::getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size) == 0 &&
         ::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &peer_size) == 0 && own_size == peer_size &&
         std::memcmp(&own, &peer, own_size) == 0;
}

FileDescriptor connected(const addrinfo& address, const Clock& clock, TcpConnection::Deadline deadline) {
  FileDescriptor socket(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.value() < 0) throw ConnectionBroken(How::kClosed, reason(errno));
  if (::connect(socket.value(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) throw ConnectionBroken(How::kClosed, reason(errno));
    if (!ready(clock, socket.value(), POLLOUT, deadline)) throw ConnectionBroken(How::kSilent, "no answer");
    int error = 0;
    socklen_t size = sizeof error;
    ::getsockopt(socket.value(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) throw ConnectionBroken(How::kClosed, reason(error));
  }
  if (is_self_connected(socket.value())) throw ConnectionBroken(How::kClosed, reason(ECONNREFUSED));
  const int on = 1;
  ::setsockopt(socket.value(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return socket;
}

[[noreturn]] void throw_errno(const char* what) { throw std::system_error(errno, std::generic_category(), what); }

FileDescriptor listening(int family, const sockaddr* address, socklen_t size) {
  FileDescriptor socket(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (socket.value() < 0) throw_errno("socket");
  const int on = 1;
  const int off = 0;
  ::setsockopt(socket.value(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (family == AF_INET6) ::setsockopt(socket.value(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(socket.value(), address, size) != 0) throw_errno("bind");
  if (::listen(socket.value(), kWaitingConnections) != 0) throw_errno("listen");
  return socket;
}

}  // namespace

TcpConnection TcpConnection::open(const std::string& host, int port, Deadline deadline, const Clock& clock) {
  const AddressList addresses = resolve(host, port);
  for (const addrinfo* address = addresses.get();; address = address->ai_next) {
    try {
      return {connected(*address, clock, std::min(deadline, clock.now() + kConnectMost)), clock};
    } catch (const ConnectionBroken&) {
      if (address->ai_next == nullptr) throw;
    }
  }
}

std::string TcpConnection::own_address() const { return own_address_of(socket_); }

void TcpConnection::send(std::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.value(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent >= 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    } else if (errno == EAGAIN) {
      if (!ready(*clock_, socket_.value(), POLLOUT, deadline)) throw ConnectionBroken(How::kSilent, "it takes no data");
    } else if (errno != EINTR) {
      throw ConnectionBroken(How::kClosed, reason(errno));
    }
  }
}

std::string TcpConnection::receive(std::size_t size, Deadline deadline) {
  std::string bytes(size, '\0');
  std::size_t have = 0;
  while (have < size) {
    const ssize_t got = ::recv(socket_.value(), bytes.data() + have, size - have, 0);
    if (got > 0) {
      have += static_cast<std::size_t>(got);
    } else if (got == 0) {
      throw ConnectionBroken(How::kClosed, "connection closed");
    } else if (errno == EAGAIN) {
      if (!ready(*clock_, socket_.value(), POLLIN, deadline)) throw ConnectionBroken(How::kSilent, "no answer");
    } else if (errno != EINTR) {
      throw ConnectionBroken(How::kClosed, reason(errno));
    }
  }
  return bytes;
}

FileDescriptor listen_for(const std::string& host, int port) {
  const std::uint16_t network_port = htons(static_cast<std::uint16_t>(port));
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_port = network_port;
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = network_port;
  const std::string address = host == "localhost" ? "127.0.0.1" : host;
  constexpr std::uint32_t kLoopbackNet = 127;
  if (::inet_pton(AF_INET, address.c_str(), &v4.sin_addr) == 1 && ntohl(v4.sin_addr.s_addr) >> 24 == kLoopbackNet) {
    return listening(AF_INET, reinterpret_cast<const sockaddr*>(&v4), sizeof v4);
  }
  if (::inet_pton(AF_INET6, address.c_str(), &v6.sin6_addr) == 1 && IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr)) {
    return listening(AF_INET6, reinterpret_cast<const sockaddr*>(&v6), sizeof v6);
  }
  v4.sin_addr.s_addr = htonl(INADDR_ANY);
  v6.sin6_addr = in6addr_any;
  try {
    return listening(AF_INET6, reinterpret_cast<const sockaddr*>(&v6), sizeof v6);
  } catch (const std::system_error& error) {
    if (error.code().value() != EAFNOSUPPORT && error.code().value() != EADDRNOTAVAIL) throw;
  }
  return listening(AF_INET, reinterpret_cast<const sockaddr*>(&v4), sizeof v4);  // a machine without IPv6
}

std::string own_address_of(const FileDescriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  char text[NI_MAXHOST];
  if (::getsockname(socket.value(), reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) {
    return "";
  }
  constexpr std::string_view kMapped = "::ffff:";  // an IPv4 connection to a socket that takes both
  const std::string_view numeric(text);
  return std::string(numeric.starts_with(kMapped) ? numeric.substr(kMapped.size()) : numeric);
}

int unused_port() {
  const FileDescriptor socket = listen_for("127.0.0.1", 0);
  sockaddr_in address{};
  socklen_t size = sizeof address;
  if (::getsockname(socket.value(), reinterpret_cast<sockaddr*>(&address), &size) != 0) throw_errno("getsockname");
  return ntohs(address.sin_port);
}

}  // namespace droptest::comm
