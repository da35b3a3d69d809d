// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/block_runner.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "tests/fake_cuda/failure.h"

namespace droptest::fake_cuda {

uint3 thread_index;
uint3 block_index;
dim3 block_size;
dim3 grid_size;

namespace {

constexpr std::size_t kStackBytes = std::size_t{256} << 10U;
constexpr std::size_t kGuardBytes = std::size_t{64} << 10U;
constexpr unsigned kWarp = 32;

// A fiber is entered by setcontext() and then switched by _longjmp(), which unlike swapcontext() makes no system call.
BlockRunner* entering = nullptr;

void jump_between(std::jmp_buf& from, std::jmp_buf& to) {
  if (_setjmp(from) == 0) _longjmp(to, 1);
}

}  // namespace

struct BlockRunner::Fiber {
  Fiber() {
    stack = mmap(nullptr, kGuardBytes + kStackBytes, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED) fail("no memory for the stack of a thread");
    mprotect(stack, kGuardBytes, PROT_NONE);
  }
  ~Fiber() { munmap(stack, kGuardBytes + kStackBytes); }
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  void* stack;
  std::jmp_buf left;
};

BlockRunner::BlockRunner() = default;
BlockRunner::~BlockRunner() = default;

void BlockRunner::fail_thread(const std::string& what) const {
  fail("kernel " + kernel_->name + ", block " + std::to_string(block_index.x) + ", thread " + std::to_string(current_) +
       ": " + what);
}

void BlockRunner::put_in_order(std::vector<unsigned>& indices, Order order) {
  if (order == Order::kDescending) std::reverse(indices.begin(), indices.end());
  if (order != Order::kShuffled) return;
  for (std::size_t i = indices.size(); i > 1; --i) std::swap(indices[i - 1], indices[random_() % i]);
}

void BlockRunner::run(const Kernel& kernel, const Settings& settings) {
  if (!settings.computes) return;
  kernel_ = &kernel;
  settings_ = settings;
  random_.seed(settings.seed);
  grid_size = dim3(static_cast<unsigned>(kernel.blocks));
  block_size = dim3(kernel.threads);
  shared_.resize(kernel.shared_bytes);
  std::vector<unsigned> blocks(kernel.blocks);
  std::iota(blocks.begin(), blocks.end(), 0U);
  put_in_order(blocks, settings_.blocks);
  for (const unsigned block : blocks) run_block(block);
}

void BlockRunner::run_block(std::uint64_t block) {
  block_index = {static_cast<unsigned>(block), 0, 0};
  std::fill(shared_.begin(), shared_.end(), static_cast<unsigned char>(0xFF));
  threads_.assign(kernel_->threads, Thread{});
  living_ = kernel_->threads;
  waiting_at_block_ = 0;
  living_of_warp_.assign(kernel_->threads / kWarp, kWarp);
  waiting_of_warp_.assign(kernel_->threads / kWarp, 0);
  ready_.clear();
  next_ = 0;
  released_.resize(kernel_->threads);
  std::iota(released_.begin(), released_.end(), 0U);
  make_released_ready();
  // Fibers go on with each other, and come back here for a new fiber or when nothing is ready.
  while (next_ < ready_.size()) {
    if (idle_.empty()) {
      run_new_fiber();
    } else {
      Fiber& fiber = *idle_.back();
      idle_.pop_back();
      resume(fiber);
    }
  }
  if (living_ > 0) fail_stuck();
}

// Continues with a thread that is ready; returns when another fiber continues with `self`.
void BlockRunner::leave(Fiber& self) {
  Fiber* fiber = nullptr;
  if (next_ < ready_.size()) {
    fiber = threads_[ready_[next_]].fiber;
    if (fiber != nullptr) {
      current_ = ready_[next_++];
      thread_index = {current_, 0, 0};
    } else if (!idle_.empty()) {
      fiber = idle_.back();
      idle_.pop_back();
    }
  }
  if (fiber == &self) return;
  jump_between(self.left, fiber == nullptr ? scheduler_ : fiber->left);
}

// Starts threads that are ready in a new fiber; returns when no fiber finds anything to do, or all wait.
void BlockRunner::run_new_fiber() {
  entering_ = fibers_.emplace_back(std::make_unique<Fiber>()).get();
  entering = this;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = static_cast<char*>(entering_->stack) + kGuardBytes;
  context.uc_stack.ss_size = kStackBytes;
  context.uc_link = nullptr;
  makecontext(&context, &BlockRunner::enter_fiber, 0);
  if (_setjmp(scheduler_) == 0) setcontext(&context);
}

void BlockRunner::resume(Fiber& fiber) { jump_between(scheduler_, fiber.left); }

void BlockRunner::enter_fiber() { entering->run_fiber(); }

void BlockRunner::run_fiber() {
  Fiber& self = *entering_;
  while (true) {
    while (next_ < ready_.size() && threads_[ready_[next_]].fiber == nullptr) {
      const unsigned thread = ready_[next_++];
      current_ = thread;
      thread_index = {thread, 0, 0};
      threads_[thread].fiber = &self;
      kernel_->thread();
      end_of_thread(thread);
    }
    idle_.push_back(&self);
    leave(self);
  }
}

void BlockRunner::make_released_ready() {
  put_in_order(released_, settings_.threads);
  if (next_ == ready_.size()) {
    ready_.clear();
    next_ = 0;
  }
  ready_.insert(ready_.end(), released_.begin(), released_.end());
}

void BlockRunner::end_of_thread(unsigned thread) {
  threads_[thread].ended = true;
  --living_;
  --living_of_warp_[thread / kWarp];
  release_warp(thread / kWarp);
  release_block();
}

void BlockRunner::wait_at(Wait wait) {
  const unsigned thread = current_;
  threads_[thread].wait = wait;
  if (wait == Wait::kBlock) {
    ++waiting_at_block_;
    release_block();
  } else {
    ++waiting_of_warp_[thread / kWarp];
    release_warp(thread / kWarp);
  }
  leave(*threads_[thread].fiber);
}

void BlockRunner::release_block() {
  if (waiting_at_block_ == 0 || waiting_at_block_ < living_) return;
  released_.clear();
  for (unsigned thread = 0; thread < threads_.size(); ++thread) {
    if (threads_[thread].ended) continue;
    threads_[thread].wait = Wait::kNone;
    released_.push_back(thread);
  }
  waiting_at_block_ = 0;
  make_released_ready();
}

void BlockRunner::release_warp(unsigned warp) {
  if (waiting_of_warp_[warp] == 0 || waiting_of_warp_[warp] < living_of_warp_[warp]) return;
  released_.clear();
  for (unsigned thread = warp * kWarp; thread < (warp + 1) * kWarp; ++thread) {
    if (threads_[thread].ended) continue;
    released_.push_back(thread);
    if (threads_[thread].wait != threads_[released_.front()].wait) {
      current_ = thread;
      fail_thread("a warp's threads wait at different kinds of barrier or shuffle");
    }
  }
  for (const unsigned thread : released_) threads_[thread].wait = Wait::kNone;
  waiting_of_warp_[warp] = 0;
  make_released_ready();
}

void BlockRunner::fail_stuck() const {
  std::string waiting;
  for (unsigned thread = 0, listed = 0; thread < threads_.size() && listed < 8; ++thread) {
    if (threads_[thread].ended) continue;
    waiting += (listed++ == 0 ? " " : ", ") + std::to_string(thread) +
               (threads_[thread].wait == Wait::kBlock ? " at __syncthreads" : " at a barrier or shuffle of its warp");
  }
  fail("kernel " + kernel_->name + ", block " + std::to_string(block_index.x) + ": " + std::to_string(living_) +
       " threads wait for each other at different places forever: thread" + waiting);
}

void BlockRunner::check_warp(unsigned mask, const char* what) const {
  if (mask != 0xFFFFFFFFU) fail_thread(std::string(what) + ": the mask is not that of a full warp");
}

void BlockRunner::sync_block() { wait_at(Wait::kBlock); }

void BlockRunner::sync_warp(unsigned mask) {
  check_warp(mask, "__syncwarp");
  wait_at(Wait::kWarp);
}

// A thread may be one shuffle ahead of the others of its warp, never two: its values for the last two shuffles suffice.
std::uint64_t BlockRunner::shuffle(Shuffle kind, unsigned mask, std::uint64_t bits, int operand, int width) {
  check_warp(mask, "shuffle");
  if (width != static_cast<int>(kWarp)) fail_thread("shuffle: the width is not 32");
  const unsigned thread = current_;
  const unsigned lane = thread % kWarp;
  const std::uint64_t number = threads_[thread].shuffles++;
  threads_[thread].given[number % 2] = bits;
  unsigned source = static_cast<unsigned>(operand) % kWarp;
  if (kind == Shuffle::kXor) source = (lane ^ static_cast<unsigned>(operand)) % kWarp;
  if (kind == Shuffle::kDown) {
    source = lane + static_cast<unsigned>(operand) < kWarp ? lane + static_cast<unsigned>(operand) : lane;
  }
  wait_at(kind == Shuffle::kIndex ? Wait::kIndex : kind == Shuffle::kXor ? Wait::kXor : Wait::kDown);
  const Thread& from = threads_[thread - lane + source];
  if (from.shuffles <= number) fail_thread("shuffle: lane " + std::to_string(source) + " has ended");
  return from.given[number % 2];
}

}  // namespace droptest::fake_cuda
