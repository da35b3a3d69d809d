// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/device_outbox.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace droptest::comm {
namespace {

// A step sends the same messages as the one before, so their memory can be reused.
constexpr std::size_t kSparesMost = 64;

}  // namespace

void DeviceOutbox::put(const Call& call, int destination, const std::byte* data, std::size_t bytes, Stream& stream) {
  Letter letter{call, destination, &stream, memory(bytes, stream), bytes};
  copy_on_device(data, letter.copy.data(), bytes, stream);
  bytes_ += bytes;
  letters_.push_back(std::move(letter));
}

std::vector<DeviceOutbox::Letter> DeviceOutbox::take_all() {
  bytes_ = 0;
  return std::exchange(letters_, {});
}

std::vector<DeviceOutbox::Letter> DeviceOutbox::take_first_of_each() {
  std::vector<Letter> taken;
  std::vector<Letter> kept;
  for (Letter& letter : letters_) {
    const auto same = [&letter](const Letter& other) { return other.destination == letter.destination; };
    const bool is_first = std::none_of(taken.begin(), taken.end(), same);
    if (is_first) bytes_ -= letter.bytes;
    (is_first ? taken : kept).push_back(std::move(letter));
  }
  letters_ = std::move(kept);
  return taken;
}

void DeviceOutbox::give_back(std::vector<Letter> letters) {
  std::move(letters.begin(), letters.end(), std::back_inserter(spare_));
  if (spare_.size() > kSparesMost) spare_.erase(spare_.begin(), spare_.end() - kSparesMost);
}

// The smallest spare that is large enough.
DeviceMemory DeviceOutbox::memory(std::size_t bytes, Stream& stream) {
  auto best = spare_.end();
  for (auto it = spare_.begin(); it != spare_.end(); ++it) {
    const bool fits = it->stream == &stream && it->copy.bytes() >= bytes;
    if (fits && (best == spare_.end() || it->copy.bytes() < best->copy.bytes())) best = it;
  }
  if (best == spare_.end()) return DeviceMemory(bytes, "copy of a message to another rank");
  DeviceMemory memory = std::move(best->copy);
  spare_.erase(best);
  return memory;
}

}  // namespace droptest::comm
