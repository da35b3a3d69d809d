// SPDX-License-Identifier: Apache-2.0
// Compiled without contraction into fused multiply-adds, so that float results have the host's bits.
#include <array>
#include <cstring>
#include <type_traits>

#include "comm/device/device_buffer.h"
#include "comm/device/kernel_launch.cuh"
#include "comm/device/tensor_elements.cuh"
#include "comm/device/tensor_operations.h"
#include "comm/visit_elements.h"

namespace droptest::comm {
namespace {

constexpr unsigned kThreads = 256;

template <class T, int kElems>
struct alignas(sizeof(T) * kElems) Pack {
  T elems[kElems];
};

struct DeliveredArguments {
  const std::byte* const* inputs;
  std::byte* const* outputs;
  const std::uint64_t* masks;  // words of source 0, of source 1, ...; null: all arrived
  std::uint64_t mask_words;    // of one source
  int sources;
  int results;
  std::uint64_t first_element;
  std::uint64_t elems_per_packet;
  std::uint64_t count_elems;
  double contributions_factor;
  int exempt;
  bool by_count;
};

__device__ bool is_lost(const DeliveredArguments& a, int source, std::uint64_t packet) {
  return a.masks != nullptr && ((a.masks[source * a.mask_words + (packet >> 6)] >> (packet & 63)) & 1U) != 0;
}

// Packs of kElems neighbours, all of one packet. `lowest` is what a maximum leaves out.
template <class T, int kElems>
__global__ void delivered_kernel(ReduceOp op, DeliveredArguments a, WideOf<T> lowest) {
  using W = WideOf<T>;
  using P = Pack<T, kElems>;
  const std::uint64_t packs = a.count_elems / kElems;
  const std::uint64_t stride = static_cast<std::uint64_t>(gridDim.x) * blockDim.x;
  for (std::uint64_t i = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < packs; i += stride) {
    const std::uint64_t packet = a.masks == nullptr ? 0 : (a.first_element + i * kElems) / a.elems_per_packet;
    W sums[kElems];  // what the reduction leaves out, until there is something
    for (W& sum : sums) sum = op == ReduceOp::kSum ? W(0) : lowest;
    int missing = 0;
    for (int s = 0; s < a.sources; ++s) {
      if (is_lost(a, s, packet)) {
        ++missing;
        continue;
      }
      const P x = reinterpret_cast<const P*>(a.inputs[s])[i];
      for (int k = 0; k < kElems; ++k) {
        W value = Wide<T>::of(x.elems[k]);
        if (a.contributions_factor != 1 && s != a.exempt) {
          value = Wide<T>::of(Wide<T>::narrow(value * static_cast<W>(a.contributions_factor)));
        }
        sums[k] = s == 0 ? value : combine(op, sums[k], value);
      }
    }
    P result;
    for (int k = 0; k < kElems; ++k) {
      result.elems[k] = Wide<T>::narrow(sums[k]);
      if (a.by_count && missing > 0) {
        const double factor = static_cast<double>(a.sources) / static_cast<double>(a.sources - missing);
        const W rounded = Wide<T>::of(result.elems[k]);
        result.elems[k] = Wide<T>::narrow(missing == a.sources ? W(0) : rounded * static_cast<W>(factor));
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
      const WideOf<T> value = Wide<T>::of(*last);
      sum = s == 0 ? value : combine(op, sum, value);
    }
    const T result = Wide<T>::narrow(sum);
    for (int r = 0; r < a.results; ++r) reinterpret_cast<T*>(a.outputs[r])[i] = result;
  }
}

// A block for each run.
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
          data[i] = Wide<T>::narrow(Wide<T>::of(data[i]) + Wide<T>::of(from[i]));
          break;
        case RunOperation::kMax:
          data[i] = Wide<T>::narrow(combine(ReduceOp::kMax, Wide<T>::of(data[i]), Wide<T>::of(from[i])));
          break;
        case RunOperation::kScale:
          data[i] = Wide<T>::narrow(Wide<T>::of(data[i]) * static_cast<W>(run.factor));
          break;
      }
    }
  }
}

// Bytes for Stream::stage(), one array after the other.
class StagedArrays {
 public:
  template <class T>
  std::size_t add(std::span<const T> values) {
    const std::size_t offset = (bytes_.size() + alignof(T) - 1) / alignof(T) * alignof(T);
    bytes_.resize(offset + values.size_bytes());
    if (!values.empty()) std::memcpy(bytes_.data() + offset, values.data(), values.size_bytes());
    return offset;
  }
  const std::byte* stage(Stream& stream) const { return static_cast<const std::byte*>(stream.stage(bytes_)); }

 private:
  std::vector<std::byte> bytes_;
};

// The arguments of a reduction without holes or rules; stages pointers and masks.
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
  return a;
}

// Whether packs of so many elements are aligned everywhere and never cross from packet to packet.
bool packs_fit(const DeliveredArguments& a, std::span<const std::byte* const> inputs,
               std::span<std::byte* const> outputs, std::size_t pack_bytes, std::uint64_t pack_elems) {
  const auto aligned = [pack_bytes](const std::byte* p) {
    return reinterpret_cast<std::uintptr_t>(p) % pack_bytes == 0;
  };
  for (const std::byte* p : inputs) {
    if (!aligned(p)) return false;
  }
  for (const std::byte* p : outputs) {
    if (!aligned(p)) return false;
  }
  if (a.count_elems % pack_elems != 0) return false;
  return a.masks == nullptr || (a.elems_per_packet % pack_elems == 0 && a.first_element % pack_elems == 0);
}

constexpr std::size_t kPackBytes = 16;

void launch_delivered(ReduceOp op, ElementType type, const DeliveredArguments& a,
                      std::span<const std::byte* const> inputs, std::span<std::byte* const> outputs, Stream& stream) {
  visit_elements(type, [&]<class T>(std::type_identity<T>) {
    using W = WideOf<T>;
    constexpr int kElems = kPackBytes / sizeof(T);
    if (packs_fit(a, inputs, outputs, kPackBytes, kElems)) {
      launch("reduction", delivered_kernel<T, kElems>, cover(a.count_elems / kElems, kThreads), stream, op, a,
             lowest_value<W>());
    } else {
      launch("reduction", delivered_kernel<T, 1>, cover(a.count_elems, kThreads), stream, op, a, lowest_value<W>());
    }
  });
}

// Pieces that are small enough for a block each.
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
    T lowest{};
    if constexpr (std::is_same_v<T, Bf16>) {
      lowest = to_bf16(lowest_value<float>());
    } else {
      lowest = lowest_value<T>();
    }
    launch("change of runs", runs_kernel<T>, shape, stream, operation, from.as<T>().data(), data.as<T>().data(), staged,
           pieces.size(), lowest);
  });
}

void reduce_on_device(ReduceOp op, ElementType type, std::span<const std::byte* const> inputs,
                      std::span<std::byte* const> outputs, std::uint64_t count_elems, Stream& stream) {
  if (count_elems == 0 || (inputs.size() == 1 && outputs.size() == 1 && inputs[0] == outputs[0])) return;
  const std::size_t size = element_bytes(type);
  const Contributions all{sim::Packetizer(count_elems, size, size * count_elems), {0, count_elems}, {}};
  launch_delivered(op, type, staged_arguments(all, inputs, outputs, stream), inputs, outputs, stream);
}

void reduce_delivered_on_device(ReduceOp op, ElementType type, const Contributions& contributions,
                                const HoleRules& rules, std::span<const std::byte* const> inputs,
                                std::span<std::byte* const> outputs, Stream& stream) {
  if (contributions.part.size() == 0) return;
  DeliveredArguments a = staged_arguments(contributions, inputs, outputs, stream);
  a.contributions_factor = rules.contributions_factor;
  a.exempt = rules.exempt;
  a.by_count = rules.sums == HoleRules::Sums::kByCount;
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
