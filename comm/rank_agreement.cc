// SPDX-License-Identifier: Apache-2.0
#include "comm/rank_agreement.h"

#include <future>
#include <numeric>
#include <span>
#include <vector>

namespace droptest::comm {

std::uint64_t number_of_root(std::uint64_t number, Communicator& group, std::string_view name) {
  group.broadcast(Tensor(std::span<std::uint64_t>(&number, 1)), 0, {sim::TrafficClass::kControl, name, -1});
  return number;
}

std::string text_of_root(std::string text, Communicator& group, std::string_view name) {
  text.resize(number_of_root(text.size(), group, name));
  const auto bytes = std::as_writable_bytes(std::span(text));
  if (!text.empty()) group.broadcast({ElementType::kUint8, bytes}, 0, {sim::TrafficClass::kControl, name, -1});
  return text;
}

std::vector<std::string> gather_texts(const std::string& text, Communicator& group, std::string_view name) {
  const Message message{sim::TrafficClass::kControl, name, -1};
  const std::uint64_t size = text.size();
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(group.world_size()));
  group.all_gather(ConstTensor(std::span<const std::uint64_t>(&size, 1)), Tensor(std::span<std::uint64_t>(sizes)),
                   std::vector<std::uint64_t>(sizes.size(), 1), message);
  std::string all(std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}), '\0');
  if (!all.empty()) {
    group.all_gather({ElementType::kUint8, std::as_bytes(std::span(text))},
                     {ElementType::kUint8, std::as_writable_bytes(std::span(all))}, sizes, message);
  }
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (const std::uint64_t length : sizes) {
    texts.push_back(all.substr(at, length));
    at += length;
  }
  return texts;
}

void run_on_root(Communicator& group, std::chrono::milliseconds interval, std::string_view name,
                 const std::function<void()>& work) {
  std::future<void> ended;
  if (group.rank() == 0) ended = std::async(std::launch::async, work);
  for (bool goes_on = true; goes_on;) {
    const bool own = ended.valid() && ended.wait_for(interval) != std::future_status::ready;
    goes_on = number_of_root(own ? 1 : 0, group, name) != 0;
  }
  if (ended.valid()) ended.get();
}

}  // namespace droptest::comm
