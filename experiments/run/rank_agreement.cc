// SPDX-License-Identifier: Apache-2.0
#include "experiments/run/rank_agreement.h"

#include <future>
#include <numeric>
#include <span>
#include <vector>

#include "models/kernels/update_decision.h"

namespace droptest::experiments {

double agree_on_mean(double value, comm::Communicator& group, std::string_view name) {
  const auto ranks = static_cast<std::size_t>(group.world_size());
  std::vector<double> values(ranks);
  const std::vector<std::uint64_t> counts(ranks, 1);
  group.all_gather(comm::ConstTensor(std::span<const double>(&value, 1)), comm::Tensor(std::span<double>(values)),
                   counts, {sim::TrafficClass::kControl, name, -1});
  return models::mean_of_ranks(values);
}

std::uint64_t number_of_root(std::uint64_t number, comm::Communicator& group, std::string_view name) {
  group.broadcast(comm::Tensor(std::span<std::uint64_t>(&number, 1)), 0, {sim::TrafficClass::kControl, name, -1});
  return number;
}

std::string text_of_root(std::string text, comm::Communicator& group, std::string_view name) {
  text.resize(number_of_root(text.size(), group, name));
  const auto bytes = std::as_writable_bytes(std::span(text));
  if (!text.empty()) group.broadcast({comm::ElementType::kUint8, bytes}, 0, {sim::TrafficClass::kControl, name, -1});
  return text;
}

std::vector<std::string> gather_texts(const std::string& text, comm::Communicator& group, std::string_view name) {
  const comm::Message message{sim::TrafficClass::kControl, name, -1};
  const std::uint64_t size = text.size();
  std::vector<std::uint64_t> sizes(static_cast<std::size_t>(group.world_size()));
  group.all_gather(comm::ConstTensor(std::span<const std::uint64_t>(&size, 1)),
                   comm::Tensor(std::span<std::uint64_t>(sizes)), std::vector<std::uint64_t>(sizes.size(), 1), message);
  std::string all(std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0}), '\0');
  if (!all.empty()) {
    group.all_gather({comm::ElementType::kUint8, std::as_bytes(std::span(text))},
                     {comm::ElementType::kUint8, std::as_writable_bytes(std::span(all))}, sizes, message);
  }
  std::vector<std::string> texts;
  std::size_t at = 0;
  for (const std::uint64_t length : sizes) {
    texts.push_back(all.substr(at, length));
    at += length;
  }
  return texts;
}

void run_on_root(comm::Communicator& group, std::chrono::milliseconds interval, std::string_view name,
                 const std::function<void()>& work) {
  std::future<void> ended;
  if (group.rank() == 0) ended = std::async(std::launch::async, work);
  for (bool goes_on = true; goes_on;) {
    const bool own = ended.valid() && ended.wait_for(interval) != std::future_status::ready;
    goes_on = number_of_root(own ? 1 : 0, group, name) != 0;
  }
  if (ended.valid()) ended.get();
}

}  // namespace droptest::experiments
