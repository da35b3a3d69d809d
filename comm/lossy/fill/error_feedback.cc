// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/fill/error_feedback.h"

#include <string>
#include <vector>

#include "comm/device/tensor_operations.h"
#include "comm/lossy/fill/packet_runs.h"
#include "comm/lossy/on_host.h"
#include "comm/visit_elements.h"
#include "sim/error.h"

namespace droptest::comm {
namespace {

template <class T>
void add_elems(std::span<const T> from, std::span<T> to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] = narrowed<T>(sum_of(widened(to[i]), widened(from[i])));
}

// to += from, for the elements of `runs`
void add(ConstTensor from, Tensor to, const std::vector<ElementRun>& runs) {
  if (to.stream != nullptr) return change_runs_on_device(RunOperation::kSum, from, to, runs);
  visit_elements(to.type, [&]<class T>(std::type_identity<T>) {
    for (const ElementRun& run : runs) {
      const sim::ElementRange elements{run.begin, run.end};
      add_elems(slice(from, elements).as<T>(), slice(to, elements).as<T>());
    }
  });
}

}  // namespace

void ErrorFeedback::plan(StaleMemory& stale, ConstTensor input, ReduceOp op, StaleMemory::Use use,
                         std::span<const std::uint64_t> cut, const Message& message) {
  if (op == ReduceOp::kMax || is_integer(input.type)) {
    throw ConfigError("message \"" + std::string(message.name) + "\" of class " +
                      std::string(sim::traffic_class_name(message.traffic_class)) +
                      ": recovery error_feedback adds the lost values to the next message, but this reduction is " +
                      (op == ReduceOp::kMax ? "a maximum" : "of integers") +
                      "; want a sum or mean of floats, or the class control");
  }
  memory_ = stale.of(use, message, input, input.count_elems(), cut);
}

ConstTensor ErrorFeedback::correct(ConstTensor input, Scratch& scratch) {
  const Tensor corrected = scratch.take(Scratch::Slot::kCorrected, input, input.count_elems());
  copy(input, corrected);
  add(memory_, corrected, {{0, input.count_elems()}});
  zero(memory_);
  return corrected;
}

void ErrorFeedback::changed(std::uint64_t first_element, ConstTensor values, ConstTensor decoded, double factor) {
  const Tensor memory = slice(memory_, {first_element, first_element + values.count_elems()});
  read_on_host(values, [&](ConstTensor before) {
    read_on_host(decoded, [&](ConstTensor after) {
      change_on_host(memory, [&](Tensor kept) {
        visit_elements(kept.type, [&]<class T>(std::type_identity<T>) {
          if constexpr (std::is_floating_point_v<T> || kIsNarrowFloat<T>) {
            const auto exact = before.as<T>();
            const auto coded = after.as<T>();
            const auto sums = kept.as<T>();
            for (std::size_t i = 0; i < sums.size(); ++i) {
              const auto missing = static_cast<WideOf<T>>(factor) * (widened(exact[i]) - widened(coded[i]));
              sums[i] = narrowed<T>(widened(sums[i]) + missing);
            }
          }
        });
      });
    });
  });
}

void ErrorFeedback::undelivered(std::uint64_t first_element, ConstTensor values, const sim::PacketMask* lost,
                                const sim::Packetizer& packets) {
  if (lost == nullptr) return;
  std::vector<ElementRun> runs;
  PacketRunCursor cursor(lost, packets);
  for (PacketRun run; cursor.next(run);) {
    if (run.fate == PacketRun::Fate::kLost) runs.push_back({run.elements.begin, run.elements.end});
  }
  add(values, slice(memory_, {first_element, first_element + values.count_elems()}), runs);
}

}  // namespace droptest::comm
