// SPDX-License-Identifier: Apache-2.0
#include "comm/rendezvous/tcp_store.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/rendezvous/tcp_connection.h"
#include "comm/rendezvous/tcp_store_messages.h"
#include "comm/rendezvous/tcp_store_server.h"
#include "sim/error.h"
#include "tests/comm/fake_clock.h"
#include "tests/comm/free_port.h"

namespace droptest::comm::tcp_store_test {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kLong = 20s;  // a hang, not slowness, takes this long

TcpStoreOptions options_of(int port, int rank, std::chrono::milliseconds timeout = kLong,
                           const std::string& launch_id = "launch") {
  return {"127.0.0.1", port, launch_id, rank, timeout};
}

template <typename Error>
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TcpConnection connect_to(int port) {
  return TcpConnection::open("127.0.0.1", port, std::chrono::steady_clock::now() + kLong);
}

auto soon() { return std::chrono::steady_clock::now() + kLong; }

// Accepts one connection, and runs a test's conversation on it instead of a store's.
class FakeServer {
 public:
  explicit FakeServer(std::function<void(int fd)> talk)
      : listener_(listen_for("127.0.0.1", 0)), thread_([this, talk = std::move(talk)] {
          int fd = -1;
          while (!stop_ && (fd = ::accept(listener_.value(), nullptr, nullptr)) < 0) std::this_thread::yield();
          const FileDescriptor connection(fd);
          if (fd >= 0) talk(fd);
        }) {}
  ~FakeServer() {
    stop_ = true;
    thread_.join();
  }
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  int port() const {
    sockaddr_in address{};
    socklen_t size = sizeof address;
    ::getsockname(listener_.value(), reinterpret_cast<sockaddr*>(&address), &size);
    return ntohs(address.sin_port);
  }

 private:
  FileDescriptor listener_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

void say(int fd, const std::string& bytes) { ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
// Reads until the other end closes the connection.
void listen_to_the_end(int fd) {
  char block[4096];
  while (::recv(fd, block, sizeof block, 0) > 0) continue;
}
// Reads so many bytes, or until the other end closes the connection.
void listen_to(int fd, std::size_t bytes) {
  char byte = 0;
  while (bytes > 0 && ::recv(fd, &byte, 1, 0) > 0) --bytes;
}
std::string welcome() { return std::string(kServerGreeting) + encode_answer(StoreVerdict::kYes); }

TEST(TcpStore, AllRanksSeeEachKeyAndTheFirstValueStays) {
  const int port = free_port();
  const auto first = open_tcp_store(options_of(port, 0));
  const auto second = open_tcp_store(options_of(port, 1));
  const auto third = open_tcp_store(options_of(port, 2));
  EXPECT_FALSE(second->get("key").has_value());
  EXPECT_TRUE(second->set_if_absent("key", "of rank 1"));
  EXPECT_FALSE(first->set_if_absent("key", "of rank 0"));
  EXPECT_FALSE(third->set_if_absent("key", "of rank 2"));
  for (const auto* store : {&first, &second, &third}) EXPECT_EQ((*store)->get("key"), "of rank 1");
  EXPECT_TRUE(first->set_if_absent("empty", ""));
  EXPECT_EQ(third->get("empty"), "");
  const std::string long_value(kStoreValueBytesMost, '\0');
  EXPECT_TRUE(third->set_if_absent("long", long_value));
  EXPECT_EQ(second->get("long"), long_value);
  EXPECT_THROW(second->set_if_absent("longer", long_value + "x"), CheckError);
  EXPECT_EQ(third->own_address(), "127.0.0.1");
  EXPECT_EQ(first->own_address(), "127.0.0.1");
  third->clear();
  EXPECT_FALSE(second->get("key").has_value());
  EXPECT_EQ(third->where(), "the TCP store of rank 0 at 127.0.0.1:" + std::to_string(port) + ", launch launch");
}

TEST(TcpStore, RanksThatComeBeforeRankZeroWaitForIt) {
  const int port = free_port();
  std::string value;
  std::thread early([&] { value = open_tcp_store(options_of(port, 1))->wait_for("id", "rank 0", kLong); });
  const auto store = open_tcp_store(options_of(port, 0));
  store->set_if_absent("id", "128 bytes");
  early.join();
  EXPECT_EQ(value, "128 bytes");
}

TEST(TcpStore, AMissingKeyNamesTheRankThatShouldHaveSetIt) {
  const int port = free_port();
  const auto store = open_tcp_store(options_of(port, 0));
  const auto other = open_tcp_store(options_of(port, 1));
  EXPECT_THAT(error_of<CommError>([&] { other->wait_for("nccl id", "rank 0", 60ms); }),
              AllOf(HasSubstr("rank 0 did not set nccl id within 60 ms in the TCP store of rank 0 at 127.0.0.1:"),
                    HasSubstr("is it alive?")));
}

TEST(TcpStore, NobodyThereIsSaidWithAddressPortAndTime) {
  const int port = free_port();
  FakeClock clock;
  clock.on_sleep = [&clock] { clock.advance(100ms); };
  EXPECT_THAT(error_of<CommError>([&] { open_tcp_store(options_of(port, 3, 150ms), clock); }),
              AllOf(HasSubstr("rank 3: cannot reach the TCP store of rank 0 at 127.0.0.1:" + std::to_string(port)),
                    HasSubstr("tried for 150 ms: Connection refused"), HasSubstr("firewall")));
  TcpStoreOptions nameless = options_of(port, 1, 150ms);
  nameless.host = "no-such-host.invalid";
  EXPECT_THAT(error_of<CommError>([&] { open_tcp_store(nameless, clock); }),
              AllOf(HasSubstr("no-such-host.invalid"), HasSubstr("cannot resolve the host name")));
}

TEST(TcpStore, APortThatIsTakenIsNamed) {
  const FakeServer other([](int /*fd*/) {});
  FakeClock clock;
  clock.on_sleep = [&clock] { clock.advance(100ms); };
  EXPECT_THAT(error_of<ConfigError>([&] { open_tcp_store(options_of(other.port(), 0), clock); }),
              AllOf(HasSubstr("rank 0 cannot listen at port " + std::to_string(other.port())),
                    HasSubstr("Address already in use"), HasSubstr("choose a free one")));
}

TEST(TcpStore, APortThatIsGivenBackSoonIsTaken) {
  auto other = std::make_unique<FakeServer>([](int /*fd*/) {});
  const int port = other->port();
  FakeClock clock;
  int sleeps = 0;
  clock.on_sleep = [&] {
    if (++sleeps == 2) other.reset();
  };
  EXPECT_TRUE(open_tcp_store(options_of(port, 0), clock)->set_if_absent("key", ""));
  EXPECT_EQ(sleeps, 2);
}

TEST(TcpStore, WhatCannotBeAnAddressIsRefused) {
  for (const int port : {0, -1, 65536}) {
    for (const int rank : {0, 1}) EXPECT_THROW(open_tcp_store(options_of(port, rank)), ConfigError) << port;
  }
  TcpStoreOptions nowhere = options_of(1, 1);
  nowhere.host.clear();
  EXPECT_THROW(open_tcp_store(nowhere), ConfigError);
}

TEST(TcpStore, LaunchesNeverSeeEachOthersKeys) {
  const int port = free_port();
  auto earlier = open_tcp_store(options_of(port, 0, kLong, "earlier"));
  earlier->set_if_absent("key", "stale");
  FakeClock clock;
  int tries = 1;
  clock.on_sleep = [&] {
    ++tries;
    clock.advance(100ms);
  };
  EXPECT_THAT(error_of<CommError>([&] { open_tcp_store(options_of(port, 1, 150ms, "later"), clock); }),
              AllOf(HasSubstr("launch later"), HasSubstr("tried for 150 ms: it belongs to launch earlier")));
  EXPECT_EQ(tries, 3);
  // A rank of the later launch that starts while the earlier launch still ends waits for its own launch.
  std::optional<std::string> value;
  std::thread early([&] { value = open_tcp_store(options_of(port, 1, kLong, "later"))->get("key"); });
  earlier.reset();
  const auto later = open_tcp_store(options_of(port, 0, kLong, "later"));
  early.join();
  EXPECT_FALSE(value.has_value());
}

TEST(TcpStore, AnotherProgramAtThePortIsNoStore) {
  const FakeServer web([](int fd) {
    say(fd, "HTTP/1.1 400 Bad Request\r\n\r\n");
    listen_to_the_end(fd);
  });
  EXPECT_THAT(error_of<ConfigError>([&] { open_tcp_store(options_of(web.port(), 1)); }),
              AllOf(HasSubstr("at 127.0.0.1:" + std::to_string(web.port()) + " answers another program (\"HTTP/1.1"),
                    HasSubstr("choose a free port")));
  FakeClock clock;
  clock.on_sleep = [&clock] { clock.advance(200ms); };
  const FakeServer silent([&clock](int fd) {
    listen_to(fd, encode_hello("launch").size());
    clock.advance(200ms);
    listen_to_the_end(fd);
  });
  EXPECT_THAT(error_of<CommError>([&] { open_tcp_store(options_of(silent.port(), 1, 200ms), clock); }),
              HasSubstr("tried for 200 ms: no answer"));
  const FakeServer closing([](int fd) { listen_to(fd, encode_hello("launch").size()); });
  EXPECT_THAT(error_of<CommError>([&] { open_tcp_store(options_of(closing.port(), 1, 200ms), clock); }),
              HasSubstr("tried for 200 ms: connection closed"));
  const FakeServer boasting([](int fd) {
    say(fd, std::string(kServerGreeting) + "\x01\xff\xff\xff\xff");
    listen_to_the_end(fd);
  });
  EXPECT_THAT(error_of<CommError>([&] { open_tcp_store(options_of(boasting.port(), 1)); }),
              HasSubstr("value of 4294967295 bytes, want at most 4194304"));
}

TEST(TcpStore, StrangersAreTurnedAwayAndNobodyWaitsForThem) {
  const int port = free_port();
  const auto store = open_tcp_store(options_of(port, 0));
  const auto other = open_tcp_store(options_of(port, 1));
  const std::string hello = encode_hello("launch");
  const std::string huge_key = hello + "g" + std::string(8, '\xff');
  const std::string unknown = hello + "x" + std::string(8, '\0');
  const std::string long_id = std::string(kClientGreeting) + std::string(4, '\x7f');
  std::vector<TcpConnection> half_said;
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), huge_key, unknown, long_id}) {
    TcpConnection stranger = connect_to(port);
    stranger.send(bytes, soon());
    EXPECT_THROW(  // all it may get is a welcome: then the connection is closed
        for (;;) stranger.receive(1, soon()), ConnectionBroken);
    half_said.push_back(connect_to(port));
    half_said.back().send(std::string_view(bytes).substr(0, 1), soon());
    EXPECT_TRUE(other->set_if_absent(bytes.substr(0, 40), "still served"));
  }
  std::mt19937 bits(1);
  for (int i = 0; i < 200; ++i) {
    std::string noise = i % 2 == 0 ? hello : "";
    for (int b = 0; b < 100; ++b) noise += static_cast<char>(bits());
    connect_to(port).send(noise, soon());
  }
  for (int i = 0; i < 400; ++i) half_said.push_back(connect_to(port));  // more than are kept
  EXPECT_TRUE(other->set_if_absent("after all", ""));
  EXPECT_EQ(open_tcp_store(options_of(port, 2))->get("after all"), "");
}

TEST(TcpStore, RequestsMayArriveInPiecesAndManyAtOnce) {
  const int port = free_port();
  const auto store = open_tcp_store(options_of(port, 0));
  TcpConnection slow = connect_to(port);
  const std::string request = encode_request({StoreRequest::Operation::kSetIfAbsent, "key", "value"});
  for (const char c : encode_hello("launch") + request) slow.send(std::string_view(&c, 1), soon());
  EXPECT_EQ(slow.receive(welcome().size(), soon()), welcome());
  EXPECT_EQ(slow.receive(kAnswerHeadBytes, soon()), encode_answer(StoreVerdict::kYes));
  std::string many;
  for (int i = 0; i < 1000; ++i) many += encode_request({StoreRequest::Operation::kGet, "key", ""});
  slow.send(many, soon());
  for (int i = 0; i < 1000; ++i) {
    ASSERT_EQ(slow.receive(kAnswerHeadBytes + 5, soon()), encode_answer(StoreVerdict::kYes, "value")) << i;
  }
}

TEST(TcpStore, TheDeathOfRankZeroIsNoticedAndNamed) {
  const FakeServer dying([](int fd) { say(fd, welcome()); });
  const auto store = open_tcp_store(options_of(dying.port(), 1));
  EXPECT_EQ(store->lost_rank(), std::nullopt);
  const std::string want = "rank 0 died or lost its connection: the TCP store of rank 0 at 127.0.0.1:";
  EXPECT_THAT(error_of<CommError>([&] { store->get("key"); }), HasSubstr("rank 1: " + want));
  EXPECT_THAT(store->lost_rank().value_or(""), ::testing::StartsWith(want));
  EXPECT_THAT(error_of<CommError>([&] { store->set_if_absent("key", ""); }), HasSubstr(want));
}

TEST(TcpStore, ARankZeroThatDoesNotAnswerIsNamedAfterTheTimeout) {
  FakeClock clock;
  const FakeServer stopped([&clock](int fd) {
    say(fd, welcome());
    listen_to(fd, encode_hello("launch").size() + 1);
    clock.advance(10s);
    listen_to_the_end(fd);
  });
  auto store = open_tcp_store(options_of(stopped.port(), 1, 150ms), clock);
  EXPECT_THAT(error_of<CommError>([&] { store->get("key"); }), HasSubstr("no data from rank 0 for 150 ms"));
  EXPECT_THAT(store->lost_rank().value_or(""), HasSubstr("is rank 0 alive?"));
  store.reset();
}

TEST(TcpStore, ARankZeroThatLeavesInOrderIsNotLost) {
  const int port = free_port();
  auto server = std::make_unique<TcpStoreServer>("127.0.0.1", port, "launch");
  const auto store = open_tcp_store(options_of(port, 1));
  store->set_if_absent("key", "");
  server.reset();
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT(error_of<CommError>([&] { store->get("key"); }), HasSubstr("rank 0 has left"));
  EXPECT_EQ(store->lost_rank(), std::nullopt);
}

TEST(TcpStore, RankZeroStaysWhileOthersAsk) {
  const int port = free_port();
  FakeClock clock;
  std::atomic<int> sleeps = 0;
  clock.on_sleep = [&sleeps] {
    ++sleeps;
    sleeps.notify_all();
  };
  auto store = open_tcp_store(options_of(port, 0), clock);
  store->set_if_absent("why", "rank 0 failed");
  auto other = open_tcp_store(options_of(port, 1));
  std::thread leaving([&] { store.reset(); });
  await(sleeps, 1);  // it waits for the other rank
  EXPECT_EQ(other->get("why"), "rank 0 failed");
  other.reset();
  leaving.join();
  EXPECT_THAT(error_of<CommError>([&] { open_tcp_store(options_of(port, 2, 100ms)); }), HasSubstr("refused"));
}

}  // namespace
}  // namespace droptest::comm::tcp_store_test
