// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/gpt2.h"

#include <algorithm>
#include <boost/random/normal_distribution.hpp>
#include <utility>

#include "models/gpt2/attention_block.h"
#include "models/gpt2/block_scratch.h"
#include "models/gpt2/execution.h"
#include "models/gpt2/gpt2_tensors.h"
#include "models/gpt2/layer_norm.h"
#include "models/gpt2/mlp_block.h"
#include "models/gpt2/parallel_cross_entropy.h"
#include "models/gpt2/parallel_embedding.h"
#include "models/kernels/chunks.h"
#include "models/kernels/matmul.h"
#include "sim/error.h"
#include "sim/random/philox.h"

namespace droptest::models {
namespace {

// Parameters of a block in gpt2_tensors' order: six of the attention half, six of the MLP half.
constexpr std::size_t kTensorsBeforeBlocks = 2;
constexpr std::size_t kTensorsPerHalf = 6;

// Each tensor starts on a cache line of its own.
constexpr std::uint64_t kAlignmentElems = 16;

TokenRange token_range(const IndexRange& range) {
  return {static_cast<std::int64_t>(range.first), static_cast<std::int64_t>(range.count)};
}

void check_tokens(std::span<const std::int32_t> tokens, const char* what, const Gpt2Config& config) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config.vocabulary) {
      throw ConfigError(std::string("GPT-2 forward: ") + what + "[" + std::to_string(i) + "]: got " +
                        std::to_string(tokens[i]) +
                        ", want a token in [0, vocabulary = " + std::to_string(config.vocabulary) + ")");
    }
  }
}

const Gpt2Config& validated(const Gpt2Config& config, const comm::Communicator& tensor_group, int threads) {
  validate(config, tensor_group.world_size());
  if (threads < 1) {
    throw ConfigError("GPT-2: threads of rank " + std::to_string(tensor_group.rank()) + ": got " +
                      std::to_string(threads) + ", want at least 1");
  }
  return config;
}

}  // namespace

template <class T>
class Gpt2<T>::Impl {
 public:
  Impl(const Gpt2Config& config, comm::Communicator& tensor_group, int threads)
      : config_(validated(config, tensor_group, threads)),
        part_(gpt2_part(config, tensor_group.world_size(), tensor_group.rank())),
        tensors_(gpt2_tensors(config, tensor_group.world_size(), tensor_group.rank())),
        execution_{tensor_group, threads},
        parameters_(allocate()),
        embedding_(parameters_[0], parameters_[1], token_range(part_.vocabulary), execution_),
        ln_f_(parameters_[parameters_.size() - 2], parameters_[parameters_.size() - 1], execution_),
        cross_entropy_(token_range(part_.vocabulary), execution_) {
    const auto heads = static_cast<std::int64_t>(part_.heads.count);
    const std::span<Parameter<T>> all(parameters_);
    for (int layer = 0; layer < config.layers; ++layer) {
      const std::size_t first = kTensorsBeforeBlocks + 2 * kTensorsPerHalf * static_cast<std::size_t>(layer);
      attention_.emplace_back(all.subspan(first, kTensorsPerHalf), heads, config.width / config.heads, execution_,
                              layer);
      mlp_.emplace_back(all.subspan(first + kTensorsPerHalf, kTensorsPerHalf), execution_, layer);
    }
    // The stream before each half of each block, and after the last.
    stream_.resize(2 * static_cast<std::size_t>(config.layers) + 1);
  }

  const Gpt2Config& config() const { return config_; }
  std::span<Parameter<T>> parameters() { return parameters_; }
  void zero_gradients() { std::fill(gradients_.begin(), gradients_.end(), T(0)); }

  void initialize(std::uint64_t seed);
  double forward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, const BatchShape& shape);
  void backward(double scale);

 private:
  std::vector<Parameter<T>> allocate();
  ConstMatrix<T> head_weight() const {
    return {parameters_[0].value.data(), static_cast<std::int64_t>(part_.vocabulary.count), config_.width,
            config_.width};
  }

  enum class Logits : std::uint8_t { kNone, kExponentials, kGradient };

  Gpt2Config config_;
  Gpt2Part part_;
  std::vector<Gpt2Tensor> tensors_;
  Execution execution_;
  std::vector<T> values_;
  std::vector<T> gradients_;
  std::vector<Parameter<T>> parameters_;

  ParallelEmbedding<T> embedding_;
  std::vector<AttentionBlock<T>> attention_;
  std::vector<MlpBlock<T>> mlp_;
  LayerNorm<T> ln_f_;
  ParallelCrossEntropy<T> cross_entropy_;

  BatchShape shape_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> targets_;
  std::vector<std::vector<T>> stream_;
  std::vector<T> normalized_;
  std::vector<T> logits_;
  Logits logits_hold_ = Logits::kNone;
  std::vector<T> grad_stream_;
  BlockScratch<T> scratch_;
};

template <class T>
std::vector<Parameter<T>> Gpt2<T>::Impl::allocate() {
  std::uint64_t elems = 0;
  std::vector<std::uint64_t> offsets;
  for (const Gpt2Tensor& tensor : tensors_) {
    offsets.push_back(elems);
    elems += (tensor.slice.local_elems() + kAlignmentElems - 1) / kAlignmentElems * kAlignmentElems;
  }
  values_.assign(elems, T(0));
  gradients_.assign(elems, T(0));
  std::vector<Parameter<T>> parameters;
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Gpt2Tensor& tensor = tensors_[i];
    const std::uint64_t count = tensor.slice.local_elems();
    parameters.push_back({tensor.name, tensor.group, tensor.slice.local_shape(), tensor.placement, tensor.decay,
                          std::span<T>(values_).subspan(offsets[i], count),
                          std::span<T>(gradients_).subspan(offsets[i], count)});
  }
  return parameters;
}

template <class T>
void Gpt2<T>::Impl::initialize(std::uint64_t seed) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const Gpt2Tensor& tensor = tensors_[i];
    const std::span<T> value = parameters_[i].value;
    std::fill(value.begin(), value.end(), T(0));
    if (tensor.initial_deviation == 0) {
      std::fill(value.begin(), value.end(), static_cast<T>(tensor.initial_constant));
      continue;
    }
    // Every rank draws the whole tensor and keeps its slice. How many random bits a value takes is itself random, so
    // values cannot be reached without those before them.
    sim::PhiloxEngine engine(seed, sim::Purpose::kWeights, i);
    boost::random::normal_distribution<double> normal(0.0, tensor.initial_deviation);
    std::uint64_t drawn = 0;
    tensor.slice.for_each_run([&](std::uint64_t full, std::uint64_t local, std::uint64_t count) {
      for (; drawn < full; ++drawn) normal(engine);
      for (std::uint64_t k = 0; k < count; ++k) value[local + k] = static_cast<T>(normal(engine));
      drawn += count;
    });
  }
}

template <class T>
double Gpt2<T>::Impl::forward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                              const BatchShape& shape) {
  const std::int64_t rows = shape.rows();
  if (shape.batch < 1 || shape.length < 1 || shape.length > config_.context) {
    throw ConfigError(
        "GPT-2 forward: got batch " + std::to_string(shape.batch) + " of length " + std::to_string(shape.length) +
        ", want a batch of at least 1 and a length in [1, context = " + std::to_string(config_.context) + "]");
  }
  if (static_cast<std::int64_t>(tokens.size()) != rows || static_cast<std::int64_t>(targets.size()) != rows) {
    throw ConfigError("GPT-2 forward: got " + std::to_string(tokens.size()) + " tokens and " +
                      std::to_string(targets.size()) + " targets, want batch x length = " + std::to_string(rows));
  }
  check_tokens(tokens, "tokens", config_);
  check_tokens(targets, "targets", config_);

  const SingleThreadedLibraries single_threaded;
  shape_ = shape;
  tokens_.assign(tokens.begin(), tokens.end());
  targets_.assign(targets.begin(), targets.end());
  const auto stream_elems = static_cast<std::size_t>(rows * config_.width);
  for (std::vector<T>& stream : stream_) stream.resize(stream_elems);
  normalized_.resize(stream_elems);
  logits_.resize(static_cast<std::size_t>(rows) * part_.vocabulary.count);
  logits_hold_ = Logits::kNone;

  embedding_.forward(tokens_, shape, stream_[0]);
  for (std::size_t layer = 0; layer < attention_.size(); ++layer) {
    attention_[layer].forward(stream_[2 * layer], shape, scratch_, stream_[2 * layer + 1]);
    mlp_[layer].forward(stream_[2 * layer + 1], shape, scratch_, stream_[2 * layer + 2]);
  }
  ln_f_.forward(stream_.back(), rows, normalized_);
  matmul<T>(Transpose::kNo, dense<T>(std::as_const(normalized_).data(), rows, config_.width), Transpose::kYes,
            head_weight(), T(1), T(0), dense(logits_.data(), rows, static_cast<std::int64_t>(part_.vocabulary.count)),
            execution_.threads);
  const double loss = cross_entropy_.forward(logits_, targets_);
  logits_hold_ = Logits::kExponentials;
  return loss;
}

template <class T>
void Gpt2<T>::Impl::backward(double scale) {
  DROPTEST_CHECK(logits_hold_ != Logits::kNone, "backward without a forward pass before it");
  const SingleThreadedLibraries single_threaded;
  if (logits_hold_ == Logits::kExponentials) {
    cross_entropy_.to_gradient(logits_, targets_);
    logits_hold_ = Logits::kGradient;
  }
  const std::int64_t rows = shape_.rows();
  const std::int64_t width = config_.width;
  const auto columns = static_cast<std::int64_t>(part_.vocabulary.count);
  const auto stream_elems = static_cast<std::size_t>(rows * width);
  grad_stream_.resize(stream_elems);
  scratch_.grad_normalized.resize(stream_elems);

  // The mean over rows and the caller's scale enter here, as the factor of both products.
  const auto factor = static_cast<T>(scale / static_cast<double>(rows));
  const ConstMatrix<T> grad_logits = dense<T>(std::as_const(logits_).data(), rows, columns);
  matmul<T>(Transpose::kYes, grad_logits, Transpose::kNo, dense<T>(std::as_const(normalized_).data(), rows, width),
            factor, T(1), {parameters_[0].gradient.data(), columns, width, width}, execution_.threads);
  matmul<T>(Transpose::kNo, grad_logits, Transpose::kNo, head_weight(), factor, T(0),
            dense(scratch_.grad_normalized.data(), rows, width), execution_.threads);
  execution_.tensor_group.all_reduce(std::span<T>(scratch_.grad_normalized), comm::ReduceOp::kSum,
                                     {sim::TrafficClass::kTpBackward, "lm_head.backward", -1});

  std::fill(grad_stream_.begin(), grad_stream_.end(), T(0));
  ln_f_.backward(scratch_.grad_normalized, stream_.back(), rows, grad_stream_);
  for (std::size_t layer = attention_.size(); layer-- > 0;) {
    mlp_[layer].backward(stream_[2 * layer + 1], shape_, scratch_, grad_stream_);
    attention_[layer].backward(stream_[2 * layer], shape_, scratch_, grad_stream_);
  }
  embedding_.backward(tokens_, grad_stream_, shape_);
}

template <class T>
Gpt2<T>::Gpt2(const Gpt2Config& config, comm::Communicator& tensor_group, int threads)
    : impl_(std::make_unique<Impl>(config, tensor_group, threads)) {}

template <class T>
Gpt2<T>::~Gpt2() = default;

template <class T>
const Gpt2Config& Gpt2<T>::config() const {
  return impl_->config();
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
void Gpt2<T>::backward(double scale) {
  impl_->backward(scale);
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
