// SPDX-License-Identifier: Apache-2.0
#include "models/gpt2/gpt2_cuda.h"

#include <variant>

#include "models/gpt2/batch_check.h"
#include "models/gpt2/device_model.h"
#include "models/kernels/bf16.h"

namespace droptest::models {

class Gpt2Cuda::Impl {
 public:
  template <class E>
  using Model = std::unique_ptr<DeviceModel<E>>;

  Impl(const Gpt2Config& config, comm::Communicator& tensor_group, const Options& options)
      : config_(validated(config, tensor_group)) {
    if (options.precision.compute == Precision::kBfloat16) {
      model_ = std::make_unique<DeviceModel<Bf16>>(config, tensor_group, options);
    } else {
      model_ = std::make_unique<DeviceModel<float>>(config, tensor_group, options);
    }
  }

  const Gpt2Config& config() const { return config_; }

  /// body(model) for the model of whichever type.
  template <class Body>
  auto visit(const Body& body) const {
    return std::visit([&body](const auto& model) { return body(*model); }, model_);
  }

 private:
  static const Gpt2Config& validated(const Gpt2Config& config, const comm::Communicator& tensor_group) {
    validate(config, tensor_group.world_size());
    return config;
  }

  Gpt2Config config_;
  std::variant<Model<float>, Model<Bf16>> model_;
};

Gpt2Cuda::Gpt2Cuda(const Gpt2Config& config, comm::Communicator& tensor_group, const Options& options)
    : impl_(std::make_unique<Impl>(config, tensor_group, options)) {}

Gpt2Cuda::~Gpt2Cuda() = default;

const Gpt2Config& Gpt2Cuda::config() const { return impl_->config(); }

double Gpt2Cuda::evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, int batch,
                          int length) {
  const BatchShape shape{batch, length};
  check_batch(tokens, targets, shape, impl_->config());
  return impl_->visit([&](auto& model) { return model.evaluate(tokens, targets, shape); });
}

void Gpt2Cuda::zero_gradients() {
  impl_->visit([](auto& model) { model.zero_gradients(); });
}

void Gpt2Cuda::forward_backward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets, int batch,
                                int length, double scale) {
  const BatchShape shape{batch, length};
  check_batch(tokens, targets, shape, impl_->config());
  impl_->visit([&](auto& model) { model.forward_backward(tokens, targets, shape, scale); });
}

Gpt2Cuda::StepSums Gpt2Cuda::step_sums() {
  return impl_->visit([](auto& model) { return model.step_sums(); });
}

void Gpt2Cuda::step(double learning_rate, double gradient_scale) {
  impl_->visit([&](auto& model) { model.step(learning_rate, gradient_scale); });
}

std::span<Parameter<float>> Gpt2Cuda::host_parameters() {
  return impl_->visit([](auto& model) { return model.parameters().host(); });
}

void Gpt2Cuda::download(Fields fields) {
  impl_->visit([fields](auto& model) {
    model.parameters().download_values();
    if (fields == Fields::kValuesAndGradients) model.parameters().download_gradients();
  });
}

void Gpt2Cuda::upload_values() {
  impl_->visit([](auto& model) { model.parameters().upload_values(); });
}

std::uint64_t Gpt2Cuda::device_bytes() const {
  return impl_->visit([](const auto& model) { return model.device_bytes(); });
}

std::uint64_t Gpt2Cuda::planned_bytes(const Gpt2Config& config, int world_size, int rank, const Options& options,
                                      int batch, int length) {
  validate(config, world_size);
  const auto planned = options.precision.compute == Precision::kBfloat16 ? DeviceModel<Bf16>::planned_bytes
                                                                         : DeviceModel<float>::planned_bytes;
  return planned(config, world_size, rank, options, {batch, length});
}

}  // namespace droptest::models
