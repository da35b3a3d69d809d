// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction into fused multiply-adds, so that float results have the host's bits.
#include <type_traits>
#include <vector>

#include "comm/device/device_buffer.h"
#include "comm/device/kernel_launch.cuh"
#include "comm/device/tensor_elements.cuh"
#include "comm/lossy/fill/device_reductions.h"
#include "comm/visit_elements.h"

namespace droptest::comm {
namespace {

struct DeliveredArguments {
  const std::byte* const* inputs;
  std::byte* const* outputs;
  const std::uint64_t* masks;  // words of source 0, of source 1, ...; null: all arrived
  std::uint64_t mask_words;    // words of one source
  int sources;
  int results;
  std::uint64_t first_element;
  std::uint64_t elems_per_packet;
  std::uint64_t count_elems;
  double contributions_factor;
  int exempt;
  int substitute;
  bool by_count;
};

__device__ bool is_lost(const DeliveredArguments& a, int source, std::uint64_t packet) {
  return a.masks != nullptr && ((a.masks[source * a.mask_words + (packet >> 6)] >> (packet & 63)) & 1U) != 0;
}

// Packs of kElems neighbours, all of one packet. `lowest` is the neutral element of a maximum.
template <class T, int kElems>
__global__ void delivered_kernel(ReduceOp op, DeliveredArguments a, WideOf<T> lowest) {
  using W = WideOf<T>;
  using P = Pack<T, kElems>;
  const std::uint64_t packs = a.count_elems / kElems;
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < packs; i += stride) {
    const std::uint64_t packet = a.masks == nullptr ? 0 : (a.first_element + i * kElems) / a.elems_per_packet;
    W sums[kElems];  // the neutral element until the first contribution
    for (W& sum : sums) sum = op == ReduceOp::kMax ? lowest : W(0);
    int missing = 0;
    for (int s = 0; s < a.sources; ++s) {
      const bool lost = is_lost(a, s, packet);
      missing += lost ? 1 : 0;
      if (lost && a.substitute < 0) continue;
      const P x = reinterpret_cast<const P*>(a.inputs[lost ? a.substitute : s])[i];
      for (int k = 0; k < kElems; ++k) {
        W value = widened(x.elems[k]);
        if (a.contributions_factor != 1 && s != a.exempt) {
          value = widened(narrowed<T>(value * static_cast<W>(a.contributions_factor)));
        }
        sums[k] = s == 0 ? value : combine(op, sums[k], value);
      }
    }
    P result;
    if (a.substitute >= 0 && missing == a.sources - 1) result = reinterpret_cast<const P*>(a.inputs[a.substitute])[i];
    for (int k = 0; k < kElems && (a.substitute < 0 || missing < a.sources - 1); ++k) {
      result.elems[k] = narrowed<T>(completed(op, sums[k], a.sources));
      if (a.by_count && missing > 0) {
        const double factor = static_cast<double>(a.sources) / static_cast<double>(a.sources - missing);
        const W rounded = widened(result.elems[k]);
        result.elems[k] = narrowed<T>(missing == a.sources ? W(0) : rounded * static_cast<W>(factor));
      }
    }
    for (int r = 0; r < a.results; ++r) reinterpret_cast<P*>(a.outputs[r])[i] = result;
  }
}

template <class T>
__global__ void with_last_kernel(ReduceOp op, DeliveredArguments a, T* remembered) {
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < a.count_elems;
       i += stride) {
    const std::uint64_t packet = (a.first_element + i) / a.elems_per_packet;
    WideOf<T> sum{};
    for (int s = 0; s < a.sources; ++s) {
      T* last = remembered + static_cast<std::uint64_t>(s) * a.count_elems + i;
      if (!is_lost(a, s, packet)) *last = reinterpret_cast<const T*>(a.inputs[s])[i];
      const WideOf<T> value = widened(*last);
      sum = s == 0 ? value : combine(op, sum, value);
    }
    const T result = narrowed<T>(completed(op, sum, a.sources));
    for (int r = 0; r < a.results; ++r) reinterpret_cast<T*>(a.outputs[r])[i] = result;
  }
}

// The arguments of a reduction without factors and substitute; stages pointers and masks.
DeliveredArguments staged_arguments(const Contributions& contributions, std::span<const std::byte* const> inputs,
                                    std::span<std::byte* const> outputs, Stream& stream) {
  DROPTEST_CHECK(!inputs.empty(), "no inputs");
  const std::uint64_t mask_words = (contributions.packets.packets() + 63) / 64;
  std::vector<std::uint64_t> masks;
  bool any_lost = false;
  for (const sim::PacketMask* mask : contributions.lost) any_lost |= mask != nullptr;
  if (any_lost) {
    DROPTEST_CHECK(contributions.lost.size() == inputs.size(), "one mask for each contribution");
    for (const sim::PacketMask* mask : contributions.lost) {
      if (mask == nullptr) {
        masks.resize(masks.size() + mask_words);
      } else {
        masks.insert(masks.end(), mask->words().begin(), mask->words().end());
      }
    }
  }
  StagedArrays arrays;
  const std::size_t inputs_at = arrays.add(inputs);
  const std::size_t outputs_at = arrays.add(std::span<std::byte* const>(outputs));
  const std::size_t masks_at = arrays.add(std::span<const std::uint64_t>(masks));
  const std::byte* staged = arrays.stage(stream);
  DeliveredArguments a{};
  a.inputs = reinterpret_cast<const std::byte* const*>(staged + inputs_at);
  a.outputs = reinterpret_cast<std::byte* const*>(const_cast<std::byte*>(staged) + outputs_at);
  a.masks = any_lost ? reinterpret_cast<const std::uint64_t*>(staged + masks_at) : nullptr;
  a.mask_words = mask_words;
  a.sources = static_cast<int>(inputs.size());
  a.results = static_cast<int>(outputs.size());
  a.first_element = contributions.part.begin;
  a.elems_per_packet = contributions.packets.elems_per_packet();
  a.count_elems = contributions.part.size();
  a.contributions_factor = 1;
  a.exempt = -1;
  a.substitute = -1;
  return a;
}

// Whether packs of `pack_elems` elements are aligned everywhere and never cross a packet boundary.
bool packs_fit(const DeliveredArguments& a, std::span<const std::byte* const> inputs,
               std::span<std::byte* const> outputs, std::uint64_t pack_elems) {
  if (!are_aligned(inputs, outputs)) return false;
  if (a.count_elems % pack_elems != 0) return false;
  return a.masks == nullptr || (a.elems_per_packet % pack_elems == 0 && a.first_element % pack_elems == 0);
}

void launch_delivered(ReduceOp op, ElementType type, const DeliveredArguments& a,
                      std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs, Stream& stream) {
  visit_elements(type, [&]<class T>(std::type_identity<T>) {
    using W = WideOf<T>;
    constexpr int kElems = kPackBytes / sizeof(T);
    if (packs_fit(a, inputs, outputs, kElems)) {
      launch("reduction", delivered_kernel<T, kElems>, cover(a.count_elems / kElems, kThreads), stream, op, a,
             lowest_value<W>());
    } else {
      launch("reduction", delivered_kernel<T, 1>, cover(a.count_elems, kThreads), stream, op, a, lowest_value<W>());
    }
  });
}

}  // namespace

void reduce_delivered_on_device(ReduceOp op, ElementType type, const Contributions& contributions,
                                const DeliveredScaling& scaling, std::span<const std::byte* const> inputs,
                                std::span<std::byte* const> outputs, Stream& stream) {
  if (contributions.part.size() == 0) return;
  DeliveredArguments a = staged_arguments(contributions, inputs, outputs, stream);
  a.contributions_factor = scaling.contributions;
  a.exempt = scaling.exempt;
  a.substitute = scaling.substitute;
  a.by_count = scaling.sums == DeliveredScaling::Sums::kByCount;
  launch_delivered(op, type, a, inputs, outputs, stream);
}

void reduce_with_last_on_device(ReduceOp op, const Contributions& contributions, Tensor remembered,
                                std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs) {
  if (contributions.part.size() == 0) return;
  Stream& stream = stream_of(remembered);
  const DeliveredArguments a = staged_arguments(contributions, inputs, outputs, stream);
  visit_elements(remembered.type, [&]<class T>(std::type_identity<T>) {
    launch("reduction with last values", with_last_kernel<T>, cover(a.count_elems, kThreads), stream, op, a,
           remembered.as<T>().data());
  });
}

}  // namespace droptest::comm
