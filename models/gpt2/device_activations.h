// SPDX-License-Identifier: Apache-2.0
// What the passes of a model on a device work with, placed in one piece of memory for a shape of batch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "comm/device/device_buffer.h"
#include "comm/device/device_span.h"
#include "models/gpt2/device_collectives.h"
#include "models/gpt2/execution.h"
#include "models/gpt2/memory_plan.h"

namespace droptest::models {

/// What decides how large buffers are: the model, as one rank has it, and the batch.
struct ActivationExtents {
  int layers = 0;
  std::int64_t width = 0;
  std::int64_t heads = 0;  ///< of this rank
  std::int64_t head_width = 0;
  std::int64_t hidden = 0;         ///< columns of this rank
  std::int64_t logits_stride = 0;  ///< elements of a row of logits
  std::int64_t logits_rows = 0;    ///< of a chunk
  BatchShape batch;
  Precision message = Precision::kFloat32;  ///< of messages; of a lone rank, that of the activations

  friend bool operator==(const ActivationExtents&, const ActivationExtents&) = default;
};

/// What each half of a block keeps of its layer norm.
template <class E>
struct NormBuffers {
  comm::DeviceSpan<E> stream;      ///< [rows, width]: what is normalised
  comm::DeviceSpan<E> normalized;  ///< [rows, width]
  comm::DeviceSpan<float> mean;    ///< [rows]
  comm::DeviceSpan<float> inverse_deviation;
};

template <class E>
struct AttentionBuffers {
  NormBuffers<E> norm;
  comm::DeviceSpan<E> qkv;              ///< [rows, 3, heads, head width]
  comm::DeviceSpan<float> log_sum_exp;  ///< [batch, heads, length]
  comm::DeviceSpan<E> mixed;            ///< [rows, heads, head width]
  comm::DeviceSpan<E> sum;              ///< [rows, width]: what c_proj's ranks add up to
};

template <class E>
struct MlpBuffers {
  NormBuffers<E> norm;
  comm::DeviceSpan<E> pre_gelu;    ///< [rows, hidden]
  comm::DeviceSpan<E> after_gelu;  ///< [rows, hidden]
  comm::DeviceSpan<E> sum;         ///< [rows, width]
};

template <class E>
struct HeadBuffers {
  NormBuffers<E> norm;
  comm::DeviceSpan<E> logits;                        ///< [chunk's rows, stride]
  comm::DeviceSpan<float> largest, sums, predicted;  ///< [chunk's rows]
  comm::DeviceSpan<float> losses;                    ///< [rows]
};

/// Only of passes that keep what a backward pass needs.
template <class E>
struct BackwardBuffers {
  comm::DeviceSpan<E> grad_stream;         ///< [rows, width]
  comm::DeviceSpan<E> grad_normalized;     ///< [rows, width]
  comm::DeviceSpan<E> grad_mixed;          ///< [rows, heads, head width]
  comm::DeviceSpan<E> grad_qkv;            ///< [rows, 3, heads, head width]
  comm::DeviceSpan<E> grad_hidden;         ///< [rows, hidden]
  comm::DeviceSpan<float> norm_scratch;    ///< of layernorm_backward
  comm::DeviceSpan<float> attention_rows;  ///< [batch, heads, length], of attention_backward
};

/// A forward pass that keeps everything for the backward pass behind it, or (Keep::kNothing) only what is read next:
/// the memory of one block then serves all. E is float or Bf16.
template <class E>
class DeviceActivations {
 public:
  DeviceActivations(const ActivationExtents& extents, Keep keep);

  const ActivationExtents& extents() const { return extents_; }
  const MemoryPlan& plan() const { return plan_; }
  /// What the memory is for, for errors: "activations of a batch of 4 x 1024 tokens: 3.1 GiB qkv, ...".
  std::string purpose() const;

  /// Places the buffers there. Shapes: at least plan().bytes().
  void place(std::byte* memory);

  comm::DeviceSpan<std::int32_t> tokens;   ///< [rows]
  comm::DeviceSpan<std::int32_t> targets;  ///< [rows]
  MessageBuffer<E> message;                ///< [rows, width]; empty where messages are of E
  std::vector<AttentionBuffers<E>> attention;
  std::vector<MlpBuffers<E>> mlp;
  HeadBuffers<E> head;
  BackwardBuffers<E> backward;

 private:
  class Builder;
  struct Setter {
    void (*set)(void* span, std::byte* data, std::uint64_t elems);
    void* span;
    std::uint64_t elems;
  };
  std::vector<PlannedBuffer> planned(Keep keep);

  ActivationExtents extents_;
  std::vector<Setter> setters_;
  MemoryPlan plan_;
};

}  // namespace droptest::models
