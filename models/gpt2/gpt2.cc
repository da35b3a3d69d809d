// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/gpt2.h"

#include <algorithm>
#include <utility>

#include "models/gpt2/attention_block.h"
#include "models/gpt2/batch_check.h"
#include "models/gpt2/bf16_products.h"
#include "models/gpt2/block_scratch.h"
#include "models/gpt2/execution.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/initial_weights.h"
#include "models/gpt2/layer_norm.h"
#include "models/gpt2/lm_head.h"
#include "models/gpt2/mlp_block.h"
#include "models/gpt2/parallel_embedding.h"
#include "models/gpt2/parameter_arena.h"
#include "models/host_buffer.h"
#include "models/kernels/chunks.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

// Parameters of a block in gpt2_tensors' order: six of the attention half, six of the MLP half.
constexpr std::size_t kTensorsBeforeBlocks = 2;
constexpr std::size_t kTensorsPerHalf = 6;

TokenRange token_range(const IndexRange& range) {
  return {static_cast<std::int64_t>(range.first), static_cast<std::int64_t>(range.count)};
}

template <class T>
const Gpt2Config& validated(const Gpt2Config& config, const comm::Communicator& tensor_group, int threads,
                            const ModelPrecision& precision) {
  validate(config, tensor_group.world_size());
  if (threads < 1) {
    throw ConfigError("GPT-2: threads of rank " + std::to_string(tensor_group.rank()) + ": got " +
                      std::to_string(threads) + ", want at least 1");
  }
  if (precision != ModelPrecision{} && !std::is_same_v<T, float>) {
    throw ConfigError("GPT-2: /training/precision: got bfloat16 for a model of double numbers, want float32");
  }
  if (precision.compute == Precision::kBfloat16 && !has_bf16_products()) {
    throw ConfigError(
        "GPT-2: /training/precision/compute: got \"bfloat16\", but this processor has no AVX512-BF16 instructions; "
        "want "
        "\"float32\" here, or another processor (\"message\" may be \"bfloat16\" on any)");
  }
  return config;
}

/// Whether a product of the backward pass covers the gradient: that of a matrix other than the positions. (Rows of wte
/// that only pad it have no gradient at any time.)
template <class T>
bool is_set_by_products(const Parameter<T>& parameter) {
  return parameter.shape.size() == 2 && parameter.name != "wpe.weight";
}

}  // namespace

template <class T>
class Gpt2<T>::Impl {
 public:
  Impl(const Gpt2Config& config, comm::Communicator& tensor_group, int threads, const ModelPrecision& precision,
       PhaseTimes* times)
      : config_(validated<T>(config, tensor_group, threads, precision)),
        part_(gpt2_part(config, tensor_group.world_size(), tensor_group.rank())),
        tensors_(gpt2_tensors(config, tensor_group.world_size(), tensor_group.rank())),
        execution_{.tensor_group = tensor_group, .team = threads, .times = times},
        parameters_(allocate(precision.compute)),
        embedding_(parameters_[0], parameters_[1], token_range(part_.vocabulary), execution_),
        ln_f_(parameters_[parameters_.size() - 2], parameters_[parameters_.size() - 1], execution_),
        head_(parameters_[0], token_range(part_.vocabulary), static_cast<std::int64_t>(parameters_[0].shape[0]),
              execution_) {
    const auto heads = static_cast<std::int64_t>(part_.heads.count);
    const std::span<Parameter<T>> all(parameters_);
    for (int layer = 0; layer < config.layers; ++layer) {
      const std::size_t first = kTensorsBeforeBlocks + 2 * kTensorsPerHalf * static_cast<std::size_t>(layer);
      attention_.emplace_back(all.subspan(first, kTensorsPerHalf), heads, config.width / config.heads, execution_,
                              layer);
      mlp_.emplace_back(all.subspan(first + kTensorsPerHalf, kTensorsPerHalf), execution_, layer);
    }
    if (precision.compute == Precision::kBfloat16) execution_.bf16 = &bf16_products_;
    if (precision.message == Precision::kBfloat16 && tensor_group.world_size() > 1) {
      execution_.bf16_message = &bf16_message_;
    }
    // The stream before each half of each block, and after the last.
    stream_.resize(2 * static_cast<std::size_t>(config.layers) + 1);
  }

  const Gpt2Config& config() const { return config_; }
  const Team& team() const { return execution_.team; }
  std::span<Parameter<T>> parameters();
  void zero_gradients() { zeros_are_owed_ = true; }

  void initialize(std::uint64_t seed);
  double forward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, const BatchShape& shape);
  double evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, const BatchShape& shape);
  void backward(double scale);
  double forward_backward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                          const BatchShape& shape, double scale);

 private:
  std::vector<Parameter<T>> allocate(Precision compute);
  void round_weights();
  void run_blocks(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, const BatchShape& shape,
                  Keep keep);
  void begin_backward();
  void run_blocks_backward();

  Gpt2Config config_;
  Gpt2Part part_;
  std::vector<Gpt2Tensor> tensors_;
  Execution execution_;
  HostBuffer<T> values_;
  HostBuffer<T> gradients_;
  HostBuffer<Bf16> rounded_values_;  ///< empty unless the model multiplies in bfloat16
  Bf16Products bf16_products_;
  std::vector<Bf16> bf16_message_;
  bool zeros_are_owed_ = false;  ///< the gradients count as zero, but nobody has written zeros yet
  std::vector<Parameter<T>> parameters_;

  ParallelEmbedding<T> embedding_;
  std::vector<AttentionBlock<T>> attention_;
  std::vector<MlpBlock<T>> mlp_;
  LayerNorm<T> ln_f_;
  LmHead<T> head_;

  BatchShape shape_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> targets_;
  std::vector<std::vector<T>> stream_;
  std::vector<T> normalized_;
  bool has_forward_ = false;
  std::vector<T> grad_stream_;
  BlockScratch<T> scratch_;
};

template <class T>
std::vector<Parameter<T>> Gpt2<T>::Impl::allocate(Precision compute) {
  const ParameterArena arena = parameter_arena(tensors_);
  values_ = HostBuffer<T>(arena.elems);
  gradients_ = HostBuffer<T>(arena.elems);
  std::vector<Parameter<T>> parameters = parameters_in<T>(arena, tensors_, values_.elems(), gradients_.elems());
  if (compute == Precision::kBfloat16) {
    rounded_values_ = HostBuffer<Bf16>(arena.elems);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (!is_set_by_products(parameters[i])) continue;
      parameters[i].bf16_value = rounded_values_.elems().subspan(arena.offsets[i], parameters[i].value.size());
    }
  }
  return parameters;
}

// Weights change between passes in more ways than one: each pass rounds those that it multiplies.
template <class T>
void Gpt2<T>::Impl::round_weights() {
  if constexpr (std::is_same_v<T, float>) {
    for (const Parameter<T>& parameter : parameters_) {
      if (parameter.bf16_value.empty()) continue;
      const auto offset = static_cast<std::size_t>(parameter.bf16_value.data() - rounded_values_.elems().data());
      to_bf16(parameter.value, 1.0F, rounded_values_.elems().subspan(offset, parameter.value.size()), execution_.team);
    }
  }
}

template <class T>
std::span<Parameter<T>> Gpt2<T>::Impl::parameters() {
  if (zeros_are_owed_) std::fill(gradients_.elems().begin(), gradients_.elems().end(), T(0));
  zeros_are_owed_ = false;
  return parameters_;
}

template <class T>
void Gpt2<T>::Impl::initialize(std::uint64_t seed) {
  set_initial_weights<T>(tensors_, seed, parameters_);
}

template <class T>
void Gpt2<T>::Impl::run_blocks(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                               const BatchShape& shape, Keep keep) {
  const std::int64_t rows = shape.rows();
  check_batch(tokens, targets, shape, config_);
  const SingleThreadedLibraries single_threaded;
  execution_.keep = keep;
  shape_ = shape;
  tokens_.assign(tokens.begin(), tokens.end());
  targets_.assign(targets.begin(), targets.end());
  const auto stream_elems = static_cast<std::size_t>(rows * config_.width);
  // Without a backward pass two of them take turns.
  const std::size_t streams = keep == Keep::kNothing ? 2 : stream_.size();
  const auto stream_of = [&](std::size_t half) -> std::vector<T>& { return stream_[half % streams]; };
  for (std::size_t i = 0; i < streams; ++i) stream_[i].resize(stream_elems);
  normalized_.resize(stream_elems);

  round_weights();

  embedding_.forward(tokens_, shape, stream_[0]);
  Branch<T> branch;
  for (std::size_t half = 0; half + 1 < stream_.size(); ++half) {
    // The first half finds the stream as the embedding left it; each other one makes it from what lies before.
    const std::vector<T>& residual = stream_of(half == 0 ? 0 : half - 1);
    branch = half % 2 == 0 ? attention_[half / 2].forward(residual, branch, shape, scratch_, stream_of(half))
                           : mlp_[half / 2].forward(residual, branch, shape, scratch_, stream_of(half));
  }
  const std::size_t last = stream_.size() - 1;
  ln_f_.forward(stream_of(last - 1), branch, rows, stream_of(last), normalized_);
}

template <class T>
double Gpt2<T>::Impl::forward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                              const BatchShape& shape) {
  has_forward_ = false;
  run_blocks(tokens, targets, shape, Keep::kForBackward);
  const SingleThreadedLibraries single_threaded;
  const double loss = head_.forward(normalized_, targets_);
  has_forward_ = true;
  return loss;
}

template <class T>
double Gpt2<T>::Impl::evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                               const BatchShape& shape) {
  has_forward_ = false;
  run_blocks(tokens, targets, shape, Keep::kNothing);
  const SingleThreadedLibraries single_threaded;
  return head_.forward(normalized_, targets_);
}

template <class T>
void Gpt2<T>::Impl::backward(double scale) {
  DROPTEST_CHECK(has_forward_, "backward without a forward pass before it");
  const SingleThreadedLibraries single_threaded;
  begin_backward();
  head_.backward(normalized_, targets_, scale, scratch_.grad_normalized);
  run_blocks_backward();
}

template <class T>
double Gpt2<T>::Impl::forward_backward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                                       const BatchShape& shape, double scale) {
  has_forward_ = false;
  run_blocks(tokens, targets, shape, Keep::kForBackward);
  const SingleThreadedLibraries single_threaded;
  begin_backward();
  const double loss = head_.forward_backward(normalized_, targets_, scale, scratch_.grad_normalized);
  run_blocks_backward();
  has_forward_ = true;
  return loss;
}

template <class T>
void Gpt2<T>::Impl::begin_backward() {
  const auto stream_elems = static_cast<std::size_t>(shape_.rows() * config_.width);
  grad_stream_.resize(stream_elems);
  scratch_.grad_normalized.resize(stream_elems);
  execution_.gradient_mode = zeros_are_owed_ ? GradientMode::kSet : GradientMode::kAdd;
  if (zeros_are_owed_) {
    for (Parameter<T>& parameter : parameters_) {
      if (!is_set_by_products(parameter)) std::fill(parameter.gradient.begin(), parameter.gradient.end(), T(0));
    }
  }
  zeros_are_owed_ = false;
}

template <class T>
void Gpt2<T>::Impl::run_blocks_backward() {
  const std::int64_t rows = shape_.rows();
  std::fill(grad_stream_.begin(), grad_stream_.end(), T(0));
  ln_f_.backward(scratch_.grad_normalized, stream_.back(), rows, grad_stream_);
  for (std::size_t layer = attention_.size(); layer-- > 0;) {
    mlp_[layer].backward(stream_[2 * layer + 1], shape_, scratch_, grad_stream_);
    attention_[layer].backward(stream_[2 * layer], shape_, scratch_, grad_stream_);
  }
  embedding_.backward(tokens_, grad_stream_, shape_);
}

template <class T>
Gpt2<T>::Gpt2(const Gpt2Config& config, comm::Communicator& tensor_group, int threads, const ModelPrecision& precision,
              PhaseTimes* times)
    : impl_(std::make_unique<Impl>(config, tensor_group, threads, precision, times)) {}

template <class T>
Gpt2<T>::~Gpt2() = default;

template <class T>
const Gpt2Config& Gpt2<T>::config() const {
  return impl_->config();
}

template <class T>
const Team& Gpt2<T>::team() const {
  return impl_->team();
}

template <class T>
void Gpt2<T>::initialize(std::uint64_t seed) {
  impl_->initialize(seed);
}

template <class T>
double Gpt2<T>::forward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, int batch,
                        int length) {
  return impl_->forward(tokens, targets, {batch, length});
}

template <class T>
double Gpt2<T>::evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, int batch,
                         int length) {
  return impl_->evaluate(tokens, targets, {batch, length});
}

template <class T>
void Gpt2<T>::backward(double scale) {
  impl_->backward(scale);
}

template <class T>
double Gpt2<T>::forward_backward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, int batch,
                                 int length, double scale) {
  return impl_->forward_backward(tokens, targets, {batch, length}, scale);
}

template <class T>
void Gpt2<T>::zero_gradients() {
  impl_->zero_gradients();
}

template <class T>
std::span<Parameter<T>> Gpt2<T>::parameters() {
  return impl_->parameters();
}

template class Gpt2<float>;
template class Gpt2<double>;

}  // namespace droptest::models
