// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction into fused multiply-adds, so that float results have the host's bits.
#include <algorithm>
#include <type_traits>
#include <vector>

#include "comm/device/device_buffer.h"
#include "comm/device/kernel_launch.cuh"
#include "comm/device/tensor_elements.cuh"
#include "comm/device/tensor_operations.h"
#include "comm/visit_elements.h"

namespace droptest::comm {
namespace {

// Packs of kElems neighbours.
template <class T, int kElems>
__global__ void reduction_kernel(ReduceOp op, const std::byte* const* inputs, int sources, std::byte* const* outputs,
                                 int results, std::uint64_t packs) {
  using P = Pack<T, kElems>;
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < packs; i += stride) {
    WideOf<T> sums[kElems];
    for (int s = 0; s < sources; ++s) {
      const P x = reinterpret_cast<const P*>(inputs[s])[i];
      for (int k = 0; k < kElems; ++k) {
        const WideOf<T> value = widened(x.elems[k]);
        sums[k] = s == 0 ? value : combine(op, sums[k], value);
      }
    }
    P result;
    for (int k = 0; k < kElems; ++k) result.elems[k] = narrowed<T>(completed(op, sums[k], sources));
    for (int r = 0; r < results; ++r) reinterpret_cast<P*>(outputs[r])[i] = result;
  }
}

// One block for each run.
template <class T>
__global__ void runs_kernel(RunOperation operation, const T* from, T* data, const ElementRun* runs, std::uint64_t count,
                            T lowest) {
  using W = WideOf<T>;
  for (std::uint64_t r = blockIdx.x; r < count; r += gridDim.x) {
    const ElementRun run = runs[r];
    for (std::uint64_t i = run.begin + threadIdx.x; i < run.end; i += blockDim.x) {
      switch (operation) {
        case RunOperation::kZero:
          data[i] = T{};
          break;
        case RunOperation::kLowest:
          data[i] = lowest;
          break;
        case RunOperation::kCopy:
          data[i] = from[i];
          break;
        case RunOperation::kSum:
          data[i] = narrowed<T>(widened(data[i]) + widened(from[i]));
          break;
        case RunOperation::kMax:
          data[i] = narrowed<T>(combine(ReduceOp::kMax, widened(data[i]), widened(from[i])));
          break;
        case RunOperation::kScale:
          data[i] = narrowed<T>(widened(data[i]) * static_cast<W>(run.factor));
          break;
        case RunOperation::kDivide:
          data[i] = narrowed<T>(widened(data[i]) / static_cast<W>(run.factor));
          break;
        case RunOperation::kFinite:
          if (const W x = widened(data[i]); !(x - x == W(0))) data[i] = T{};
          break;
      }
    }
  }
}

// Pieces of runs that are small enough for a block each.
std::vector<ElementRun> pieces_of(std::span<const ElementRun> runs) {
  constexpr std::uint64_t kPieceElems = 8192;
  std::vector<ElementRun> pieces;
  for (const ElementRun& run : runs) {
    for (std::uint64_t begin = run.begin; begin < run.end; begin += kPieceElems) {
      pieces.push_back({begin, std::min(run.end, begin + kPieceElems), run.factor});
    }
  }
  return pieces;
}

}  // namespace

void change_runs_on_device(RunOperation operation, ConstTensor from, Tensor data, std::span<const ElementRun> runs) {
  Stream& stream = stream_of(data);
  const std::vector<ElementRun> pieces = pieces_of(runs);
  if (pieces.empty()) return;
  const auto* staged = static_cast<const ElementRun*>(stream.stage(std::as_bytes(std::span(pieces))));
  visit_elements(data.type, [&]<class T>(std::type_identity<T>) {
    constexpr std::uint64_t kMostBlocks = 1U << 16U;
    const LaunchShape shape{std::min<std::uint64_t>(pieces.size(), kMostBlocks), kThreads, 0};
    const T lowest = narrowed<T>(lowest_value<WideOf<T>>());
    launch("change of runs", runs_kernel<T>, shape, stream, operation, from.as<T>().data(), data.as<T>().data(), staged,
           pieces.size(), lowest);
  });
}

void reduce_on_device(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
                      std::span<std::byte* const> outputs, std::uint64_t count_elems, Stream& stream) {
  DROPTEST_CHECK(!inputs.empty(), "no inputs");
  if (count_elems == 0 || (inputs.size() == 1 && outputs.size() == 1 && inputs[0] == outputs[0])) return;
  StagedArrays arrays;
  const std::size_t inputs_at = arrays.add(inputs);
  const std::size_t outputs_at = arrays.add(std::span<std::byte* const>(outputs));
  const std::byte* staged = arrays.stage(stream);
  const auto* from = reinterpret_cast<const std::byte* const*>(staged + inputs_at);
  const auto* to = reinterpret_cast<std::byte* const*>(staged + outputs_at);
  const int sources = static_cast<int>(inputs.size());
  const int results = static_cast<int>(outputs.size());
  visit_elements(type, [&]<class T>(std::type_identity<T>) {
    constexpr int kElems = kPackBytes / sizeof(T);
    if (count_elems % kElems == 0 && are_aligned(inputs, outputs)) {
      launch("reduction", reduction_kernel<T, kElems>, cover(count_elems / kElems, kThreads), stream, op, from, sources,
             to, results, count_elems / kElems);
    } else {
      launch("reduction", reduction_kernel<T, 1>, cover(count_elems, kThreads), stream, op, from, sources, to, results,
             count_elems);
    }
  });
}

}  // namespace droptest::comm
