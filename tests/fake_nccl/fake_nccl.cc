// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_nccl/fake_nccl.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <set>
#include <thread>

#include "api/nccl/newer_nccl.h"
#include "tests/fake_nccl/fake_clique.h"
#include "tests/fake_nccl/fake_streams.h"

namespace fake = droptest::fake_nccl;

/// NCCL's opaque type. Never freed, so that its use after the end is seen. Guarded by the library's mutex, except for
/// the members that streams read.
struct ncclComm {
  std::shared_ptr<fake::Clique> clique;  // shared by the ranks
  int rank = 0;
  int device = 0;
  bool blocks = false;
  bool planned_for = false;  ///< the clique was connected, so plans apply
  std::uint64_t operations = 0;
  // The last call takes effect after so many polls, once `pending` returns true.
  int polls_left = 0;
  std::function<bool()> pending;
  ncclResult_t state = ncclSuccess;        ///< state of the last call
  ncclResult_t async_error = ncclSuccess;  ///< stays
  std::atomic<int> under_way = 0;          ///< number of operations under way on streams
  std::atomic<bool> aborted = false;
  bool finalized = false;
  bool destroyed = false;
};

namespace droptest::fake_nccl {
namespace {

#ifdef DROPTEST_FAKE_NCCL_LIBRARY
constexpr bool kIsLibrary = true;
#else
constexpr bool kIsLibrary = false;
#endif

struct Joining {
  std::vector<ncclComm*> members;  // member of each rank; null: the rank has not called yet
  std::shared_ptr<Clique> clique;
};

struct SplitCall {
  int color = 0;
  int key = 0;
  ncclComm_t* place = nullptr;
  ncclComm* made = nullptr;
};
struct Splitting {
  std::map<int, SplitCall> calls;  // call of each rank of the parent
  bool done = false;
};

// NCCL's calls have no argument that could name it.
struct Library {
  std::mutex mutex;
  std::uint64_t next_id = 1;
  std::map<std::uint64_t, Joining> joining;
  std::map<const Clique*, std::uint64_t> growing;  // number of the id for each clique that grows
  void (*on_rank)(int) = nullptr;                  ///< called before ncclCommUserRank returns
  std::map<std::pair<const Clique*, std::uint64_t>, Splitting> splitting;
  std::map<const ncclComm*, std::uint64_t> splits;  // so far
  std::vector<ncclComm*> all;
  std::vector<Plan> plans;
  std::map<int, std::vector<std::string>> calls;
  const Clique* first = nullptr;  ///< whose calls are kept
  std::vector<std::string> misuses;
  std::string words;
  bool shared_devices = kIsLibrary;
  bool never_connects = false;
  int polls = 3;
  int version = NCCL_VERSION_CODE;
};

Library& library() {
  static Library* const instance = new Library;  // threads may still call at the end of the program
  return *instance;
}

/// The calls of a thread between GroupStart and GroupEnd.
struct OpenGroup {
  int depth = 0;
  std::vector<std::pair<ncclComm*, Operation>> operations;
  std::vector<ncclComm*> made;
};
thread_local OpenGroup group;  // NCCL's groups are the thread's, too

// Records misuse, or ends the program. The mutex is locked.
void misuse(const std::string& text) {
  if (kIsLibrary) {
    std::fprintf(stderr, "fake NCCL: %s\n", text.c_str());
    std::abort();
  }
  library().misuses.push_back(text);
}

void note(const ncclComm* comm, const std::string& text) {
  if (comm->clique.get() == library().first) library().calls[comm->rank].push_back(text);
}

bool usable(const ncclComm* comm, const char* call) {
  if (comm != nullptr && !comm->destroyed && !comm->aborted) return true;
  misuse(std::string(call) + " on a communicator that is gone");
  return false;
}

// Begins a call, which takes effect when `done` is true, after some polls. The mutex is locked.
ncclResult_t begin(ncclComm* comm, std::function<bool()> done) {
  if (comm->async_error != ncclSuccess) return comm->async_error;
  if (comm->pending) misuse("a call while the one before is in progress");
  comm->pending = std::move(done);
  comm->polls_left = library().polls;
  comm->state = ncclInProgress;
  return ncclInProgress;
}

// The fault that a test has planned for an operation. The mutex is locked.
std::optional<Plan> plan_for(ncclComm* comm, std::uint64_t operation) {
  if (!comm->planned_for) return std::nullopt;
  for (const Plan& candidate : library().plans) {
    if (candidate.rank == comm->rank && candidate.operation == operation) return candidate;
  }
  return std::nullopt;
}

void wait_until_aborted(ncclComm* comm) {
  comm->clique->run_messages(comm->rank, {{Kind::kRecv, nullptr, nullptr, 1, ncclFloat32, ncclSum, -1, nullptr}},
                             comm->aborted);
}

// The operations of one group, on a stream.
void run(ncclComm* comm, const std::vector<Operation>& operations, const std::optional<Plan>& planned) {
  if (planned && planned->kind == Plan::Kind::kAsyncError) {
    const std::lock_guard lock(library().mutex);
    comm->async_error = planned->result;
    library().words = planned->words;
  }
  if (planned) {
    wait_until_aborted(comm);
  } else {
    std::vector<Operation> messages;
    for (const Operation& operation : operations) {
      if (operation.kind >= Kind::kSend) {
        messages.push_back(operation);
      } else {
        comm->clique->run_collective(comm->rank, operation, comm->aborted);
      }
    }
    if (!messages.empty()) comm->clique->run_messages(comm->rank, messages, comm->aborted);
  }
  --comm->under_way;
}

// Puts calls that belong together on their streams; all of these wait for each other. The mutex is locked.
ncclResult_t launch(ncclComm* comm, std::vector<Operation> operations) {
  const std::uint64_t index = comm->operations++;
  const std::optional<Plan> planned = plan_for(comm, index);
  if (planned && planned->kind == Plan::Kind::kRefuse) {
    library().words = planned->words;
    return planned->result;
  }
  if (planned && planned->kind == Plan::Kind::kNotTaken) return begin(comm, [] { return false; });
  ++comm->under_way;
  return begin(comm, [comm, operations = std::move(operations), planned] {
    std::set<cudaStream_t> handles;
    for (const Operation& operation : operations) handles.insert(operation.stream);
    const auto leader = stream_of(*handles.begin());
    for (const cudaStream_t handle : handles) {
      const auto stream = stream_of(handle);
      if (stream->device() != comm->device) misuse("a stream of another device");
      if (stream != leader) leader->put([stream, position = stream->given()] { stream->wait_until_done(position); });
    }
    const bool captured = leader->is_captured();  // captured work is under way at each replay
    if (captured) --comm->under_way;
    leader->put([comm, operations, planned, captured] {
      if (captured) ++comm->under_way;
      run(comm, operations, planned);
    });
    for (const cudaStream_t handle : handles) {
      const auto stream = stream_of(handle);
      if (stream != leader) stream->put([leader, position = leader->given()] { leader->wait_until_done(position); });
    }
    return true;
  });
}

// Calls of a blocking communicator take effect before they return. The mutex is not locked.
ncclResult_t settled(ncclComm* comm, ncclResult_t result) {
  while (result == ncclInProgress && comm->blocks) {
    if (ncclCommGetAsyncError(comm, &result) != ncclSuccess) return ncclInternalError;
    std::this_thread::yield();
  }
  return result;
}

ncclResult_t success_if_under_way(ncclResult_t result) { return result == ncclInProgress ? ncclSuccess : result; }

ncclResult_t enqueue_without_wait(ncclComm* comm, const Operation& operation) {
  const std::lock_guard lock(library().mutex);
  if (!usable(comm, text_of(operation).c_str())) return ncclInvalidArgument;
  if (operation.count == 0) misuse("an operation on nothing");
  note(comm, text_of(operation));
  if (group.depth > 0) {
    group.operations.emplace_back(comm, operation);
    return ncclSuccess;
  }
  if (operation.kind >= Kind::kSend && !comm->blocks) misuse("a message outside of a group");
  return launch(comm, {operation});
}

ncclResult_t enqueue(ncclComm* comm, const Operation& operation) {
  return settled(comm, enqueue_without_wait(comm, operation));
}

bool shares_device(const Joining& joining) {
  std::set<int> devices;
  for (const ncclComm* member : joining.members) devices.insert(member->device);
  return devices.size() < joining.members.size();
}

ncclComm* make(std::shared_ptr<Clique> clique, int rank, const ncclConfig_t* config) {
  auto* const comm = new ncclComm;
  comm->clique = std::move(clique);
  comm->rank = rank;
  comm->device = current_device();
  comm->blocks = config == nullptr || config->blocking != 0;
  if (comm->blocks && !kIsLibrary) misuse("a communicator that blocks");
  library().all.push_back(comm);
  return comm;
}

ncclResult_t join(ncclComm_t* comm, int ranks, const ncclUniqueId& id, int rank, const ncclConfig_t* config) {
  const std::lock_guard lock(library().mutex);
  std::uint64_t number = 0;
  std::memcpy(&number, id.internal + 100, sizeof number);
  Joining& joining = library().joining[number];
  if (joining.clique == nullptr) {
    joining.clique = std::make_shared<Clique>(ranks);
    joining.members.resize(static_cast<std::size_t>(ranks));
    if (library().first == nullptr) library().first = joining.clique.get();
  }
  *comm = make(joining.clique, rank, config);
  (*comm)->planned_for = true;
  joining.members[static_cast<std::size_t>(rank)] = *comm;
  return begin(*comm, [made = *comm, &joining] {
    if (library().never_connects) return false;
    if (std::find(joining.members.begin(), joining.members.end(), nullptr) != joining.members.end()) return false;
    if (!library().shared_devices && shares_device(joining)) {
      library().words = "Duplicate GPU detected : rank 0 and rank 1 both on CUDA device 1b000";
      made->state = ncclInvalidUsage;
    }
    return true;
  });
}

// Makes the split when all ranks of the parent have called it. The mutex is locked.
void carry_out(Splitting& splitting) {
  std::map<int, std::vector<std::pair<int, int>>> colors;  // color -> (key, rank of the parent)
  for (const auto& [rank, call] : splitting.calls) {
    if (call.color != NCCL_SPLIT_NOCOLOR) colors[call.color].emplace_back(call.key, rank);
  }
  for (auto& [color, members] : colors) {
    std::sort(members.begin(), members.end());
    const auto clique = std::make_shared<Clique>(static_cast<int>(members.size()));
    for (std::size_t i = 0; i < members.size(); ++i) {
      ncclComm* const made = splitting.calls[members[i].second].made;
      made->clique = clique;
      made->rank = static_cast<int>(i);
    }
  }
  splitting.done = true;
}

// `callers`: ranks of the parent that call.
ncclResult_t split(ncclComm_t parent, int color, int key, int callers, ncclComm_t* place, const ncclConfig_t* config) {
  const std::lock_guard lock(library().mutex);
  if (!usable(parent, "CommSplit")) return ncclInvalidArgument;
  if (parent->under_way > 0) misuse("a split while work is under way");
  *place = nullptr;  // no communicator until the split is made
  SplitCall call{color, key, place, nullptr};
  if (color != NCCL_SPLIT_NOCOLOR) call.made = make(nullptr, 0, config);
  Splitting& splitting = library().splitting[{parent->clique.get(), library().splits[parent]++}];
  splitting.calls[parent->rank] = call;
  return begin(parent, [&splitting, callers, call] {
    if (library().never_connects) return false;
    if (!splitting.done && static_cast<int>(splitting.calls.size()) == callers) {
      carry_out(splitting);
    }
    if (splitting.done) *call.place = call.made;
    return splitting.done;
  });
}

}  // namespace

void plan(const Plan& plan) {
  const std::lock_guard lock(library().mutex);
  library().plans.push_back(plan);
}

void allow_shared_devices() {
  const std::lock_guard lock(library().mutex);
  library().shared_devices = true;
}

void set_polls(int polls) {
  const std::lock_guard lock(library().mutex);
  library().polls = polls;
}

void set_version(int version) {
  const std::lock_guard lock(library().mutex);
  library().version = version;
}

void never_connect() {
  const std::lock_guard lock(library().mutex);
  library().never_connects = true;
}

std::vector<std::string> calls(int rank) {
  const std::lock_guard lock(library().mutex);
  return library().calls[rank];
}

std::vector<std::string> misuses() {
  const std::lock_guard lock(library().mutex);
  return library().misuses;
}

std::size_t live_communicators() {
  const std::lock_guard lock(library().mutex);
  return static_cast<std::size_t>(std::count_if(library().all.begin(), library().all.end(), [](const ncclComm* comm) {
    return !comm->destroyed && !comm->aborted;
  }));
}

std::size_t aborted_communicators() {
  const std::lock_guard lock(library().mutex);
  return static_cast<std::size_t>(std::count_if(library().all.begin(), library().all.end(),
                                                [](const ncclComm* comm) { return comm->aborted.load(); }));
}

void reset() {
  const std::lock_guard lock(library().mutex);
  library().joining.clear();
  library().splitting.clear();
  library().all.clear();
  library().plans.clear();
  library().calls.clear();
  library().first = nullptr;
  library().misuses.clear();
  library().words.clear();
  library().shared_devices = kIsLibrary;
  library().never_connects = false;
  library().polls = 3;
  library().version = NCCL_VERSION_CODE;
}

}  // namespace droptest::fake_nccl

using fake::Kind;
using fake::library;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  const std::lock_guard lock(library().mutex);
  *version = library().version;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const std::lock_guard lock(library().mutex);
  std::memset(id, 0, sizeof *id);
  const std::uint64_t number = library().next_id++;
  std::memcpy(id->internal + 100, &number, sizeof number);
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const ncclResult_t result = fake::join(comm, ranks, id, rank, config);
  if (fake::group.depth == 0) return fake::settled(*comm, result);
  fake::group.made.push_back(*comm);
  return ncclSuccess;
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  return ncclCommInitRankConfig(comm, ranks, id, rank, nullptr);
}
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int devices, const int* list) {
  ncclUniqueId id;
  int before = 0;
  ncclGetUniqueId(&id);
  cudaGetDevice(&before);
  ncclGroupStart();  // NCCL also calls its own functions here, which may be interposed
  for (int rank = 0; rank < devices; ++rank) {
    cudaSetDevice(list == nullptr ? rank : list[rank]);
    ncclCommInitRank(comms + rank, devices, id, rank);
  }
  cudaSetDevice(before);
  return ncclGroupEnd();
}

ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id) {
  ncclGetUniqueId(id);
  const std::lock_guard lock(library().mutex);
  std::memcpy(&library().growing[comm->clique.get()], id->internal + 100, sizeof(std::uint64_t));
  return ncclSuccess;
}
ncclResult_t ncclCommGrow(ncclComm_t comm, int ranks, const ncclUniqueId* id, int rank, ncclComm_t* grown,
                          ncclConfig_t* config) {
  ncclUniqueId known;
  if (id != nullptr) {
    known = *id;
  } else {
    const std::lock_guard lock(library().mutex);
    std::memcpy(known.internal + 100, &library().growing[comm->clique.get()], sizeof(std::uint64_t));
  }
  const ncclResult_t result = fake::join(grown, ranks, known, comm == nullptr ? rank : comm->rank, config);
  return fake::settled(*grown, result);
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->clique->ranks();
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  if (library().on_rank != nullptr) library().on_rank(*rank);
  return ncclSuccess;
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}

// Behaves as NCCL 2.28, which returns success for splits and shrinks that are under way: only the state of the parent
// shows that.
ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* place, ncclConfig_t* config) {
  const ncclResult_t result = fake::split(parent, color, key, parent->clique->ranks(), place, config);
  return fake::success_if_under_way(fake::settled(parent, result));
}
ncclResult_t ncclCommShrink(ncclComm_t parent, int* /*excluded*/, int count, ncclComm_t* place, ncclConfig_t* config,
                            int /*flags*/) {
  const ncclResult_t result = fake::split(parent, 0, parent->rank, parent->clique->ranks() - count, place, config);
  return fake::success_if_under_way(fake::settled(parent, result));
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* result) {
  const std::lock_guard lock(library().mutex);
  if (!fake::usable(comm, "CommGetAsyncError")) return ncclInvalidArgument;
  if (comm->pending && --comm->polls_left < 0 && comm->pending()) {
    comm->pending = nullptr;
    if (comm->state == ncclInProgress) comm->state = ncclSuccess;
  }
  *result = comm->async_error != ncclSuccess ? comm->async_error : comm->state;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  const std::lock_guard lock(library().mutex);
  if (!fake::usable(comm, "CommFinalize")) return ncclInvalidArgument;
  fake::note(comm, "Finalize");
  comm->finalized = true;
  return fake::begin(comm, [comm] { return comm->under_way == 0; });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  const std::lock_guard lock(library().mutex);
  if (!fake::usable(comm, "CommDestroy")) return ncclInvalidArgument;
  if (!comm->blocks && (!comm->finalized || comm->state != ncclSuccess))
    fake::misuse("a communicator that is not finalised");
  comm->destroyed = true;
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  std::shared_ptr<fake::Clique> clique;
  {
    const std::lock_guard lock(library().mutex);
    if (!fake::usable(comm, "CommAbort")) return ncclInvalidArgument;
    fake::note(comm, "Abort");
    comm->aborted = true;
    clique = comm->clique;
  }
  if (clique != nullptr) clique->wake();
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++fake::group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* /*info*/) {
  if (--fake::group.depth == 0) fake::group = {};
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  if (--fake::group.depth > 0) return ncclSuccess;
  const fake::OpenGroup ended = std::exchange(fake::group, {});
  std::vector<ncclComm*> comms;
  std::map<ncclComm*, std::vector<fake::Operation>> together;
  for (const auto& [owner, operation] : ended.operations) {
    if (together[owner].empty()) comms.push_back(owner);
    together[owner].push_back(operation);
  }
  std::vector<std::pair<ncclComm*, ncclResult_t>> results;
  for (ncclComm* const made : ended.made) results.emplace_back(made, ncclInProgress);
  {
    const std::lock_guard lock(library().mutex);
    for (ncclComm* const comm : comms) {
      if (comm != comms.front() && !comm->blocks) fake::misuse("a group over several communicators");
      fake::note(comm, "GroupEnd");
      results.emplace_back(comm, fake::launch(comm, together[comm]));
    }
  }
  ncclResult_t result = ncclSuccess;
  for (auto& [comm, of_comm] : results) {
    of_comm = fake::settled(comm, of_comm);
    if (result == ncclSuccess || result == ncclInProgress) result = of_comm == ncclSuccess ? result : of_comm;
  }
  return result;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclSystemError:
      return "unhandled system error";
    case ncclInvalidUsage:
      return "invalid usage";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    default:
      return "another error";
  }
}

/// Controls of the library, for programs that find it by its file.
__attribute__((visibility("default"))) void droptest_fake_nccl_on_rank(void (*call)(int)) { library().on_rank = call; }
__attribute__((visibility("default"))) void droptest_fake_nccl_say(const char* words) {
  const std::lock_guard lock(library().mutex);
  library().words = words;
}

const char* ncclGetLastError(ncclComm_t comm) {
  thread_local std::string words;  // stays valid for its caller
  const std::lock_guard lock(library().mutex);
  if (comm != nullptr) fake::usable(comm, "GetLastError");
  words = library().words;
  return words.c_str();
}

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return fake::enqueue(comm, {Kind::kAllReduce, in, out, count, type, op, -1, stream});
}
ncclResult_t ncclAllReduceConfig(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                                 ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* /*config*/) {
  return ncclAllReduce(in, out, count, type, op, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return fake::enqueue(comm, {Kind::kReduceScatter, in, out, count, type, op, -1, stream});
}
ncclResult_t ncclReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return fake::enqueue(comm, {Kind::kReduce, in, out, count, type, op, root, stream});
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return fake::enqueue(comm, {Kind::kAllGather, in, out, count, type, ncclSum, -1, stream});
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return fake::enqueue(comm, {Kind::kBroadcast, in, out, count, type, ncclSum, root, stream});
}
ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return fake::enqueue(comm, {Kind::kSend, data, nullptr, count, type, ncclSum, peer, stream});
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return fake::enqueue(comm, {Kind::kRecv, nullptr, data, count, type, ncclSum, peer, stream});
}

}  // extern "C"
