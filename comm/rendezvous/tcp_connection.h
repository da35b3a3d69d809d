// SPDX-License-Identifier: Apache-2.0
// TCP sockets of Linux with deadlines, as objects that close themselves.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "comm/clock.h"
#include "comm/file_descriptor.h"
#include "sim/error.h"

namespace droptest::comm {

/// The connection has failed. The message is only the reason: "Connection refused".
class ConnectionBroken : public CommError {
 public:
  enum class How : std::uint8_t {
    kClosed,  ///< closed by the peer or its system, or refused
    kSilent,  ///< nothing moved until the deadline
  };
  ConnectionBroken(How how, const std::string& reason) : CommError(reason), how_(how) {}
  How how() const { return how_; }

 private:
  How how_;
};

/// One end of a connection. Thread safety: one thread at a time.
class TcpConnection {
 public:
  using Deadline = Clock::TimePoint;

  /// Tries each address of the host once. Throws: ConnectionBroken with the last address's reason, or the resolver's.
  /// `clock` measures all deadlines; borrowed.
  static TcpConnection open(const std::string& host, int port, Deadline deadline, const Clock& clock = steady_clock());

  /// own_address_of() for this end.
  std::string own_address() const;

  /// Throws: ConnectionBroken. After an error the connection must not be used again.
  void send(std::string_view bytes, Deadline deadline);
  /// Receives exactly `size` bytes. Throws: ConnectionBroken.
  std::string receive(std::size_t size, Deadline deadline);

 private:
  TcpConnection(FileDescriptor socket, const Clock& clock) : socket_(std::move(socket)), clock_(&clock) {}
  FileDescriptor socket_;
  const Clock* clock_;
};

/// Accepts connections at the port without blocking: only of this machine if `host` is a loopback address, else of all
/// its addresses, because a machine's name may mean another address here than elsewhere. Throws: std::system_error with
/// the system's reason.
FileDescriptor listen_for(const std::string& host, int port);

/// The numeric address of this end of a connection, at which the other end can reach this machine.
std::string own_address_of(const FileDescriptor& socket);

/// An unused port of the loopback interface.
int unused_port();

}  // namespace droptest::comm
