// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/device_model.h"

#include <algorithm>
#include <utility>

#include "models/kernels/bf16.h"
#include "models/kernels/embedding.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

// Of numbers_: a slot for each pass of a step, then these.
constexpr std::size_t kMostPasses = 64;
constexpr std::size_t kEvaluation = kMostPasses;
constexpr std::size_t kSquares = kMostPasses + 1;
constexpr std::size_t kNumbers = kMostPasses + 2;

TokenRange range_of(const IndexRange& range) {
  return {static_cast<std::int64_t>(range.first), static_cast<std::int64_t>(range.count)};
}

std::span<const std::byte> bytes_of(std::span<const std::int32_t> values) { return std::as_bytes(values); }

}  // namespace

template <class E>
DeviceModel<E>::DeviceModel(const Gpt2Config& config, comm::Communicator& tensor_group,
                            const Gpt2Cuda::Options& options)
    : config_(config),
      part_(gpt2_part(config, tensor_group.world_size(), tensor_group.rank())),
      options_(options),
      world_size_(tensor_group.world_size()),
      rank_(tensor_group.rank()),
      stream_(options.device),
      collectives_(tensor_group, stream_),
      parameters_(gpt2_tensors(config, tensor_group.world_size(), tensor_group.rank()), tensor_group.rank(),
                  options.adamw, stream_),
      products_(stream_),
      halves_(halves_of(config, part_)),
      numbers_(kNumbers, "losses and norms"),
      host_numbers_(kNumbers) {}

template <class E>
DeviceModel<E>::~DeviceModel() {
  try {
    collectives_.join();
    stream_.synchronize();
  } catch (const DeviceError&) {
    // A device that is broken works on nothing.
  }
}

template <class E>
std::vector<typename DeviceModel<E>::Half> DeviceModel<E>::halves_of(const Gpt2Config& config, const Gpt2Part& part) {
  // gpt2_tensors' order: two embeddings, then six tensors for each half of each block.
  constexpr std::size_t kBeforeBlocks = 2;
  constexpr std::size_t kPerHalf = 6;
  const std::int64_t width = config.width;
  const std::int64_t mixed = static_cast<std::int64_t>(part.heads.count) * (config.width / config.heads);
  const auto hidden = static_cast<std::int64_t>(part.hidden.count);
  std::vector<Half> halves;
  for (int i = 0; i < 2 * config.layers; ++i) {
    const int layer = i / 2;
    const bool attention = i % 2 == 0;
    const std::string h = "h." + std::to_string(layer) + (attention ? ".attn." : ".mlp.");
    const std::size_t at = kBeforeBlocks + kPerHalf * static_cast<std::size_t>(i);
    const std::int64_t inner = attention ? mixed : hidden;
    halves.push_back({at,
                      {at + 2, h + (attention ? "c_attn.backward" : "c_fc.backward"), layer,
                       ProductShape{0, width, attention ? 3 * mixed : hidden}},
                      {at + 4, h + "c_proj", layer, ProductShape{0, inner, width}}});
  }
  return halves;
}

template <class E>
ProductShape DeviceModel<E>::with_rows(const Linear& linear, std::int64_t rows) const {
  ProductShape shape = linear.shape;
  shape.rows = rows;
  return shape;
}

template <class E>
AttentionShape DeviceModel<E>::attention_shape(const BatchShape& shape) const {
  return {shape.batch, shape.length, static_cast<std::int64_t>(part_.heads.count), config_.width / config_.heads};
}

template <class E>
DeviceHead<E> DeviceModel<E>::head() {
  const TokenRange range = range_of(part_.vocabulary);
  const auto used = static_cast<std::size_t>(range.count * config_.width);
  return {stream_,
          products_,
          collectives_,
          range,
          config_.width,
          weight(0).first(used),
          parameters_.gradient(0).first(used)};
}

template <class E>
ActivationExtents DeviceModel<E>::extents_of(const Gpt2Config& config, int world_size, int rank,
                                             const Gpt2Cuda::Options& options, const BatchShape& shape) {
  const Gpt2Part part = gpt2_part(config, world_size, rank);
  const std::uint64_t largest = part.vocabulary.count + part.vocabulary_padding;  // as many for each rank
  const LogitChunks chunks =
      logit_chunks(shape.rows(), static_cast<std::int64_t>(largest), sizeof(E), options.logits_bytes);
  return {config.layers,
          config.width,
          static_cast<std::int64_t>(part.heads.count),
          config.width / config.heads,
          static_cast<std::int64_t>(part.hidden.count),
          chunks.stride,
          chunks.rows,
          shape,
          world_size == 1 ? options.precision.compute : options.precision.message};
}

template <class E>
DeviceActivations<E>& DeviceModel<E>::prepared(const BatchShape& shape, Keep keep) {
  std::optional<DeviceActivations<E>>& cached = keep == Keep::kForBackward ? training_ : evaluation_;
  const ActivationExtents extents = extents_of(config_, world_size_, rank_, options_, shape);
  if (cached && cached->extents() == extents) return *cached;
  cached.emplace(extents, keep);
  if (cached->plan().bytes() > memory_.bytes()) {
    // Nothing may be at work in the old memory when it goes, and both are not there at once.
    collectives_.join();
    stream_.synchronize();
    memory_ = comm::DeviceMemory();
    (keep == Keep::kForBackward ? evaluation_ : training_).reset();
    const std::string purpose = cached->purpose();
    try {
      memory_ = comm::DeviceMemory(cached->plan().bytes(), purpose);
    } catch (...) {
      cached.reset();
      throw;
    }
  }
  cached->place(memory_.data());
  return *cached;
}

template <class E>
std::uint64_t DeviceModel<E>::planned_bytes(const Gpt2Config& config, int world_size, int rank,
                                            const Gpt2Cuda::Options& options, const BatchShape& shape) {
  const ActivationExtents extents = extents_of(config, world_size, rank, options, shape);
  return DeviceParameters<E>::device_bytes(gpt2_tensors(config, world_size, rank)) +
         std::max(DeviceActivations<E>(extents, Keep::kForBackward).plan().bytes(),
                  DeviceActivations<E>(extents, Keep::kNothing).plan().bytes());
}

template <class E>
void DeviceModel<E>::take_tokens(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                                 DeviceActivations<E>& buffers) {
  const auto take = [this](std::span<const std::int32_t> from, comm::DeviceSpan<std::int32_t> to) {
    const auto* staged = static_cast<const std::int32_t*>(stream_.stage(bytes_of(from)));
    comm::copy_on_device(comm::DeviceSpan<const std::int32_t>(staged, from.size()), to, stream_);
  };
  take(tokens, buffers.tokens);
  take(targets, buffers.targets);
}

template <class E>
double DeviceModel<E>::evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                                const BatchShape& shape) {
  DeviceActivations<E>& buffers = prepared(shape, Keep::kNothing);
  take_tokens(tokens, targets, buffers);
  run_blocks(buffers);
  head().forward(buffers);
  const comm::DeviceSpan<double> sum = numbers_.elems().subspan(kEvaluation, 1);
  sum_of_values(buffers.head.losses, sum, stream_);
  const std::span<double> on_host = host_numbers_.elems().subspan(kEvaluation, 1);
  comm::copy_to_host(comm::DeviceSpan<const double>(sum), on_host, stream_);
  stream_.synchronize();
  return on_host[0] / static_cast<double>(shape.rows());
}

template <class E>
void DeviceModel<E>::zero_gradients() {
  zeros_are_owed_ = true;
  pass_rows_.clear();
  folded_losses_ = 0;
}

template <class E>
void DeviceModel<E>::forward_backward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                                      const BatchShape& shape, double scale) {
  if (pass_rows_.size() == kMostPasses) fold_losses(kMostPasses);
  DeviceActivations<E>& buffers = prepared(shape, Keep::kForBackward);
  take_tokens(tokens, targets, buffers);
  if (!groups_ || tokens.size() > most_grouped_) {
    stream_.synchronize();  // an earlier pass may be at work with the old ones
    most_grouped_ = tokens.size();
    groups_.emplace(range_of(part_.vocabulary), most_grouped_);
  }
  groups_->group(tokens, stream_);

  const GradientMode mode = zeros_are_owed_ ? GradientMode::kSet : GradientMode::kAdd;
  zeros_are_owed_ = false;
  run_blocks(buffers);
  head().forward_backward(buffers, scale, mode);
  sum_of_values(buffers.head.losses, numbers_.elems().subspan(pass_rows_.size(), 1), stream_);
  pass_rows_.push_back(shape.rows());
  run_blocks_backward(buffers, mode);
}

template <class E>
void DeviceModel<E>::fold_losses(std::size_t passes) {
  comm::copy_to_host(comm::DeviceSpan<const double>(numbers_.elems()), host_numbers_.elems(), stream_);
  stream_.synchronize();
  for (std::size_t i = 0; i < passes; ++i) {
    folded_losses_ += host_numbers_.elems()[i] / static_cast<double>(pass_rows_[i]);
  }
  pass_rows_.clear();
}

template <class E>
Gpt2Cuda::StepSums DeviceModel<E>::step_sums() {
  DROPTEST_CHECK(!zeros_are_owed_, "sums of a step without a pass");
  parameters_.sum_gradient_squares(numbers_.elems().subspan(kSquares, 1));
  fold_losses(pass_rows_.size());
  return {folded_losses_, host_numbers_.elems()[kSquares]};
}

template class DeviceModel<float>;
template class DeviceModel<Bf16>;

}  // namespace droptest::models
