// SPDX-License-Identifier: Apache-2.0
#include "models/ops/kernel_registry.h"

#include <algorithm>
#include <utility>

#include "models/kernels/attention_graph.h"
#include "models/kernels/attention_kernel.h"
#include "models/kernels/matmul_kernel.h"
#include "models/ops/kernel_library.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

using enum KernelDevice;
using enum comm::ElementType;

const KernelEntry* find(std::string_view operation, std::string_view name, KernelDevice device) {
  const std::vector<KernelEntry>& entries = kernel_entries();
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const KernelEntry& entry) {
    return entry.operation == operation && entry.device == device && (name.empty() || entry.name == name);
  });
  return found == entries.end() ? nullptr : &*found;
}

std::string in_words(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all;
}

const KernelEntry& chosen(const KernelChoices& choices, std::string_view operation, KernelDevice device) {
  const auto choice = choices.find(operation);
  const std::string name = choice == choices.end() ? "" : choice->second.name;
  if (const KernelEntry* entry = find(operation, name, device)) return *entry;
  throw ConfigError("/kernels/" + std::string(operation) + ": got \"" + name + "\", want one of " +
                    in_words(kernel_names(operation, device)));
}

const std::string& library_of(const KernelChoices& choices, std::string_view operation) {
  static const std::string kNone;
  const auto choice = choices.find(operation);
  return choice == choices.end() ? kNone : choice->second.library;
}

std::shared_ptr<const KernelLibrary> library_for(std::string_view operation, const std::string& path) {
  return std::make_shared<KernelLibrary>(path, "/kernels/" + std::string(operation) + "/library");
}

/// The kernel of an entry that has a function of type `Make`.
template <class Kernel>
std::unique_ptr<Kernel> made(const KernelEntry& entry) {
  return std::get<std::unique_ptr<Kernel> (*)()>(entry.make)();
}

}  // namespace

const std::vector<KernelEntry>& kernel_entries() {
  static const std::vector<KernelEntry> kEntries = {
      {"attention",
       "flash",
       kHost,
       {kFloat32, kFloat64},
       "strips of 64 queries, softmax over whole rows of a strip, probabilities computed again in the backward pass",
       make_flash_attention},
      {"attention",
       "reference",
       kHost,
       {kFloat32, kFloat64},
       "the formula in its order, sums in double, probabilities of all pairs of tokens in memory",
       make_reference_attention},
      {"attention",
       "flash",
       kCuda,
       {kFloat32, kBfloat16, kFloat16},
       "online softmax over tiles of keys, tensor cores for bfloat16 with 64 or 128 columns a head and no dropout",
       make_cuda_flash_attention},
      {"attention",
       "cudnn",
       kCuda,
       {kBfloat16, kFloat16},
       "cuDNN's; the default in place of flash for heads of up to 128 columns, a multiple of 8, without dropout",
       make_cudnn_attention,
       attention_graph_takes},
      {"attention",
       "plain",
       kCuda,
       {kFloat32, kBfloat16, kFloat16},
       "online softmax over tiles of keys, float arithmetic without tensor cores",
       make_cuda_plain_attention},
      {"matmul",
       "onednn",
       kHost,
       {kFloat32, kFloat64, kBfloat16, kFloat16},
       "oneDNN, float64 by Eigen; bfloat16 by the processor's instructions if it has them",
       make_onednn_matmul},
      {"matmul",
       "eigen",
       kHost,
       {kFloat32, kFloat64, kBfloat16, kFloat16},
       "Eigen; operands of 16 bits as floats",
       make_eigen_matmul},
      {"matmul",
       "reference",
       kHost,
       {kFloat32, kFloat64, kBfloat16, kFloat16},
       "the formula in its order, sums in double; operands of 16 bits as floats",
       make_reference_matmul},
      {"matmul",
       "cublaslt",
       kCuda,
       {kFloat32, kBfloat16, kFloat16},
       "cuBLASLt with biases and GELU in the GEMM if it can",
       {}},
      {"matmul",
       "cublaslt_unfused",
       kCuda,
       {kFloat32, kBfloat16, kFloat16},
       "cuBLASLt with biases and GELU in kernels of their own",
       {}},
      {"cross_entropy",
       "fused",
       kCuda,
       {kFloat32, kBfloat16, kFloat16},
       "one pass over the logits on a rank with the whole vocabulary",
       {}},
      {"cross_entropy",
       "pieces",
       kCuda,
       {kFloat32, kBfloat16, kFloat16},
       "maxima, sums and gradients one after another, as on ranks that share the vocabulary",
       {}},
  };
  return kEntries;
}

std::vector<std::string> kernel_names(std::string_view operation, KernelDevice device) {
  std::vector<std::string> names;
  for (const KernelEntry& entry : kernel_entries()) {
    if (entry.operation == operation && entry.device == device) names.emplace_back(entry.name);
  }
  return names;
}

bool takes_library(std::string_view operation, KernelDevice device) {
  return device == kHost && (operation == "attention" || operation == "matmul");
}

void check_kernels(const KernelChoices& choices, KernelDevice device) {
  for (const auto& [operation, choice] : choices) {
    const std::string pointer = "/kernels/" + operation;
    const std::string on_device = device == kHost ? "device \"cpu\"" : "device \"cuda\"";
    if (kernel_names(operation, device).empty()) {
      throw ConfigError(pointer + ": got a kernel, want none with " + on_device + ", where " + operation +
                        " has one implementation");
    }
    if (choice.library.empty()) {
      (void)chosen(choices, operation, device);
    } else if (!takes_library(operation, device)) {
      throw ConfigError(pointer + "/library: got \"" + choice.library + "\" with " + on_device + ", want one of " +
                        in_words(kernel_names(operation, device)));
    }
  }
}

std::string_view kernel_name(const KernelChoices& choices, std::string_view operation, KernelDevice device) {
  return chosen(choices, operation, device).name;
}

std::unique_ptr<AttentionKernel> make_attention(const KernelChoices& choices, KernelDevice device) {
  const std::string& path = library_of(choices, "attention");
  if (!path.empty()) return attention_of(library_for("attention", path));
  return made<AttentionKernel>(chosen(choices, "attention", device));
}

std::unique_ptr<MatmulKernel> make_matmul(const KernelChoices& choices) {
  const std::string& path = library_of(choices, "matmul");
  if (!path.empty()) return matmul_of(library_for("matmul", path));
  return made<MatmulKernel>(chosen(choices, "matmul", kHost));
}

std::string check_library(std::string_view operation, const std::string& path) {
  const std::shared_ptr<const KernelLibrary> library = library_for(operation, path);
  if (operation == "attention") {
    (void)attention_of(library);
  } else {
    (void)matmul_of(library);
  }
  return library->name() + " " + library->version();
}

}  // namespace droptest::models
