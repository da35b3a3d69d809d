// SPDX-License-Identifier: Apache-2.0
// How tests control the fake device: a test double of the CUDA runtime and of a part of cuBLASLt on the CPU, which runs
// the project's .cu sources, compiled as C++, where there is no GPU. tests/fake_cuda/README.md says what it can show.
//
// Thread safety: all of it, like CUDA's own calls; but settings are changed while no rank is at work.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string_view>

namespace droptest::fake_cuda {

enum class Order { kAscending, kDescending, kShuffled };

/// The order of the environment's DROPTEST_FAKE_CUDA_ORDER: "ascending" (also where it is not set), "descending" or
/// "shuffled". Another name ends the program.
Order default_order();

/// Whether the environment's DROPTEST_FAKE_CUDA_IDLE is absent. Where it is not, kernels and products do nothing and
/// fresh memory is zero: for runs of any size of which only the memory is of interest.
inline bool computes_by_default() {
  static const bool computes = std::getenv("DROPTEST_FAKE_CUDA_IDLE") == nullptr;
  return computes;
}

struct Settings {
  int devices = 1;
  std::size_t memory_bytes = std::size_t{4} << 30U;  ///< of each device
  Order threads = default_order();                   ///< in which the threads of a block run, from barrier to barrier
  Order blocks = default_order();                    ///< in which the blocks of a grid run
  std::uint64_t seed = 1;                            ///< of kShuffled
  int unready_queries = 3;                           ///< that cudaEventQuery answers before it runs the awaited work
  bool streams_capture = false;                      ///< the answer of cudaStreamIsCapturing
  bool computes = computes_by_default();
  std::set<int> refused_epilogues;  ///< for which cuBLASLt has no algorithm (cublasLtEpilogue_t)
  int algorithms = 1;               ///< that cuBLASLt proposes for a product at most: their ids are 1, 2, ...
};

/// Settings for work that is queued from now on.
void configure(const Settings& settings);
Settings settings();

/// Makes the nth call from now on (1: the next one) of a function of CUDA or cuBLASLt ("cudaMalloc") return `error`
/// without doing anything. Launches are calls of "cudaLaunchKernel".
void fail_call(std::string_view function, int nth, int error);
/// Makes the device break when it next runs a kernel of that name: the kernel does nothing, and each later call that
/// waits for the device or gives it work returns `error`, until reset().
void fail_kernel(std::string_view name, int error);

/// Calls of a function since reset().
std::uint64_t calls(std::string_view function);
/// Kernels queued since reset(): those of a name, or all.
std::uint64_t launches();
std::uint64_t launches(std::string_view name);
/// Products queued since reset() by cuBLASLt's algorithm of an id.
std::uint64_t products_by(int algorithm);
/// Times that a host thread waited for the device since reset().
std::uint64_t synchronizations();
std::size_t live_allocations();
std::size_t live_bytes();
std::size_t live_streams();
std::size_t live_events();
/// Queued work that nobody waited for yet.
std::size_t unfinished_work();

/// Default settings, counts of zero, no errors planned; devices work again. Allocations and queued work stay.
void reset();

/// reset() at both ends of a test's scope.
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
