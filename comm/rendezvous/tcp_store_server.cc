// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/tcp_store_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

namespace droptest::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPortPatience{1500};  ///< an earlier launch may be about to release the port
constexpr milliseconds kPoll{20};
constexpr milliseconds kTick{500};           ///< the interval of the search for slow foreign clients
constexpr milliseconds kGreetMost{10000};    ///< the longest time until a connection greets
constexpr milliseconds kSilent{2000};        ///< a process that waits for a key asks ten times a second
constexpr std::size_t kStrangersMost = 256;  ///< connections that have not greeted
constexpr std::size_t kReadBytes = 65536;

FileDescriptor listen_with_patience(const std::string& host, int port, const Clock& clock) {
  const auto deadline = clock.now() + kPortPatience;
  for (;;) {
    try {
      return listen_for(host, port);
    } catch (const std::system_error& error) {
      const int code = error.code().value();
      if (code == EADDRINUSE && clock.now() < deadline) {
        clock.sleep_for(kPoll);
        continue;
      }
      std::string advice;
      if (code == EADDRINUSE) {
        advice = "; another launch or program holds the port (`ss -ltnp` says which): choose a free one";
      } else if (code == EACCES) {
        advice = "; choose one from 1024 on";
      }
      throw ConfigError("rendezvous: rank 0 cannot listen at port " + std::to_string(port) + " for " + host + ": " +
                        error.code().message() + advice);
    }
  }
}

}  // namespace

TcpStoreServer::TcpStoreServer(const std::string& host, int port, std::string launch_id, const Clock& clock)
    : launch_id_(std::move(launch_id)), clock_(clock), listener_(listen_with_patience(host, port, clock)) {
  wake_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (wake_.value() < 0) throw CommError("rendezvous: eventfd: " + std::generic_category().message(errno));
  thread_ = std::thread([this] { serve(); });
}

TcpStoreServer::~TcpStoreServer() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.value(), &one, sizeof one);
  thread_.join();
}

bool TcpStoreServer::set_if_absent(const std::string& key, std::string_view value) {
  const std::lock_guard lock(mutex_);
  return values_.emplace(key, value).second;
}

std::optional<std::string> TcpStoreServer::get(const std::string& key) {
  const std::lock_guard lock(mutex_);
  const auto found = values_.find(key);
  if (found == values_.end()) return std::nullopt;
  return found->second;
}

void TcpStoreServer::clear() {
  const std::lock_guard lock(mutex_);
  values_.clear();
}

std::string TcpStoreServer::own_address() {
  const std::lock_guard lock(mutex_);
  std::string found;
  for (const Client& client : clients_) {
    if (!client.greeted) continue;
    const std::string address = own_address_of(client.socket);
    const bool loopback = address.starts_with("127.") || address == "::1";
    if (found.empty() || !loopback) found = address;
    if (!loopback) break;
  }
  return found;
}

void TcpStoreServer::wait_for_clients(milliseconds patience) {
  const auto deadline = clock_.now() + patience;
  for (auto now = clock_.now(); now < deadline; now = clock_.now()) {
    {
      const std::lock_guard lock(mutex_);
      const bool asked = std::any_of(clients_.begin(), clients_.end(), [now](const Client& client) {
        return client.greeted && now - client.last_heard < kSilent;
      });
      if (!asked) return;
    }
    clock_.sleep_for(kPoll);
  }
}

// One thread serves all clients: no client can delay it, since only poll() blocks here.
void TcpStoreServer::serve() {
  bool accepting = true;
  for (;;) {
    std::vector<pollfd> waited = {{wake_.value(), POLLIN, 0},
                                  {listener_.value(), static_cast<short>(accepting ? POLLIN : 0), 0}};
    {
      const std::lock_guard lock(mutex_);
      for (const Client& client : clients_) {
        // The server reads no requests of a client that does not read its answers: the connection's buffer stays small.
        waited.push_back({client.socket.value(), static_cast<short>(client.leaving.empty() ? POLLIN : POLLOUT), 0});
      }
    }
    const int ready = ::poll(waited.data(), waited.size(), static_cast<int>(kTick.count()));
    const std::lock_guard lock(mutex_);
    if (stop_) break;
    accepting = true;
    if (ready < 0) continue;
    std::vector<Client> kept;
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      Client& client = clients_[i];
      if (waited[i + 2].revents == 0 || hear(client)) kept.push_back(std::move(client));
    }
    clients_ = std::move(kept);
    drop_slow_strangers();
    if (waited[1].revents != 0) {
      accept_clients();
      accepting = errno == EAGAIN;  // out of descriptors: try again at the next tick, not at once
    }
  }
  const std::lock_guard lock(mutex_);
  for (Client& client : clients_) {
    client.leaving += encode_answer(StoreVerdict::kFarewell);
    write_out(client);
    ::shutdown(client.socket.value(), SHUT_WR);
  }
}

// Accepts all waiting clients; errno is that of the last accept.
void TcpStoreServer::accept_clients() {
  for (;;) {
    FileDescriptor socket(::accept4(listener_.value(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket.value() < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      return;
    }
    Client client;
    client.socket = std::move(socket);
    client.last_heard = clock_.now();
    clients_.push_back(std::move(client));
  }
}

// Reads and answers the available requests; false if the connection has failed.
bool TcpStoreServer::hear(Client& client) {
  try {
    if (!write_out(client)) return false;
    if (client.leaving.empty()) {
      char block[kReadBytes];
      const ssize_t got = ::recv(client.socket.value(), block, sizeof block, 0);
      if (got == 0) return false;
      if (got < 0) return errno == EAGAIN || errno == EINTR;
      client.last_heard = clock_.now();
      client.arrived.append(block, static_cast<std::size_t>(got));
    }
    while (client.leaving.empty() && answer_one(client)) {
      if (!write_out(client)) return false;
    }
    return true;
  } catch (const std::exception&) {
    return false;  // a foreign client, or no memory for its request
  }
}

// Answers one request; false if no whole message has arrived.
bool TcpStoreServer::answer_one(Client& client) {
  if (!client.greeted) {
    const std::optional<std::string> launch_id = take_hello(client.arrived);
    if (!launch_id) return false;
    client.greeted = *launch_id == launch_id_;
    client.leaving += kServerGreeting;
    client.leaving += client.greeted ? encode_answer(StoreVerdict::kYes) : encode_answer(StoreVerdict::kNo, launch_id_);
    return true;
  }
  const std::optional<StoreRequest> request = take_request(client.arrived);
  if (!request) return false;
  switch (request->operation) {
    case StoreRequest::Operation::kSetIfAbsent: {
      const bool set = values_.emplace(request->key, request->value).second;
      client.leaving += encode_answer(set ? StoreVerdict::kYes : StoreVerdict::kNo);
      break;
    }
    case StoreRequest::Operation::kGet: {
      const auto found = values_.find(request->key);
      client.leaving +=
          found == values_.end() ? encode_answer(StoreVerdict::kNo) : encode_answer(StoreVerdict::kYes, found->second);
      break;
    }
    case StoreRequest::Operation::kClear:
      values_.clear();
      client.leaving += encode_answer(StoreVerdict::kYes);
      break;
  }
  return true;
}

// Writes as many bytes as the client takes now; false if the client is gone.
bool TcpStoreServer::write_out(Client& client) {
  while (!client.leaving.empty()) {
    const ssize_t sent = ::send(client.socket.value(), client.leaving.data(), client.leaving.size(), MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN || errno == EINTR;
    client.leaving.erase(0, static_cast<std::size_t>(sent));
  }
  return true;
}

// Drops connections that have not greeted in time, and the oldest of too many.
void TcpStoreServer::drop_slow_strangers() {
  const auto oldest_allowed = clock_.now() - kGreetMost;
  std::erase_if(clients_, [&](const Client& client) { return !client.greeted && client.last_heard < oldest_allowed; });
  auto strangers = static_cast<std::size_t>(
      std::count_if(clients_.begin(), clients_.end(), [](const Client& client) { return !client.greeted; }));
  std::erase_if(clients_, [&strangers](const Client& client) {
    if (client.greeted || strangers <= kStrangersMost) return false;
    --strangers;
    return true;
  });
}

}  // namespace droptest::comm
