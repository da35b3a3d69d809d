// SPDX-License-Identifier: Apache-2.0
#include "comm/lossy/paths/power_sgd_path.h"

#include <algorithm>
#include <boost/random/normal_distribution.hpp>
#include <cmath>
#include <string>
#include <type_traits>

#include "comm/lossy/fill/packet_runs.h"
#include "comm/lossy/on_host.h"
#include "comm/visit_elements.h"
#include "sim/error.h"
#include "sim/random/philox.h"

namespace droptest::comm {
namespace {

// A matrix of rows x columns, row by row.
template <class T>
struct Factor {
  std::uint64_t columns;
  std::vector<T>& elems;
  T* row(std::uint64_t i) const { return elems.data() + i * columns; }
};

// Elements of row i of the padded matrix of a contribution.
template <class T>
std::span<const T> row_of(std::span<const T> values, std::uint64_t side, std::uint64_t i) {
  const std::uint64_t begin = std::min<std::uint64_t>(values.size(), i * side);
  return values.subspan(begin, std::min<std::uint64_t>(side, values.size() - begin));
}

// P = M Q
template <class T>
void times(std::span<const T> values, std::uint64_t side, const Factor<T>& q, const Factor<T>& p) {
  std::vector<double> sums(q.columns);
  for (std::uint64_t i = 0; i < side; ++i) {
    std::ranges::fill(sums, 0);
    const std::span<const T> row = row_of(values, side, i);
    for (std::size_t j = 0; j < row.size(); ++j) {
      for (std::uint64_t c = 0; c < q.columns; ++c) sums[c] += static_cast<double>(row[j]) * q.row(j)[c];
    }
    for (std::uint64_t c = 0; c < q.columns; ++c) p.row(i)[c] = static_cast<T>(sums[c]);
  }
}

// Q = M^T P
template <class T>
void transposed_times(std::span<const T> values, std::uint64_t side, const Factor<T>& p, const Factor<T>& q) {
  std::vector<double> sums(side * q.columns, 0);
  for (std::uint64_t i = 0; i < side; ++i) {
    const std::span<const T> row = row_of(values, side, i);
    for (std::size_t j = 0; j < row.size(); ++j) {
      for (std::uint64_t c = 0; c < q.columns; ++c)
        sums[j * q.columns + c] += static_cast<double>(row[j]) * p.row(i)[c];
    }
  }
  std::ranges::transform(sums, q.elems.begin(), [](double sum) { return static_cast<T>(sum); });
}

// Modified Gram-Schmidt. A column that the ones before it span becomes zero.
template <class T>
void make_orthonormal(const Factor<T>& p, std::uint64_t rows) {
  constexpr double kSpanned = 1e-10;  // share of the column's norm before
  for (std::uint64_t c = 0; c < p.columns; ++c) {
    const auto inner = [&](std::uint64_t a, std::uint64_t b) {
      double sum = 0;
      for (std::uint64_t i = 0; i < rows; ++i) sum += static_cast<double>(p.row(i)[a]) * p.row(i)[b];
      return sum;
    };
    const double before = std::sqrt(inner(c, c));
    for (std::uint64_t d = 0; d < c; ++d) {
      const double along = inner(c, d);
      for (std::uint64_t i = 0; i < rows; ++i) p.row(i)[c] -= static_cast<T>(along * p.row(i)[d]);
    }
    const double norm = std::sqrt(inner(c, c));
    const double factor = norm <= kSpanned * before ? 0 : 1 / norm;  // NaN stays NaN
    for (std::uint64_t i = 0; i < rows; ++i) p.row(i)[c] = static_cast<T>(p.row(i)[c] * factor);
  }
}

// The elements of P Q^T that a message has.
template <class T>
void multiply(const Factor<T>& p, const Factor<T>& q, std::uint64_t side, std::span<T> values) {
  for (std::size_t e = 0; e < values.size(); ++e) {
    double sum = 0;
    for (std::uint64_t c = 0; c < p.columns; ++c) {
      sum += static_cast<double>(p.row(e / side)[c]) * q.row(e % side)[c];
    }
    values[e] = static_cast<T>(sum);
  }
}

// Draws the first Q, which is equal on all ranks because the draws belong to no rank.
template <class T>
void draw_start(std::uint64_t seed, const Message& message, std::span<T> elems) {
  std::uint64_t name = 0xcbf29ce484222325U;  // FNV-1a
  for (const char c : message.name) name = (name ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  const auto layer = static_cast<std::uint64_t>(message.layer + 1);
  sim::PhiloxEngine engine(seed, sim::Purpose::kFactorStart, name ^ (layer * 0x9e3779b97f4a7c15U));
  boost::random::normal_distribution<double> normal;
  for (T& elem : elems) elem = static_cast<T>(normal(engine));
}

}  // namespace

std::vector<SubCall> power_sgd_calls(const ClassNetwork& network, const CallShape& call, int /*ranks*/) {
  const std::optional<FactorShape> factors = factors_of(network.compression, call.elements);
  if (!factors) return {{call}};
  SubCall p{call, {}, call.elements * element_bytes(call.type)};
  p.shape.elements = factors->elems();
  SubCall q = p;
  q.content_bytes = 0;
  return {std::move(p), std::move(q)};
}

void PowerSgdPath::add_memory(const SizedCall& call, CallMemory& memory) {
  if (!reduces(call.shape.operation)) return;
  const std::optional<FactorShape> factors = factors_of(call.network.compression, call.shape.elements);
  memory.take(factors ? CallMemory::Slot::kCoded : CallMemory::Slot::kMasked, call.shape.elements);
  if (factors) memory.remembered += factors->elems();
}

void PowerSgdPath::plan(const CallArguments& call, CallFates& fates) {
  if (element_bytes(call.input.type) < sizeof(float)) {
    throw ConfigError("message \"" + std::string(call.message.name) + "\": got elements of type " +
                      std::string(element_type_name(call.input.type)) +
                      ", want float32 or float64 for compression power_sgd");
  }
  const std::uint64_t elems = call.input.count_elems();
  shape_ = factors_of(context_.network.compression, elems);
  if (context_.feeds_back()) {
    feedback_.plan(context_.stale, call.input, call.op, StaleMemory::Use::kAllReduceFeedback, {}, call.message);
  }
  if (shape_) {
    remembered_ = context_.stale.of(StaleMemory::Use::kFactor, call.message, call.input, shape_->elems(), {});
  }
  lost_.start(2);
  messages_.visit_of(shape_of(call), context_.group.rank(), [&](const PathMessage& message) {
    lost_.take(context_, call.message.traffic_class, fates, message, Interest::kNone,
               static_cast<std::size_t>(message.call));
  });
}

void PowerSgdPath::run_as_is(const CallArguments& call, ConstTensor input, Communicator& inner, Scratch& scratch) {
  const sim::Packetizer packets = context_.packets(input.type, input.count_elems());
  errors_ = {};
  if (context_.feeds_back()) feedback_.undelivered(0, input, lost_.of(0), packets);
  const Tensor arriving = scratch.take(Scratch::Slot::kMasked, input, input.count_elems());
  copy(input, arriving);
  zero_lost(arriving, lost_.of(0), packets);
  inner.all_reduce(arriving, call.output, call.op, call.message);
}

// The factors of ranks on devices travel from device to device.
template <class T>
void PowerSgdPath::add_up(std::vector<T>& factor, ReduceOp op, const CallArguments& call, Communicator& inner) {
  Stream* const stream = call.input.stream;
  if (stream == nullptr) return inner.all_reduce(Tensor(std::span(factor)), op, call.message);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(factor));
  const DeviceMemory memory(bytes.size(), "factor of a compressed contribution");
  copy_to_device(std::span<const std::byte>(bytes), memory.data(), *stream);
  inner.all_reduce(Tensor(call.input.type, {memory.data(), bytes.size()}, stream), op, call.message);
  copy_to_host(memory.data(), bytes, *stream);
  stream->synchronize();
}

template <class T>
void PowerSgdPath::run_factors(const CallArguments& call, ConstTensor input, Tensor output, Communicator& inner,
                               Scratch& scratch) {
  const std::uint64_t side = shape_->side;
  const auto values = input.as<T>();
  const sim::Packetizer packets = context_.packets(input.type, shape_->elems());
  std::vector<T> p_elems(shape_->elems());
  std::vector<T> q_elems(shape_->elems());
  const Factor<T> p{shape_->rank, p_elems};
  const Factor<T> q{shape_->rank, q_elems};
  read_on_host(remembered_, [&](ConstTensor last) { std::ranges::copy(last.as<T>(), q_elems.begin()); });
  if (std::ranges::all_of(q_elems, [](T elem) { return elem == T{0}; })) {
    draw_start(context_.ledger.network().seed, call.message, std::span(q_elems));
  }
  times(values, side, q, p);
  zero_lost(Tensor(std::span(p_elems)), lost_.of(0), packets);
  add_up(p_elems, ReduceOp::kSum, call, inner);
  make_orthonormal(p, side);
  transposed_times(values, side, p, q);

  const Tensor product = scratch.take(Scratch::Slot::kCoded, input, values.size());
  const auto own = product.as<T>();  // P Q_own^T
  multiply(p, q, side, own);
  errors_ = {};
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double error = number_of(own[i]) - number_of(values[i]);
    errors_.error_energy += error * error;
    errors_.energy += number_of(values[i]) * number_of(values[i]);
  }
  if (lost_.of(1) != nullptr) {
    zero_lost(Tensor(std::span(q_elems)), lost_.of(1), packets);
    if (context_.feeds_back()) multiply(p, q, side, own);
  }
  if (context_.feeds_back()) feedback_.changed(0, input, ConstTensor(std::span<const T>(own)));
  add_up(q_elems, call.op, call, inner);
  change_on_host(remembered_, [&](Tensor next) { std::ranges::copy(q_elems, next.as<T>().begin()); });
  multiply(p, q, side, output.as<T>());
}

void PowerSgdPath::run(const CallArguments& call, Communicator& inner, Scratch& scratch) {
  const ConstTensor input = context_.feeds_back() ? feedback_.correct(call.input, scratch) : call.input;
  if (!shape_) return run_as_is(call, input, inner, scratch);
  read_on_host(input, [&](ConstTensor values) {
    change_on_host(call.output, [&](Tensor sums) {
      if (values.type == ElementType::kFloat32) return run_factors<float>(call, values, sums, inner, scratch);
      run_factors<double>(call, values, sums, inner, scratch);
    });
  });
}

}  // namespace droptest::comm
