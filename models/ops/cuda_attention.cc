// SPDX-License-Identifier: Apache-2.0
// The device's attention kernels, by name.
#include <string>
#include <type_traits>

#include "models/kernels/attention_kernel.h"
#include "models/kernels/attention_plain.h"
#include "models/kernels/narrow_floats.h"
#include "models/ops/device_spans.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

using comm::ElementType;

/// Calls visit(std::type_identity<E>()) with the type of a device's activations.
template <class Visit>
void visit_activations(ElementType type, const Visit& visit) {
  if (type == ElementType::kFloat32) return visit(std::type_identity<float>());
  if (type == ElementType::kFloat16) return visit(std::type_identity<Fp16>());
  DROPTEST_CHECK(type == ElementType::kBfloat16,
                 "attention of a device in " + std::string(comm::element_type_name(type)));
  visit(std::type_identity<Bf16>());
}

enum class Arithmetic : std::uint8_t { kFastest, kPlain };

class CudaAttention final : public AttentionKernel {
 public:
  explicit CudaAttention(Arithmetic arithmetic) : arithmetic_(arithmetic) {}

  std::uint64_t statistics_elems(const AttentionShape& s) const override { return rows_of_heads(s); }
  std::uint64_t forward_scratch_elems(const AttentionShape& /*s*/, int /*threads*/) const override { return 0; }
  std::uint64_t backward_scratch_elems(const AttentionShape& s, int /*threads*/) const override {
    return rows_of_heads(s);
  }

  bool takes_dropout() const override { return true; }
  void forward(const AttentionForwardTensors& t, const AttentionShape& shape,
               const KernelTarget& target) const override {
    visit_activations(t.qkv.type, [&](auto type) {
      using E = typename decltype(type)::type;
      const auto forward = arithmetic_ == Arithmetic::kPlain
                               ? plain_attention_forward<E>
                               : static_cast<decltype(&plain_attention_forward<E>)>(attention_forward<E>);
      forward(span_of<E>(t.qkv), shape, span_of<float>(t.statistics), span_of<E>(t.output), *target.stream, t.dropout);
    });
  }
  void backward(const AttentionBackwardTensors& t, const AttentionShape& shape,
                const KernelTarget& target) const override {
    visit_activations(t.qkv.type, [&](auto type) {
      using E = typename decltype(type)::type;
      const auto backward = arithmetic_ == Arithmetic::kPlain
                                ? plain_attention_backward<E>
                                : static_cast<decltype(&plain_attention_backward<E>)>(attention_backward<E>);
      backward(span_of<E>(t.grad_output), span_of<E>(t.qkv), span_of<E>(t.output), span_of<float>(t.statistics), shape,
               span_of<E>(t.grad_qkv), span_of<float>(t.scratch), *target.stream, t.dropout);
    });
  }

 private:
  static std::uint64_t rows_of_heads(const AttentionShape& s) {
    return static_cast<std::uint64_t>(s.batch * s.heads * s.length);
  }

  Arithmetic arithmetic_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_cuda_flash_attention() {
  return std::make_unique<CudaAttention>(Arithmetic::kFastest);
}
std::unique_ptr<AttentionKernel> make_cuda_plain_attention() {
  return std::make_unique<CudaAttention>(Arithmetic::kPlain);
}

}  // namespace droptest::models
