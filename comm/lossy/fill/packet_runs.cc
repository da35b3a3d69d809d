// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/fill/packet_runs.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "comm/device/device_buffer.h"
#include "comm/device/tensor_operations.h"
#include "comm/rank_order_reduction.h"
#include "comm/visit_elements.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

// First packet at or after `packet` whose bit differs from `bit`; size() if there is none.
std::uint64_t end_of_run(const sim::PacketMask& lost, std::uint64_t packet, bool bit) {
  const std::span<const std::uint64_t> words = lost.words();
  const std::uint64_t flip = bit ? ~std::uint64_t{0} : 0;
  std::uint64_t word = packet >> 6;
  std::uint64_t differing = (words[word] ^ flip) & (~std::uint64_t{0} << (packet & 63));
  while (differing == 0) {
    if (++word == words.size()) return lost.size();
    differing = words[word] ^ flip;
  }
  // The bits past the end are clear, so a lost run ends there at the latest.
  return 64 * word + static_cast<std::uint64_t>(std::countr_zero(differing));
}

// Changes all runs of one fate in one launch.
void change(RunOperation operation, PacketRun::Fate fate, ConstTensor from, Tensor data, const sim::PacketMask* lost,
            const sim::Packetizer& packets) {
  std::vector<ElementRun> runs;
  PacketRunCursor cursor(lost, packets);
  for (PacketRun run; cursor.next(run);) {
    if (run.fate == fate) runs.push_back({run.elements.begin, run.elements.end});
  }
  change_runs_on_device(operation, from, data, runs);
}

}  // namespace

bool PacketRunCursor::next(PacketRun& run) {
  if (packet_ >= packets_.packets()) return false;
  const bool bit = lost_ != nullptr && lost_->lost(packet_);
  const std::uint64_t end = lost_ == nullptr ? packets_.packets() : end_of_run(*lost_, packet_, bit);
  run.elements = {packets_.elements(packet_).begin, packets_.elements(end - 1).end};
  run.fate = bit ? PacketRun::Fate::kLost : PacketRun::Fate::kDelivered;
  packet_ = end;
  return true;
}

void append_lost(const sim::PacketMask* lost, const sim::Packetizer& packets, std::uint64_t first_element,
                 std::vector<sim::ElementRange>& ranges) {
  if (lost == nullptr) return;
  PacketRunCursor cursor(lost, packets);
  for (PacketRun run; cursor.next(run);) {
    if (run.fate != PacketRun::Fate::kLost) continue;
    const sim::ElementRange range{first_element + run.elements.begin, first_element + run.elements.end};
    if (!ranges.empty() && ranges.back().end == range.begin) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }
}

void zero_lost(Tensor data, const sim::PacketMask* lost, const sim::Packetizer& packets) {
  if (lost == nullptr) return;
  if (data.stream != nullptr) return change(RunOperation::kZero, PacketRun::Fate::kLost, {}, data, lost, packets);
  PacketRunCursor cursor(lost, packets);
  for (PacketRun run; cursor.next(run);) {
    if (run.fate != PacketRun::Fate::kLost) continue;
    const std::span<std::byte> bytes = slice(data, run.elements).bytes;
    std::memset(bytes.data(), 0, bytes.size());  // all bits zero is zero in every element type
  }
}

void lowest_lost(Tensor data, const sim::PacketMask* lost, const sim::Packetizer& packets) {
  if (lost == nullptr) return;
  if (data.stream != nullptr) return change(RunOperation::kLowest, PacketRun::Fate::kLost, {}, data, lost, packets);
  PacketRunCursor cursor(lost, packets);
  for (PacketRun run; cursor.next(run);) {
    if (run.fate == PacketRun::Fate::kLost) set_lowest(slice(data, run.elements));
  }
}

void set_left_out(Tensor data, ReduceOp op) { op == ReduceOp::kMax ? set_lowest(data) : zero(data); }

void copy_lost(ConstTensor from, Tensor data, const sim::PacketMask* lost, const sim::Packetizer& packets) {
  if (lost == nullptr) return;
  if (data.stream != nullptr) return change(RunOperation::kCopy, PacketRun::Fate::kLost, from, data, lost, packets);
  PacketRunCursor cursor(lost, packets);
  for (PacketRun run; cursor.next(run);) {
    if (run.fate == PacketRun::Fate::kLost) copy(slice(from, run.elements), slice(data, run.elements));
  }
}

void copy_delivered(ConstTensor from, Tensor data, const sim::PacketMask* lost, const sim::Packetizer& packets) {
  if (lost == nullptr) return copy(from, data);
  if (data.stream != nullptr) {
    return change(RunOperation::kCopy, PacketRun::Fate::kDelivered, from, data, lost, packets);
  }
  PacketRunCursor cursor(lost, packets);
  for (PacketRun run; cursor.next(run);) {
    if (run.fate == PacketRun::Fate::kDelivered) copy(slice(from, run.elements), slice(data, run.elements));
  }
}

void reduce_delivered(ReduceOp op, ConstTensor from, Tensor data, const sim::PacketMask* lost,
                      const sim::Packetizer& packets) {
  DROPTEST_CHECK(op != ReduceOp::kMean, "the mean of a part of the contributions");
  if (data.stream != nullptr) {
    const RunOperation operation = op == ReduceOp::kMax ? RunOperation::kMax : RunOperation::kSum;
    return change(operation, PacketRun::Fate::kDelivered, from, data, lost, packets);
  }
  PacketRunCursor cursor(lost, packets);
  for (PacketRun run; cursor.next(run);) {
    if (run.fate == PacketRun::Fate::kLost) continue;
    const Tensor work = slice(data, run.elements);
    const std::array<const std::byte*, 2> inputs = {work.bytes.data(), slice(from, run.elements).bytes.data()};
    const std::array<std::byte*, 1> outputs = {work.bytes.data()};
    reduce_in_rank_order(op, work.type, inputs, outputs, work.count_elems());
  }
}

}  // namespace droptest::comm
