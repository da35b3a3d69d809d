// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/tcp_store.h"

#include <algorithm>
#include <mutex>

#include "comm/rendezvous/tcp_connection.h"
#include "comm/rendezvous/tcp_store_messages.h"
#include "comm/rendezvous/tcp_store_server.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kRetry{50};
constexpr milliseconds kGreeting{5000};  ///< longest wait for a greeting, before the next attempt
// A rank that is cut off from all others must not end before they have agreed that it is the culprit: otherwise its
// launcher would end them first.
constexpr milliseconds kOthersAgree{1500};

std::string address_of(const TcpStoreOptions& options) { return options.host + ":" + std::to_string(options.port); }

std::string where_of(const TcpStoreOptions& options) {
  return "the TCP store of rank 0 at " + address_of(options) + ", launch " + options.launch_id;
}

class ServedStore final : public LaunchStore {
 public:
  ServedStore(const TcpStoreOptions& options, const Clock& clock)
      : where_(where_of(options)),
        timeout_(options.timeout),
        server_(options.host, options.port, options.launch_id, clock) {}
  ~ServedStore() override { server_.wait_for_clients(timeout_); }
  ServedStore(const ServedStore&) = delete;
  ServedStore& operator=(const ServedStore&) = delete;

  bool set_if_absent(const std::string& key, std::string_view value) override {
    return server_.set_if_absent(key, value);
  }
  std::optional<std::string> get(const std::string& key) override { return server_.get(key); }
  void clear() override { server_.clear(); }
  const std::string& where() const override { return where_; }
  std::string own_address() override { return server_.own_address(); }

 private:
  const std::string where_;
  const milliseconds timeout_;
  TcpStoreServer server_;
};

/// The bytes of a foreign client, for an error.
std::string printable(const std::string& bytes) {
  std::string text;
  for (const char c : bytes) text += c >= ' ' && c <= '~' ? c : '?';
  return text;
}

class TcpStore final : public LaunchStore {
 public:
  TcpStore(const TcpStoreOptions& options, const Clock& clock)
      : options_(options), clock_(clock), where_(where_of(options)), connection_(connect_with_patience()) {}

  bool set_if_absent(const std::string& key, std::string_view value) override {
    return ask({StoreRequest::Operation::kSetIfAbsent, key, std::string(value)}).has_value();
  }
  std::optional<std::string> get(const std::string& key) override {
    return ask({StoreRequest::Operation::kGet, key, {}});
  }
  void clear() override { ask({StoreRequest::Operation::kClear, {}, {}}); }
  const std::string& where() const override { return where_; }
  std::string own_address() override {
    const std::lock_guard lock(mutex_);
    return connection_.own_address();
  }

  std::optional<std::string> lost_rank() const override {
    const std::lock_guard lock(end_mutex_);
    return lost_rank_;
  }

 private:
  std::string here() const { return "rendezvous: rank " + std::to_string(options_.rank) + ": "; }

  // Rank 0 may start late, and an earlier launch may still hold the port: this rank waits for both.
  TcpConnection connect_with_patience() const {
    const auto deadline = clock_.now() + options_.timeout;
    std::string reason;
    for (;;) {
      try {
        TcpConnection connection = TcpConnection::open(options_.host, options_.port, deadline, clock_);
        const std::optional<std::string> other = greet(connection, std::min(deadline, clock_.now() + kGreeting));
        if (!other) return connection;
        reason = "it belongs to launch " + *other +
                 ": another launch has the same address, or the ranks run different specs";
      } catch (const ConnectionBroken& broken) {
        // A last attempt that the deadline cut short has a less precise reason than the one before it.
        const bool cut_short = broken.how() == ConnectionBroken::How::kSilent && clock_.now() >= deadline;
        if (!cut_short || reason.empty()) {
          reason = std::string(broken.what()) +
                   "; is rank 0 started there, and may this machine connect to that port (firewall)?";
        }
      }
      if (clock_.now() >= deadline) {
        throw CommError(here() + "cannot reach " + where_ + ", tried for " + std::to_string(options_.timeout.count()) +
                        " ms: " + reason);
      }
      clock_.sleep_for(kRetry);
    }
  }

  // Returns the id of the launch that the store belongs to, if it is another launch.
  std::optional<std::string> greet(TcpConnection& connection, Clock::TimePoint deadline) const {
    connection.send(encode_hello(options_.launch_id), deadline);
    const std::string greeting = connection.receive(kServerGreeting.size(), deadline);
    if (greeting != kServerGreeting) {
      throw ConfigError(here() + "at " + address_of(options_) + " answers another program (\"" + printable(greeting) +
                        "...\"), want the store of rank 0; choose a free port");
    }
    const AnswerHead head = decode_answer_head(connection.receive(kAnswerHeadBytes, deadline));
    std::string value = connection.receive(head.value_bytes, deadline);
    if (head.verdict == StoreVerdict::kYes) return std::nullopt;
    return value;
  }

  // The value of the answer; absent if the answer is no.
  std::optional<std::string> ask(const StoreRequest& request) {
    const std::lock_guard lock(mutex_);
    {
      const std::lock_guard end_lock(end_mutex_);
      if (!end_.empty()) throw CommError(end_);
    }
    try {
      const auto deadline = clock_.now() + options_.timeout + kOthersAgree;
      connection_.send(encode_request(request), deadline);
      const AnswerHead head = decode_answer_head(connection_.receive(kAnswerHeadBytes, deadline));
      std::string value = connection_.receive(head.value_bytes, deadline);
      if (head.verdict == StoreVerdict::kYes) return value;
      if (head.verdict == StoreVerdict::kNo) return std::nullopt;
    } catch (const ConnectionBroken& broken) {
      end(broken.how() == ConnectionBroken::How::kClosed
              ? "rank 0 died or lost its connection: " + where_ + ": " + broken.what()
              : "no data from rank 0 for " + std::to_string(options_.timeout.count()) + " ms, not from " + where_ +
                    " either; is rank 0 alive?",
          End::kLost);
    }
    end("rank 0 has left, and with it " + where_, End::kInOrder);
  }

  enum class End : std::uint8_t { kLost, kInOrder };
  [[noreturn]] void end(const std::string& cause, End how) {
    const std::lock_guard end_lock(end_mutex_);
    end_ = here() + cause;
    if (how == End::kLost) lost_rank_ = cause;
    throw CommError(end_);
  }

  const TcpStoreOptions options_;
  const Clock& clock_;
  const std::string where_;
  std::mutex mutex_;  ///< guards the connection: one request at a time
  TcpConnection connection_;
  mutable std::mutex end_mutex_;  ///< guards the members below
  std::string end_;               ///< the reason why the store cannot be asked any more; empty: it can
  std::optional<std::string> lost_rank_;
};

}  // namespace

std::unique_ptr<LaunchStore> open_tcp_store(const TcpStoreOptions& options, const Clock& clock) {
  if (options.port < 1 || options.port > 65535) {
    throw ConfigError("rendezvous: port " + std::to_string(options.port) + ", want 1 to 65535");
  }
  if (options.host.empty()) throw ConfigError("rendezvous: no host, want the name or address of rank 0's machine");
  if (options.rank == 0) return std::make_unique<ServedStore>(options, clock);
  return std::make_unique<TcpStore>(options, clock);
}

}  // namespace droptest::comm
