// SPDX-License-Identifier: Apache-2.0
#include "tests/fake_cuda/fake_cuda.h"

#include <cstdlib>
#include <mutex>
#include <string>

#include "tests/fake_cuda/failure.h"
#include "tests/fake_cuda/runtime.h"

namespace droptest::fake_cuda {
namespace {

template <class Ask>
auto ask(const Ask& question) {
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  return question(runtime);
}

}  // namespace

Order default_order() {
  const char* value = std::getenv("DROPTEST_FAKE_CUDA_ORDER");
  const std::string name = value == nullptr ? "ascending" : value;
  if (name == "ascending") return Order::kAscending;
  if (name == "descending") return Order::kDescending;
  if (name == "shuffled") return Order::kShuffled;
  fail("DROPTEST_FAKE_CUDA_ORDER: got " + name + ", want ascending, descending or shuffled");
}

void configure(const Settings& settings) {
  ask([&](Runtime& runtime) { runtime.settings = settings; });
}
Settings settings() {
  return ask([](const Runtime& runtime) { return runtime.settings; });
}
void fail_call(std::string_view function, int nth, int error) {
  ask([&](Runtime& runtime) { runtime.plan_call_error(function, nth, error); });
}
void fail_kernel(std::string_view name, int error) {
  ask([&](Runtime& runtime) { runtime.plan_kernel_error(name, error); });
}
std::uint64_t calls(std::string_view function) {
  return ask([&](const Runtime& runtime) { return runtime.calls(function); });
}
std::uint64_t products_by(int algorithm) {
  return ask([&](const Runtime& runtime) { return runtime.products_by(algorithm); });
}
std::uint64_t launches() {
  return ask([](const Runtime& runtime) { return runtime.all_launches(); });
}
std::uint64_t launches(std::string_view name) {
  return ask([&](const Runtime& runtime) { return runtime.launches(name); });
}
std::uint64_t synchronizations() {
  return ask([](const Runtime& runtime) { return runtime.synchronizations(); });
}
std::size_t live_allocations() {
  return ask([](const Runtime& runtime) { return runtime.memory.live_count(); });
}
std::size_t live_bytes() {
  return ask([](const Runtime& runtime) { return runtime.memory.live_bytes(); });
}
std::size_t live_streams() {
  return ask([](const Runtime& runtime) { return runtime.live_streams(); });
}
std::size_t live_events() {
  return ask([](const Runtime& runtime) { return runtime.live_events(); });
}
std::size_t unfinished_work() {
  return ask([](const Runtime& runtime) { return runtime.unfinished_work(); });
}
void reset() {
  ask([](Runtime& runtime) { runtime.reset(); });
}

}  // namespace droptest::fake_cuda
