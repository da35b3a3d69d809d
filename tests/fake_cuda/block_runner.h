// SPDX-License-Identifier: Apache-2.0
// Runs the blocks of a kernel one after another, the threads of a block as fibers of the calling thread.
#pragma once

#include <csetjmp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/fake_cuda/device_side.h"
#include "tests/fake_cuda/fake_cuda.h"

namespace droptest::fake_cuda {

struct Kernel {
  std::string name;
  std::uint64_t blocks = 0;
  unsigned threads = 0;
  std::size_t shared_bytes = 0;
  std::function<void()> thread;
};

/// A fiber runs one thread after the other, until one of them must wait. Then the fiber stays with that thread, and
/// another fiber continues. So a kernel without barriers needs one fiber.
/// Thread safety: one call at a time, from any thread.
class BlockRunner {
 public:
  BlockRunner();
  ~BlockRunner();
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;

  void run(const Kernel& kernel, const Settings& settings);

  // The calls of the running thread (device_side.h).
  void sync_block();
  void sync_warp(unsigned mask);
  std::uint64_t shuffle(Shuffle kind, unsigned mask, std::uint64_t bits, int operand, int width);
  unsigned char* shared_memory() { return shared_.data(); }
  [[noreturn]] void fail_thread(const std::string& what) const;

 private:
  struct Fiber;
  enum class Wait : std::uint8_t { kNone, kBlock, kWarp, kIndex, kXor, kDown };
  struct Thread {
    Fiber* fiber = nullptr;  // the fiber that has the thread on its stack
    Wait wait = Wait::kNone;
    bool ended = false;
    std::uint64_t shuffles = 0;
    std::uint64_t given[2] = {};  // arguments of the last two shuffles
  };

  void run_block(std::uint64_t block);
  void run_fiber();
  static void enter_fiber();
  void leave(Fiber& self);
  void run_new_fiber();
  void resume(Fiber& fiber);
  void wait_at(Wait wait);
  void release_warp(unsigned warp);
  void release_block();
  void make_released_ready();
  void end_of_thread(unsigned thread);
  void check_warp(unsigned mask, const char* what) const;
  [[noreturn]] void fail_stuck() const;
  void put_in_order(std::vector<unsigned>& indices, Order order);

  const Kernel* kernel_ = nullptr;
  Settings settings_;
  std::mt19937_64 random_;
  std::vector<unsigned char> shared_;
  std::vector<Thread> threads_;
  std::vector<unsigned> ready_;  // threads to be started or resumed, in this order, from next_ on
  std::size_t next_ = 0;
  std::vector<unsigned> released_;  // threads that the last barrier has released
  unsigned current_ = 0;
  unsigned living_ = 0;
  unsigned waiting_at_block_ = 0;
  std::vector<unsigned> living_of_warp_;
  std::vector<unsigned> waiting_of_warp_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> idle_;
  Fiber* entering_ = nullptr;
  std::jmp_buf scheduler_;
};

}  // namespace droptest::fake_cuda
