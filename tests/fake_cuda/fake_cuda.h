// SPDX-License-Identifier: Apache-2.0
// Controls of the fake device: a test double of the CUDA runtime and of a part of cuBLASLt on the CPU. It runs the
// project's .cu sources, compiled as C++, without a GPU. tests/fake_cuda/README.md says what it can show.
//
// Thread safety: any thread may call any function, like CUDA's own calls, but settings are changed only while no rank
// is at work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string_view>

namespace droptest::fake_cuda {

enum class Order { kAscending, kDescending, kShuffled };

/// The order in the environment variable DROPTEST_FAKE_CUDA_ORDER: "ascending" (the default), "descending" or
/// "shuffled". Another name ends the program.
Order default_order();

/// Whether the environment variable DROPTEST_FAKE_CUDA_IDLE is absent. If it is set, kernels and GEMMs do nothing and
/// fresh memory is zero, for runs of any size in which only the memory matters.
inline bool computes_by_default() {
  static const bool computes = std::getenv("DROPTEST_FAKE_CUDA_IDLE") == nullptr;
  return computes;
}

struct Settings {
  int devices = 1;
  std::size_t memory_bytes = std::size_t{4} << 30U;  ///< memory of each device
  Order threads = default_order();                   ///< order of the threads of a block, from barrier to barrier
  Order blocks = default_order();                    ///< order of the blocks of a grid
  std::uint64_t seed = 1;                            ///< seed of kShuffled
  int unready_queries = 3;       ///< number of "not ready" answers of cudaEventQuery before it runs the awaited work
  bool streams_capture = false;  ///< answer of cudaStreamIsCapturing
  bool computes = computes_by_default();
  std::set<int> refused_epilogues;  ///< epilogues without an algorithm of cuBLASLt (cublasLtEpilogue_t)
  int algorithms = 1;  ///< largest number of algorithms that cuBLASLt proposes for a GEMM; their ids are 1, 2, ...
};

/// Settings for work that is queued from now on.
void configure(const Settings& settings);
Settings settings();

/// Makes the nth call from now on (1: the next one) of a function of CUDA or cuBLASLt, such as "cudaMalloc", return
/// `error` without doing anything. Launches are calls of "cudaLaunchKernel".
void fail_call(std::string_view function, int nth, int error);
/// Breaks the device when it next runs a kernel of that name. The kernel does nothing, and each later call that waits
/// for the device or gives it work returns `error`, until reset().
void fail_kernel(std::string_view name, int error);

/// The number of calls of a function since reset().
std::uint64_t calls(std::string_view function);
/// The number of kernels queued since reset(), with that name or all.
std::uint64_t launches();
std::uint64_t launches(std::string_view name);
/// The number of GEMMs queued since reset() with the algorithm of that id.
std::uint64_t products_by(int algorithm);
/// The number of waits of host threads for the device since reset().
std::uint64_t synchronizations();
std::size_t live_allocations();
std::size_t live_bytes();
std::size_t live_streams();
std::size_t live_events();
/// The amount of queued work that nobody has waited for yet.
std::size_t unfinished_work();

/// Restores default settings, zero counts and no planned errors; broken devices work again. Allocations and queued work
/// stay.
void reset();

/// Calls reset() at the beginning and the end of its scope.
class Scope {
 public:
  Scope() { reset(); }
  explicit Scope(const Settings& settings) {
    reset();
    configure(settings);
  }
  ~Scope() { reset(); }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
};

}  // namespace droptest::fake_cuda
