// SPDX-License-Identifier: Apache-2.0
// The server of a TCP store: a thread of rank 0's process holds the keys.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/clock.h"
#include "comm/rendezvous/tcp_connection.h"
#include "comm/rendezvous/tcp_store_messages.h"

namespace droptest::comm {

/// Keys of one launch, for this process directly and for others over TCP. The server refuses a client without the
/// greeting of this launch, and closes a connection after an invalid request; neither can block it, or take much of its
/// memory. Thread safety: all methods may be called from any thread.
class TcpStoreServer {
 public:
  /// Listens from now on. Throws: ConfigError that names the port if it is taken or not allowed. Waits a moment for a
  /// port that is taken, by the clock, which is borrowed.
  TcpStoreServer(const std::string& host, int port, std::string launch_id, const Clock& clock = steady_clock());
  /// Says farewell to the clients that are still connected.
  ~TcpStoreServer();
  TcpStoreServer(const TcpStoreServer&) = delete;
  TcpStoreServer& operator=(const TcpStoreServer&) = delete;

  bool set_if_absent(const std::string& key, std::string_view value);
  std::optional<std::string> get(const std::string& key);
  void clear();

  /// The address at which clients reach this machine, preferably clients on other machines; empty: no client.
  std::string own_address();

  /// Waits while clients still send requests: until all have closed their connections or have been silent for two
  /// seconds, at most for `patience`.
  void wait_for_clients(std::chrono::milliseconds patience);

 private:
  struct Client {
    FileDescriptor socket;
    bool greeted = false;
    Clock::TimePoint last_heard;
    std::string arrived;  ///< bytes that are not answered yet
    std::string leaving;  ///< answers under way
  };

  void serve();
  void accept_clients();
  bool hear(Client& client);
  bool answer_one(Client& client);
  static bool write_out(Client& client);
  void drop_slow_strangers();

  const std::string launch_id_;
  const Clock& clock_;
  FileDescriptor listener_;
  FileDescriptor wake_;
  std::mutex mutex_;  ///< guards the members below
  std::map<std::string, std::string> values_;
  std::vector<Client> clients_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace droptest::comm
