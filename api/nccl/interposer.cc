// SPDX-License-Identifier: Apache-2.0
#include "api/nccl/interposer.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iomanip>
#include <set>
#include <sstream>
#include <thread>
#include <utility>

#include "api/nccl/real_nccl.h"
#include "comm/device/cuda_error.h"
#include "comm/rendezvous/launch_environment.h"
#include "sim/error.h"

namespace droptest::nccl_shim {
namespace {

void check_nccl(ncclResult_t result, const char* call) {
  if (result != ncclSuccess && result != ncclInProgress) {
    throw DeviceError(std::string(call) + ": " + DROPTEST_REAL(ncclGetErrorString, result));
  }
}

// The launcher's rank and world size, if the process is one of several.
std::optional<comm::LaunchEnvironment> launched() {
  const auto launch = comm::launch_environment(comm::process_environment());
  return launch && launch->world_size > 1 ? launch : std::nullopt;
}

void launch(const Member& member, const Fill& fill) {
  const DeviceScope scope(member.device());
  member.losses().lose(fill);
}

// Writes the counts of communicators that the program did not end.
void at_exit() {
  Interposer* const interposer = Interposer::get();
  if (interposer == nullptr) return;  // a forked child
  try {
    interposer->write_all_counts();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "droptest: counts at the end of the program: %s\n", error.what());
  }
}

}  // namespace

// One all-gather over the new communicator, on a stream of its own. All ranks know the same list afterwards. The world
// ranks are the launcher's ranks if these differ. Otherwise ranks are threads or devices of one process, and the ranks
// of the communicator are the world ranks.
class Interposer::Exchange {
 public:
  Exchange(NewCommunicator made, Interposer& owner) : made_(std::move(made)) {
    check_nccl(DROPTEST_REAL(ncclCommCount, comm(), &ranks_), "ncclCommCount");
    check_nccl(DROPTEST_REAL(ncclCommUserRank, comm(), &rank_), "ncclCommUserRank");
    check_nccl(DROPTEST_REAL(ncclCommCuDevice, comm(), &device_), "ncclCommCuDevice");
    const auto launch = launched();
    if (made_.losses == nullptr && !launch && owner.losses_.size() == 1) made_.losses = owner.losses_.begin()->second;
    Identity mine;
    mine.world_rank = made_.losses != nullptr ? made_.losses->rank() : launch ? launch->rank : rank_;
    const auto losses = made_.losses != nullptr ? made_.losses : owner.losses_of(mine.world_rank, 0);
    world_size_ = losses != nullptr ? losses->world_size() : launch ? launch->world_size : ranks_;
    mine.world_size = world_size_;
    mine.next_group = losses != nullptr ? losses->next_group() : 0;
    mine.digest = losses != nullptr ? losses->digest() : RankLosses(mine.world_rank, world_size_).digest();
    members_.assign(static_cast<std::size_t>(ranks_), mine);
    const DeviceScope scope(device_);
    memory_ = std::make_unique<DeviceBytes>(members_.size() * sizeof(Identity));
    memory_->write(std::as_bytes(std::span(members_)));
    comm::check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~Exchange() {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  ncclComm_t comm() const { return *made_.place; }
  ncclComm_t polled() const { return made_.polled; }

  ncclResult_t start() {
    return DROPTEST_REAL(ncclAllGather, memory_->data() + static_cast<std::size_t>(rank_) * sizeof(Identity),
                         memory_->data(), sizeof(Identity), ncclUint8, comm(), stream_);
  }
  /// Whether all ranks have told their identities. Does not block.
  bool is_done() const {
    ncclResult_t state = ncclSuccess;
    check_nccl(DROPTEST_REAL(ncclCommGetAsyncError, comm(), &state), "ncclCommGetAsyncError");
    check_nccl(state, "exchange of ranks");
    if (state == ncclInProgress) return false;
    const DeviceScope scope(device_);
    const cudaError_t status = cudaStreamQuery(stream_);
    if (status != cudaErrorNotReady) comm::check_cuda(status, "exchange of ranks");
    return status == cudaSuccess;
  }
  std::shared_ptr<Member> finish(Interposer& owner) {
    const DeviceScope scope(device_);
    memory_->read(std::as_writable_bytes(std::span(members_)));
    check_members();
    std::set<std::int32_t> different;
    for (const Identity& member : members_) different.insert(member.world_rank);
    if (different.size() < members_.size()) {
      for (std::size_t i = 0; i < members_.size(); ++i) members_[i].world_rank = static_cast<std::int32_t>(i);
      world_size_ = ranks_;
      made_.losses = nullptr;  // these were losses of an earlier communicator with other ranks
    }
    const int me = members_[static_cast<std::size_t>(rank_)].world_rank;
    return std::make_shared<Member>(made_.losses != nullptr ? made_.losses : owner.losses_of(me, world_size_), members_,
                                    rank_, device_);
  }

 private:
  // All members find the same difference, and no member goes on.
  void check_members() const {
    const Identity& mine = members_[static_cast<std::size_t>(rank_)];
    const auto rank_of = [](const Identity& one) { return "rank " + std::to_string(one.world_rank); };
    const auto hex = [](std::uint64_t digest) {
      std::ostringstream text;
      text << std::hex << std::setw(16) << std::setfill('0') << digest;
      return text.str();
    };
    for (const Identity& other : members_) {
      if (other.digest == mine.digest) continue;
      throw ConfigError(
          rank_of(mine) + ": network: has the digest " + hex(mine.digest) + ", and that of " + rank_of(other) +
          " has " + hex(other.digest) +
          ": want one network section and one seed on all ranks, in the files that DROPTEST_NETWORK names");
    }
    for (const Identity& other : members_) {
      if (other.world_size == mine.world_size) continue;
      throw ConfigError(rank_of(mine) + ": communicator of " + std::to_string(ranks_) + " ranks: got a program of " +
                        std::to_string(mine.world_size) + " ranks, and on " + rank_of(other) + " one of " +
                        std::to_string(other.world_size) +
                        ": want RANK and WORLD_SIZE of all ranks that the program will ever have, on each of them");
    }
  }

  NewCommunicator made_;
  int ranks_ = 0;
  int rank_ = 0;
  int device_ = 0;
  int world_size_ = 0;
  std::vector<Identity> members_;
  std::unique_ptr<DeviceBytes> memory_;
  cudaStream_t stream_ = nullptr;
};

Interposer* Interposer::get() {
  static const pid_t process = ::getpid();
  static Interposer* const instance = [] {
    const char* const file = std::getenv("DROPTEST_NETWORK");
    return file == nullptr || *file == '\0' ? nullptr : new Interposer;  // threads may still call at the end
  }();
  return ::getpid() == process ? instance : nullptr;  // a forked child has no use of the parent's communicators
}

Interposer::OpenGroup& Interposer::open_group() {
  thread_local OpenGroup group;
  return group;
}

void Interposer::check_network(int rank, int ranks) {
  const std::lock_guard lock(mutex_);
  if (network_is_checked_) return;
  const auto launch = launched();
  const RankLosses readable(launch ? launch->rank : rank, launch ? launch->world_size : ranks);
  network_is_checked_ = true;
}

// Called with the mutex held. A world size of 0 asks only for a rank that is known.
std::shared_ptr<RankLosses> Interposer::losses_of(int rank, int world_size) {
  const auto found = losses_.find(rank);
  if (found != losses_.end() || world_size == 0) return found == losses_.end() ? nullptr : found->second;
  const auto made = losses_.emplace(rank, std::make_shared<RankLosses>(rank, world_size)).first->second;
  if (losses_.size() == 1) std::atexit(at_exit);  // registered after the network's objects, so run before they end
  return made;
}

std::shared_ptr<Member> Interposer::member(ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  const auto found = members_.find(comm);
  if (found != members_.end()) return found->second;
  throw ConfigError(
      "communicator: got one that was refused, or that a function made which this library does not know: it would lose "
      "nothing; want one of ncclCommInitRank, ncclCommInitRankConfig, ncclCommInitRankScalable, ncclCommInitAll, "
      "ncclCommSplit, ncclCommShrink or ncclCommGrow");
}

// Communicators that block are introduced together, because one thread may have several ranks.
ncclResult_t Interposer::introduce(std::vector<NewCommunicator> made) {
  std::erase_if(made, [](const NewCommunicator& one) { return *one.place == nullptr; });  // a rank without a color
  if (made.empty()) return ncclSuccess;
  std::vector<std::unique_ptr<Exchange>> exchanges;
  {
    const std::lock_guard lock(mutex_);
    for (NewCommunicator& one : made) exchanges.push_back(std::make_unique<Exchange>(std::move(one), *this));
  }
  check_nccl(DROPTEST_REAL(ncclGroupStart), "ncclGroupStart");
  for (const auto& exchange : exchanges) check_nccl(exchange->start(), "exchange of ranks");
  check_nccl(DROPTEST_REAL(ncclGroupEnd), "ncclGroupEnd");
  for (const auto& exchange : exchanges) {
    while (!exchange->is_done()) std::this_thread::yield();
  }
  const std::lock_guard lock(mutex_);
  for (const auto& exchange : exchanges) members_[exchange->comm()] = exchange->finish(*this);
  return ncclSuccess;
}

ncclResult_t Interposer::made(std::vector<NewCommunicator> made, ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress) return result;
  if (in_group()) {
    std::move(made.begin(), made.end(), std::back_inserter(open_group().made));
    return result;
  }
  std::unique_lock lock(mutex_);
  // NCCL calls splits and shrinks a success while they are under way.
  const bool begun = result == ncclInProgress || std::any_of(made.begin(), made.end(), [this](const auto& one) {
                       return one.polled != nullptr && non_blocking_.contains(one.polled);
                     });
  if (!begun) {
    lock.unlock();
    return introduce(std::move(made));
  }
  std::move(made.begin(), made.end(), std::back_inserter(being_made_));
  return result;
}

ncclResult_t Interposer::queried(ncclComm_t comm, ncclResult_t state) {
  if (state == ncclInProgress) return state;
  const std::lock_guard lock(mutex_);
  const auto concerns = [comm](const auto& one) { return one.polled == comm || *one.place == comm; };
  if (state != ncclSuccess) {  // the program may give up its places
    std::erase_if(being_made_, concerns);
    return state;
  }
  for (auto one = being_made_.begin(); one != being_made_.end();) {
    if (!concerns(*one)) {
      ++one;
      continue;
    }
    NewCommunicator next = std::move(*one);
    one = being_made_.erase(one);
    if (*next.place == nullptr) continue;
    exchanges_.push_back(std::make_unique<Exchange>(std::move(next), *this));
    check_nccl(exchanges_.back()->start(), "exchange of ranks");
  }
  bool all_done = true;
  for (auto one = exchanges_.begin(); one != exchanges_.end();) {
    const bool own = (*one)->comm() == comm || (*one)->polled() == comm;
    if (own && (*one)->is_done()) {
      members_[(*one)->comm()] = (*one)->finish(*this);
      non_blocking_.insert((*one)->comm());
      one = exchanges_.erase(one);
      continue;
    }
    all_done &= !own;
    ++one;
  }
  for (const Waiting& waiting : waiting_) {
    if (waiting.comm == comm) launch(*waiting.member, waiting.fill);
  }
  std::erase_if(waiting_, [comm](const Waiting& waiting) { return waiting.comm == comm; });
  return all_done ? ncclSuccess : ncclInProgress;
}

Interposer::Forgotten Interposer::forget(ncclComm_t comm) {
  const std::lock_guard lock(mutex_);
  Forgotten forgotten;
  std::erase_if(waiting_, [comm](const Waiting& waiting) { return waiting.comm == comm; });
  std::erase_if(being_made_, [comm](const NewCommunicator& one) { return one.polled == comm || *one.place == comm; });
  for (auto& exchange : exchanges_) {
    if (exchange->comm() == comm) forgotten.exchanges.emplace_back(std::move(exchange));
  }
  std::erase(exchanges_, nullptr);
  non_blocking_.erase(comm);
  const auto found = members_.find(comm);
  if (found == members_.end()) return forgotten;
  forgotten.member = std::move(found->second);
  members_.erase(found);
  return forgotten;
}

void Interposer::ends(ncclComm_t comm) {
  const std::shared_ptr<Member> last = forget(comm).member;
  if (last == nullptr) return;
  const DeviceScope scope(last->device());
  comm::check_cuda(cudaDeviceSynchronize(), "counts of a communicator");
  last->losses().write_counts();
}

void Interposer::write_all_counts() {
  const std::lock_guard lock(mutex_);
  for (const auto& [rank, losses] : losses_) losses->write_counts();
}

void Interposer::group_started() { ++open_group().depth; }

bool Interposer::in_group() const { return open_group().depth > 0; }

void* Interposer::scratch(const std::shared_ptr<Member>& member, const NcclCall& call, std::size_t bytes) {
  if (in_group()) open_group().members.push_back(member);
  return member->scratch(call, bytes, in_group());
}

ncclResult_t Interposer::group_ended(ncclResult_t result) {
  OpenGroup& group = open_group();
  if (--group.depth > 0) return result;
  OpenGroup ended = std::exchange(group, {});
  for (const auto& member : ended.members) member->end_group();
  if (result != ncclSuccess && result != ncclInProgress) return result;
  for (const Waiting& one : ended.fills) lose_after(one.comm, one.member, one.fill, result);
  return ended.made.empty() ? result : made(std::move(ended.made), result);
}

void Interposer::group_simulated() {
  OpenGroup& group = open_group();
  if (--group.depth > 0) return;
  const OpenGroup ended = std::exchange(group, {});
  for (const auto& member : ended.members) member->end_group();
}

void Interposer::lose_after(ncclComm_t comm, const std::shared_ptr<Member>& member, const Fill& fill,
                            ncclResult_t result) {
  if (result != ncclSuccess && result != ncclInProgress) return;
  if (in_group()) {
    open_group().fills.push_back({comm, member, fill});
  } else if (result == ncclInProgress) {
    const std::lock_guard lock(mutex_);
    waiting_.push_back({comm, member, fill});
  } else {
    launch(*member, fill);
  }
}

}  // namespace droptest::nccl_shim
