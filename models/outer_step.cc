// SPDX-License-Identifier: Apache-2.0
#include "models/outer_step.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <string>

#include "sim/error.h"

namespace droptest::models {
namespace {

// The elements of consecutive tensors, one tensor after the other.
void pack(std::span<const Parameter<float>> parameters, std::span<float> to) {
  auto at = to.begin();
  for (const Parameter<float>& parameter : parameters) at = std::ranges::copy(parameter.value, at).out;
}

}  // namespace

std::vector<OuterFragment> outer_fragments(const OuterOptions& options, std::span<const std::uint64_t> tensor_elems) {
  const auto number = static_cast<std::size_t>(options.fragments);
  if (options.fragments < 1 || number > tensor_elems.size()) {
    throw ConfigError("outer steps: got " + std::to_string(options.fragments) + " fragments of " +
                      std::to_string(tensor_elems.size()) + " tensors, want 1 to as many");
  }
  std::uint64_t left = std::accumulate(tensor_elems.begin(), tensor_elems.end(), std::uint64_t{0});
  std::vector<OuterFragment> fragments;
  std::size_t next = 0;
  for (std::size_t f = 0; f < number; ++f) {
    // An even share of the rest in whole tensors. At least one tensor is left for each later fragment.
    const std::uint64_t share = left / (number - f);
    OuterFragment fragment{next, next, 0, f * options.every_steps / number};
    do {
      fragment.elems += tensor_elems[next++];
    } while (tensor_elems.size() - next > number - f - 1 && (fragment.elems < share || f + 1 == number));
    fragment.end = next;
    left -= fragment.elems;
    fragments.push_back(fragment);
  }
  return fragments;
}

std::string outer_message_name(std::size_t fragment) { return "outer.fragment" + std::to_string(fragment); }

comm::Work start_outer_mean(comm::Communicator& workers, const std::string& name, comm::ConstTensor sent,
                            comm::Tensor mean, std::vector<sim::ElementRange>* lost) {
  comm::Message message{sim::TrafficClass::kOuter, name};
  message.lost = lost;
  return workers.start_all_reduce(sent, mean, comm::ReduceOp::kMean, message);
}

std::uint64_t outer_bytes(const OuterOptions& options, std::uint64_t elems) {
  if (!options.is_on()) return 0;
  const std::uint64_t vectors = options.optimizer == OuterOptimizer::kAverage ? 3 : 4;
  return vectors * elems * sizeof(float);
}

std::uint64_t OuterStep::bytes() const {
  std::size_t elems = 0;
  for (const Fragment& of : fragments_) {
    elems += of.reference.size() + of.momentum.size() + of.sent.size() + of.mean.size();
  }
  return elems * sizeof(float);
}

OuterStep::OuterStep(const OuterOptions& options, comm::Communicator& workers,
                     std::span<const Parameter<float>> parameters)
    : options_(options), workers_(workers) {
  std::vector<std::uint64_t> sizes;
  for (const Parameter<float>& parameter : parameters) sizes.push_back(parameter.value.size());
  for (const OuterFragment& place : outer_fragments(options, sizes)) {
    Fragment& fragment = fragments_.emplace_back();
    fragment.place = place;
    fragment.name = outer_message_name(fragments_.size() - 1);
    fragment.reference.resize(place.elems);
    fragment.momentum.resize(options.optimizer == OuterOptimizer::kAverage ? 0 : place.elems);
  }
  begin(parameters);
}

void OuterStep::begin(std::span<const Parameter<float>> parameters) {
  for (Fragment& fragment : fragments_) {
    DROPTEST_CHECK(fragment.due_step == 0, "outer steps begin with a message under way");
    pack(fragment.tensors(parameters), fragment.reference);
    std::ranges::fill(fragment.momentum, 0.0F);
  }
}

bool OuterStep::is_due(std::uint64_t step) const {
  return std::ranges::any_of(fragments_, [&](const Fragment& fragment) {
    return fragment.due_step == step || fragment.place.starts_at(step, options_.every_steps);
  });
}

bool OuterStep::take(std::uint64_t step, std::span<Parameter<float>> parameters) {
  bool changed = false;
  for (Fragment& fragment : fragments_) {
    if (fragment.place.starts_at(step, options_.every_steps)) start(fragment, step, parameters);
    if (fragment.due_step != step) continue;
    apply(fragment, parameters);
    changed = true;
  }
  return changed;
}

void OuterStep::start(Fragment& fragment, std::uint64_t step, std::span<const Parameter<float>> parameters) {
  DROPTEST_CHECK(fragment.due_step == 0, "a fragment is sent before its last message was used");
  fragment.sent.resize(fragment.reference.size());
  fragment.mean.resize(fragment.reference.size());
  pack(fragment.tensors(parameters), fragment.sent);
  if (options_.optimizer != OuterOptimizer::kAverage) {
    std::ranges::transform(fragment.reference, fragment.sent, fragment.sent.begin(), std::minus<>());
  }
  fragment.lost.clear();
  fragment.work = start_outer_mean(workers_, fragment.name, comm::ConstTensor(std::span<const float>(fragment.sent)),
                                   comm::Tensor(std::span(fragment.mean)), &fragment.lost);
  fragment.is_under_way = true;
  fragment.due_step = step + options_.delay_steps;
}

float OuterStep::next_value(Fragment& fragment, std::size_t i) const {
  if (options_.optimizer == OuterOptimizer::kAverage) return fragment.mean[i];
  const auto momentum = static_cast<float>(options_.momentum);
  const auto rate = static_cast<float>(options_.learning_rate);
  float& m = fragment.momentum[i];
  m = momentum * m + fragment.mean[i];
  const float direction = options_.optimizer == OuterOptimizer::kNesterov ? momentum * m + fragment.mean[i] : m;
  return fragment.reference[i] - rate * direction;
}

void OuterStep::apply(Fragment& fragment, std::span<Parameter<float>> parameters) const {
  if (fragment.is_under_way) fragment.work.wait();
  fragment.is_under_way = false;
  fragment.due_step = 0;
  const auto own_share = static_cast<float>(options_.own_share);
  std::size_t i = 0;
  auto lost = fragment.lost.begin();
  for (std::size_t tensor = fragment.place.first; tensor < fragment.place.end; ++tensor) {
    for (float& value : parameters[tensor].value) {
      while (lost != fragment.lost.end() && lost->end <= i) ++lost;
      if (lost == fragment.lost.end() || i < lost->begin) {
        const float next = next_value(fragment, i);
        fragment.reference[i] = next;
        value = own_share == 0 ? next : own_share * value + (1 - own_share) * next;
      }
      ++i;
    }
  }
}

void OuterStep::settle() {
  for (Fragment& fragment : fragments_) {
    if (fragment.is_under_way) fragment.work.wait();
    fragment.is_under_way = false;
  }
}

void OuterStep::Fragment::visit_state(sim::StateVisitor& visitor) {
  DROPTEST_CHECK(!is_under_way, "the state of an outer step with a message under way");
  visitor.bytes(std::as_writable_bytes(std::span(reference)));
  visitor.bytes(std::as_writable_bytes(std::span(momentum)));
  visit_value(visitor, due_step);
  if (due_step == 0) return;
  mean.resize(reference.size());
  visitor.bytes(std::as_writable_bytes(std::span(mean)));
  std::uint64_t ranges = lost.size();
  visit_value(visitor, ranges);
  lost.resize(ranges);
  for (sim::ElementRange& range : lost) visit_values(visitor, range.begin, range.end);
}

void OuterStep::visit_state(sim::StateVisitor& visitor) {
  for (Fragment& fragment : fragments_) visit_value(visitor, fragment);
}

}  // namespace droptest::models
