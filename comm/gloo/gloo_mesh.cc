// SPDX-License-Identifier: Apache-2.0
#include "comm/gloo/gloo_mesh.h"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/device.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

#include "sim/error.h"

namespace droptest::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPoll{20};    ///< interval of looks at the store while a key is awaited
constexpr milliseconds kWatch{100};  ///< interval of looks at the store in normal operation
/// Longer than any run: Gloo's own timeouts, which close all connections, are not used.
constexpr milliseconds kForever = std::chrono::hours(10000);
constexpr std::size_t kBufferedBytesMost = std::size_t{16} << 20;

std::string key_of(std::string_view kind, int rank) { return std::string(kind) + "/" + std::to_string(rank); }

int number_at_start(const std::string& text) {
  int number = -1;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// The store interface that Gloo needs for the exchange of addresses, over our store: exact deadlines, and separate keys
// for each launch.
class GlooStore final : public gloo::rendezvous::Store {
 public:
  GlooStore(LaunchStore& store, milliseconds timeout, const Clock& clock)
      : store_(store), timeout_(timeout), clock_(clock) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set_if_absent("address/" + key, {data.data(), data.size()});
  }
  std::vector<char> get(const std::string& key) override {
    wait({key}, timeout_);
    const std::optional<std::string> value = store_.get("address/" + key);
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const milliseconds& timeout) override {
    const auto deadline = clock_.now() + timeout;
    for (const std::string& key : keys) {
      while (!store_.get("address/" + key)) {
        if (clock_.now() > deadline) throw CommError("no address " + key + " in " + store_.where());
        clock_.sleep_for(kPoll);
      }
    }
  }

 private:
  LaunchStore& store_;
  const milliseconds timeout_;
  const Clock& clock_;
};

std::shared_ptr<gloo::transport::Device> make_device(const std::string& interface_name, const std::string& address) {
  namespace tcp = gloo::transport::tcp;
  if (!interface_name.empty()) {
    tcp::attr attributes;
    attributes.iface = interface_name;
    try {
      return tcp::CreateDevice(attributes);
    } catch (const std::exception& error) {
      throw ConfigError("interface " + interface_name + ": " + without_gloo_place(error.what()));
    }
  }
  if (!address.empty()) return tcp::CreateDevice(tcp::attr(address.c_str()));
  try {
    return tcp::CreateDevice(tcp::attr());  // the host's name
  } catch (const std::exception&) {
    return tcp::CreateDevice(tcp::attr("127.0.0.1"));
  }
}

}  // namespace

GlooMesh::Transfer::Transfer(Direction direction, int peer, std::unique_ptr<gloo::transport::UnboundBuffer> buffer)
    : direction_(direction), peer_(peer), buffer_(std::move(buffer)) {}
GlooMesh::Transfer::Transfer(Transfer&&) noexcept = default;
GlooMesh::Transfer& GlooMesh::Transfer::operator=(Transfer&&) noexcept = default;
GlooMesh::Transfer::~Transfer() = default;

GlooMesh::CallScope::CallScope(GlooMesh& mesh, const Call& call) : mesh_(mesh) {
  {
    const std::lock_guard lock(mesh_.mutex_);
    mesh_.calls_.insert_or_assign(std::this_thread::get_id(), call);
    if (!mesh_.failure_) return;
  }
  mesh_.throw_failure();
}

GlooMesh::CallScope::~CallScope() {
  const std::lock_guard lock(mesh_.mutex_);
  mesh_.calls_.erase(std::this_thread::get_id());
}

GlooMesh::GlooMesh(const ProcessGroupOptions& options)
    : rank_(options.rank), size_(options.world_size), timeout_(options.timeout), clock_(*options.clock) {
  check_options(options);
  if (size_ == 1) return;
  store_ = open_launch_store(options.rendezvous, rank_, timeout_, clock_);
  meet("here", "come");
  connect(options.interface_name);
  // A rank that left at once would take the connection from a rank that still needs it.
  meet("connected", "connect");
  watcher_ = std::thread([this] { watch(); });
}

GlooMesh::~GlooMesh() {
  if (size_ == 1) return;
  try {
    if (!buffered_.empty()) {
      Call leaving;
      leaving.operation = Operation::kSend;
      const CallScope scope(*this, leaving);
      for (Buffered& message : buffered_) finish(message.transfer);
    }
    store_->set_if_absent(key_of("left", rank_), "");
  } catch (...) {
    // The mesh failed, or the store is gone: the peers know, or find out from the closed connections.
  }
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  watcher_.join();
  // If there was no failure, the connections end with their objects. An explicit close would reset them, and data that
  // the system has not delivered yet would be lost.
  if (failure_) close_connections();
  try {
    bool all_left = !failure_;
    for (int r = 0; r < size_ && all_left; ++r) all_left = store_->get(key_of("left", r)).has_value();
    if (all_left) store_->clear();
  } catch (...) {
    // Only keys that no later launch reads are left behind.
  }
}

void GlooMesh::check_options(const ProcessGroupOptions& options) const {
  if (size_ < 1) throw ConfigError("gloo: world size " + std::to_string(size_) + ", want at least 1");
  if (rank_ < 0 || rank_ >= size_) {
    throw ConfigError("gloo: rank " + std::to_string(rank_) + ", want 0 to " + std::to_string(size_ - 1));
  }
  if (options.timeout.count() < 1) {
    throw ConfigError("gloo: timeout " + std::to_string(options.timeout.count()) + " ms, want at least 1 ms");
  }
}

// Every rank writes its name and waits for the names of all: a missing rank is named before Gloo is asked.
void GlooMesh::meet(std::string_view stage, std::string_view verb) {
  const std::string here = "gloo: rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ": ";
  if (!store_->set_if_absent(key_of(stage, rank_), std::to_string(size_))) {
    throw ConfigError(here + "there was a rank " + std::to_string(rank_) + " before in " + store_->where() +
                      "; give each launch an id of its own, and each process a rank of its own");
  }
  const auto deadline = clock_.now() + timeout_;
  std::vector<int> missing(static_cast<std::size_t>(size_));
  std::iota(missing.begin(), missing.end(), 0);
  for (;;) {
    std::erase_if(missing, [&](int r) {
      const std::optional<std::string> their_size = store_->get(key_of(stage, r));
      if (their_size && number_at_start(*their_size) != size_) {
        throw ConfigError(here + "rank " + std::to_string(r) + " was told a world size of " + *their_size);
      }
      return their_size.has_value();
    });
    if (missing.empty()) return;
    if (const auto failure = posted_failure()) throw CommError(here + failure->cause);
    if (clock_.now() > deadline) {
      const Failure settled = settle({rank_, "connect",
                                      rank_list(missing) + " did not " + std::string(verb) + " within " +
                                          std::to_string(timeout_.count()) + " ms to " + store_->where()});
      throw CommError(here + settled.cause);
    }
    clock_.sleep_for(kPoll);
  }
}

void GlooMesh::connect(const std::string& interface_name) {
  try {
    const SigpipeBlocked sigpipe_blocked;  // also holds for the thread of Gloo's device
    std::shared_ptr<gloo::transport::Device> device = make_device(interface_name, store_->own_address());
    context_ = std::make_shared<gloo::rendezvous::Context>(rank_, size_);
    context_->setTimeout(timeout_);
    GlooStore store(*store_, timeout_, clock_);
    context_->connectFullMesh(store, device);
  } catch (const std::exception& error) {
    const Failure settled = settle(
        {rank_, "connect", "rank " + std::to_string(rank_) + " cannot connect: " + without_gloo_place(error.what())});
    throw CommError("gloo: rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ": " + settled.cause);
  }
}

// The watcher's loop: it never blocks on a peer, so a living rank always answers within kAnswer.
void GlooMesh::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const auto next_poll = clock_.now() + kWatch;
    auto wake_at = next_poll;
    for (const Wait& wait : waits_) {
      if (!wait.timed_out) wake_at = std::min(wake_at, wait.deadline);
    }
    clock_.wait_until(changed_, lock, wake_at);
    if (stop_) return;
    for (Wait& wait : waits_) {
      if (wait.timed_out || clock_.now() < wait.deadline) continue;
      wait.timed_out = true;
      interrupt(wait);
    }
    if (failure_) continue;
    lock.unlock();
    std::optional<Failure> posted;
    bool asked = false;
    try {
      posted = posted_failure();
      asked = stall_is_asked_about();
    } catch (const std::exception&) {
      // The connections still work without the store; each rank then finds failures by itself. But if a rank held the
      // store, that rank is gone.
      posted = lost_rank();
    }
    if (asked) post_status();
    lock.lock();
    if (!posted || failure_) continue;
    failure_ = posted;
    interrupt_waits();
  }
}

// Called with the mutex held. Makes a wait return without its data.
void GlooMesh::interrupt(const Wait& wait) {
  if (wait.transfer->direction_ == Transfer::Direction::kSend) {
    wait.transfer->buffer_->abortWaitSend();
  } else {
    wait.transfer->buffer_->abortWaitRecv();
  }
}

void GlooMesh::interrupt_waits() const {
  for (const Wait& wait : waits_) interrupt(wait);
}

// Called with the mutex held. A thread outside of any call has a call without a name.
Call GlooMesh::call_of_this_thread() const {
  const auto found = calls_.find(std::this_thread::get_id());
  return found == calls_.end() ? Call() : found->second;
}

GlooMesh::Transfer GlooMesh::start_send(std::span<const std::byte> bytes, int peer, std::uint64_t slot) {
  Transfer transfer(Transfer::Direction::kSend, peer,
                    context_->createUnboundBuffer(const_cast<std::byte*>(bytes.data()), bytes.size()));
  try {
    transfer.buffer_->send(peer, slot);
  } catch (const std::exception& error) {
    end_with(connection_lost(peer, error.what()));
  }
  return transfer;
}

GlooMesh::Transfer GlooMesh::start_receive(std::span<std::byte> bytes, int peer, std::uint64_t slot) {
  Transfer transfer(Transfer::Direction::kReceive, peer, context_->createUnboundBuffer(bytes.data(), bytes.size()));
  try {
    transfer.buffer_->recv(peer, slot);
  } catch (const std::exception& error) {
    end_with(connection_lost(peer, error.what()));
  }
  return transfer;
}

void GlooMesh::finish(Transfer& transfer) {
  auto wait = waits_.end();
  {
    const std::lock_guard lock(mutex_);
    wait = waits_.insert(waits_.end(), {&transfer, call_of_this_thread(), clock_.now() + timeout_});
    if (failure_) interrupt(*wait);
  }
  bool done = false;
  std::string broken;
  try {
    done = transfer.direction_ == Transfer::Direction::kSend ? transfer.buffer_->waitSend(nullptr, kForever)
                                                             : transfer.buffer_->waitRecv(nullptr, kForever);
  } catch (const std::exception& error) {
    broken = error.what();
  }
  bool failed = false;
  const auto end_wait = [&] { waits_.erase(std::exchange(wait, waits_.end())); };
  {
    const std::lock_guard lock(mutex_);
    failed = failure_.has_value();
    if (done || failed || !broken.empty()) end_wait();
  }
  if (done) return;
  if (failed) throw_failure();
  // During the search for the culprit this rank still waits: the others may ask for its call.
  const Failure found = broken.empty() ? stalled(transfer.peer_) : connection_lost(transfer.peer_, broken);
  if (broken.empty()) {
    const std::lock_guard lock(mutex_);
    end_wait();
  }
  end_with(found);
}

void GlooMesh::send_buffered(std::vector<std::byte> bytes, int peer, std::uint64_t slot) {
  const std::size_t size_bytes = bytes.size();
  std::unique_lock lock(buffered_mutex_);
  while (!buffered_.empty() && buffered_bytes_ + size_bytes > kBufferedBytesMost) {
    Buffered oldest = std::move(buffered_.front());
    buffered_.pop_front();
    buffered_bytes_ -= oldest.bytes.size();
    lock.unlock();
    finish(oldest.transfer);
    lock.lock();
  }
  Transfer transfer = start_send(bytes, peer, slot);  // moving the vector does not move its elements
  buffered_.push_back({std::move(bytes), std::move(transfer)});
  buffered_bytes_ += size_bytes;
}

void GlooMesh::end_with(const Failure& found) {
  const Failure settled = settle(found);
  {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = settled;
    interrupt_waits();  // also those of other threads
  }
  throw_failure();
}

void GlooMesh::throw_failure() {
  close_connections();
  Failure failure;
  Call call;
  {
    const std::lock_guard lock(mutex_);
    failure = *failure_;
    call = call_of_this_thread();
  }
  throw CommError(failure_text(failure, call, rank_, size_));
}

void GlooMesh::fail(const std::string& cause) {
  std::string at;
  {
    const std::lock_guard lock(mutex_);
    if (calls_.contains(std::this_thread::get_id())) at = operation_name(call_of_this_thread().operation);
  }
  end_with({rank_, at, cause});
}

std::optional<Failure> GlooMesh::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

Failure GlooMesh::end(const Failure& found) noexcept {
  Failure stands;
  try {
    if (const auto failed = failure()) return *failed;
    stands = settle(found);
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = stands;
    interrupt_waits();
  } catch (...) {
    // Out of memory for the text: the peers find the connections closed.
  }
  close_connections();
  return stands;
}

void GlooMesh::abort(std::string_view reason) noexcept {
  Failure found;
  try {
    found = {rank_, "", "rank " + std::to_string(rank_) + " failed: " + std::string(reason)};
  } catch (...) {
    // Out of memory for the text, too.
  }
  end(found);
}

void GlooMesh::close_connections() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (closed_) return;
    closed_ = true;
  }
  try {
    if (context_ != nullptr) context_->closeConnections();
  } catch (...) {
    // They are closed, or the process ends anyway.
  }
}

}  // namespace droptest::comm
