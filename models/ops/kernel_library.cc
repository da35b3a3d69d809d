// SPDX-License-Identifier: Apache-2.0
#include "models/ops/kernel_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "models/droptest_kernels.h"
#include "models/kernels/attention_head.h"
#include "models/kernels/chunks.h"
#include "models/kernels/host_floats.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

constexpr const char* kSymbol = "droptest_kernels";
constexpr std::uint32_t kNewest = DROPTEST_KERNELS_ABI_VERSION;
constexpr std::size_t kMessageBytes = 256;
constexpr std::size_t kMostTextBytes = 64;
constexpr std::int64_t kMostElems = std::int64_t{1} << 40U;

template <class T>
constexpr std::uint32_t element_flag() {
  return sizeof(T) == sizeof(float) ? DROPTEST_FLOAT32 : DROPTEST_FLOAT64;
}

std::string last_loader_error() {
  const char* const text = ::dlerror();
  return text == nullptr ? "no reason given" : text;
}

/// The first failure of calls on several threads. It is the one with the lowest number, so that messages do not depend
/// on threads.
class FirstFailure {
 public:
  /// Calls call(message), where `message` has room for kMessageBytes. `number` is the number of the call.
  template <class Call>
  void run(std::int64_t number, const Call& call) {
    std::array<char, kMessageBytes> message{};
    const int code = call(message.data());
    if (code == 0) return;
    message.back() = '\0';
    const std::string_view text = message.data();
    const std::lock_guard lock(mutex_);
    if (number_ && *number_ <= number) return;
    number_ = number;
    text_ = "returned " + std::to_string(code) + ": " + (text.empty() ? "no message" : std::string(text));
  }
  void throw_for(const KernelLibrary& library, const std::string& function) const {
    if (number_) throw ConfigError(library.error_text(function + "() " + text_ + "; want 0"));
  }

 private:
  std::mutex mutex_;
  std::optional<std::int64_t> number_;
  std::string text_;
};

template <class T>
void require_type(const KernelLibrary& library, const std::string& table, std::uint32_t got) {
  if ((got & element_flag<T>()) != 0) return;
  throw ConfigError(library.error_text(table + "->element_types: got " + std::to_string(got) + ", want one with " +
                                       std::to_string(element_flag<T>()) + ", the flag of float" +
                                       std::to_string(8 * sizeof(T))));
}

void require_size(const KernelLibrary& library, const std::string& what, std::uint32_t got, std::size_t want) {
  if (got >= want) return;
  throw ConfigError(library.error_text(what + "->struct_size: got " + std::to_string(got) + ", want at least " +
                                       std::to_string(want) + ", as in version 1 of droptest_kernels.h"));
}

template <class Pointer>
void require_pointer(const KernelLibrary& library, const std::string& what, Pointer pointer) {
  if (pointer == nullptr) throw ConfigError(library.error_text(what + ": got null, want it set"));
}

/// Requires a text for records: 1 to kMostTextBytes printable characters.
void require_text(const KernelLibrary& library, const std::string& what, const char* text) {
  require_pointer(library, what, text);
  const std::string_view got(text, ::strnlen(text, kMostTextBytes + 1));
  const bool printable = std::all_of(got.begin(), got.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (printable && !got.empty() && got.size() <= kMostTextBytes) return;
  throw ConfigError(library.error_text(what + ": got a text of " + std::to_string(got.size()) + " bytes, want 1 to " +
                                       std::to_string(kMostTextBytes) + " printable ASCII characters"));
}

class LibraryAttention final : public AttentionKernel {
 public:
  explicit LibraryAttention(std::shared_ptr<const KernelLibrary> library)
      : library_(std::move(library)), table_(*library_->tables().attention) {}

  std::uint64_t statistics_elems(const AttentionShape& shape) const override {
    return static_cast<std::uint64_t>(shape.batch * shape.heads * statistics_of_head(shape));
  }
  std::uint64_t forward_scratch_elems(const AttentionShape& shape, int threads) const override {
    return static_cast<std::uint64_t>(threads * forward_scratch(shape));
  }
  std::uint64_t backward_scratch_elems(const AttentionShape& shape, int threads) const override {
    return static_cast<std::uint64_t>(threads * backward_scratch(shape));
  }

  void forward(const AttentionForwardTensors& t, const AttentionShape& shape,
               const KernelTarget& target) const override {
    visit_host_floats(t.qkv.type, [&](auto type) {
      using T = typename decltype(type)::type;
      const std::int64_t statistics = statistics_of_head(shape);
      const std::int64_t scratch = forward_scratch(shape);
      for_heads<T>("attention->forward", t.qkv, shape, target, [&](const Head<T>& head, char* message) {
        droptest_attention_forward call{};
        call.struct_size = sizeof(call);
        call.shape = &head.shape;
        call.queries = head.place.q;
        call.keys = head.place.k;
        call.values = head.place.v;
        call.output = t.output.as<T>().data() + head.place.output_offset;
        call.statistics = t.statistics.as<T>().data() + head.index * statistics;
        call.scratch = t.scratch.as<T>().data() + head.worker * scratch;
        return table_.forward(&call, message, kMessageBytes);
      });
    });
  }
  void backward(const AttentionBackwardTensors& t, const AttentionShape& shape,
                const KernelTarget& target) const override {
    visit_host_floats(t.qkv.type, [&](auto type) {
      using T = typename decltype(type)::type;
      const std::int64_t statistics = statistics_of_head(shape);
      const std::int64_t scratch = backward_scratch(shape);
      const std::int64_t part = shape.heads * shape.head_width;
      for_heads<T>("attention->backward", t.qkv, shape, target, [&](const Head<T>& head, char* message) {
        T* const grad_queries = t.grad_qkv.as<T>().data() + head.place.qkv_offset;
        droptest_attention_backward call{};
        call.struct_size = sizeof(call);
        call.shape = &head.shape;
        call.queries = head.place.q;
        call.keys = head.place.k;
        call.values = head.place.v;
        call.output = t.output.as<T>().data() + head.place.output_offset;
        call.statistics = t.statistics.as<T>().data() + head.index * statistics;
        call.grad_output = t.grad_output.as<T>().data() + head.place.output_offset;
        call.grad_queries = grad_queries;
        call.grad_keys = grad_queries + part;
        call.grad_values = grad_queries + 2 * part;
        call.scratch = t.scratch.as<T>().data() + head.worker * scratch;
        return table_.backward(&call, message, kMessageBytes);
      });
    });
  }

 private:
  using Elems = std::int64_t (*)(const droptest_attention_shape*);
  template <class T>
  struct Head {
    AttentionHead<T> place;
    droptest_attention_shape shape;
    std::int64_t index;
    Team::Worker worker;
  };

  std::int64_t statistics_of_head(const AttentionShape& shape) const {
    return elems(shape, "statistics_elems", table_.statistics_elems);
  }
  std::int64_t forward_scratch(const AttentionShape& shape) const {
    return elems(shape, "forward_scratch_elems", table_.forward_scratch_elems);
  }
  std::int64_t backward_scratch(const AttentionShape& shape) const {
    return elems(shape, "backward_scratch_elems", table_.backward_scratch_elems);
  }
  /// The maximum over the element types of the object, because memory plans count elements.
  std::int64_t elems(const AttentionShape& shape, const char* function, Elems call) const {
    std::int64_t most = 0;
    for (const std::uint32_t type : {DROPTEST_FLOAT32, DROPTEST_FLOAT64}) {
      if (shape.length == 0 || (table_.element_types & type) == 0) continue;
      const droptest_attention_shape of_head = shape_of(shape, type);
      const std::int64_t got = call(&of_head);
      if (got < 0 || got > kMostElems) {
        throw ConfigError(library_->error_text(
            "attention->" + std::string(function) + "() of " + std::to_string(shape.length) + " tokens and " +
            std::to_string(shape.head_width) + " columns returned " + std::to_string(got) + "; want 0 to 2^40"));
      }
      most = std::max(most, got);
    }
    return most;
  }
  static droptest_attention_shape shape_of(const AttentionShape& shape, std::uint32_t element_type) {
    droptest_attention_shape of_head{};
    of_head.struct_size = sizeof(of_head);
    of_head.element_type = element_type;
    of_head.mask = DROPTEST_MASK_CAUSAL;
    of_head.length = shape.length;
    of_head.width = shape.head_width;
    of_head.scale = score_scale(shape.head_width);
    return of_head;
  }

  /// Calls call(head, message) for each head of each sequence.
  template <class T, class Call>
  void for_heads(const char* function, const comm::ConstTensor& qkv, const AttentionShape& shape,
                 const KernelTarget& target, const Call& call) const {
    require_type<T>(*library_, "attention", table_.element_types);
    if (shape.length == 0) return;
    FirstFailure failure;
    const SingleThreadedLibraries single_threaded;
    for_chunks_by_worker(
        shape.batch * shape.heads, 1, *target.team, [&](Team::Worker worker, std::int64_t index, std::int64_t) {
          Head<T> head{attention_head(qkv.as<T>(), shape, index), shape_of(shape, element_flag<T>()), index, worker};
          head.shape.qkv_stride = head.place.qkv_stride;
          head.shape.output_stride = head.place.output_stride;
          failure.run(index, [&](char* message) { return call(head, message); });
        });
    failure.throw_for(*library_, function);
  }

  std::shared_ptr<const KernelLibrary> library_;  ///< shared by the kernels of the object
  const droptest_attention_kernel& table_;
};

class LibraryMatmul final : public MatmulKernel {
 public:
  explicit LibraryMatmul(std::shared_ptr<const KernelLibrary> library)
      : library_(std::move(library)), table_(*library_->tables().matmul) {}

  void multiply(const Product<float>& product, const Team& team) const override { multiply_as(product, team); }
  void multiply(const Product<double>& product, const Team& team) const override { multiply_as(product, team); }

 private:
  template <class T>
  void multiply_as(const Product<T>& product, const Team& team) const {
    require_type<T>(*library_, "matmul", table_.element_types);
    FirstFailure failure;
    for_parts_of_product(product, team, [&](const Product<T>& part) {
      droptest_matmul call{};
      call.struct_size = sizeof(call);
      call.element_type = element_flag<T>();
      call.transpose_a = part.transpose_a == Transpose::kYes ? 1 : 0;
      call.transpose_b = part.transpose_b == Transpose::kYes ? 1 : 0;
      call.rows = part.result.rows;
      call.columns = part.result.columns;
      call.inner = part.inner();
      call.a_stride = part.a.stride;
      call.b_stride = part.b.stride;
      call.result_stride = part.result.stride;
      call.alpha = static_cast<double>(part.alpha);
      call.beta = static_cast<double>(part.beta);
      call.a = part.a.data;
      call.b = part.b.data;
      call.result = part.result.data;
      failure.run(part.result.data - product.result.data,
                  [&](char* message) { return table_.multiply(&call, message, kMessageBytes); });
    });
    failure.throw_for(*library_, "matmul->multiply");
  }

  std::shared_ptr<const KernelLibrary> library_;  ///< shared by the kernels of the object
  const droptest_matmul_kernel& table_;
};

}  // namespace

KernelLibrary::KernelLibrary(const std::string& path, std::string pointer) : path_(path), pointer_(std::move(pointer)) {
  // The path has a slash, so that the loader takes this file and searches no folders. The object is never unloaded,
  // because it may have threads.
  handle_ = ::dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle_ == nullptr) {
    throw ConfigError(error_text("the system does not load it: " + last_loader_error() + "; want a shared object"));
  }
  try {
    check_tables();
  } catch (...) {
    ::dlclose(handle_);
    throw;
  }
}

KernelLibrary::~KernelLibrary() { ::dlclose(handle_); }

void KernelLibrary::check_tables() {
  const auto get = reinterpret_cast<decltype(&droptest_kernels)>(::dlsym(handle_, kSymbol));
  if (get == nullptr) {
    throw ConfigError(
        error_text(std::string("has no function ") + kSymbol + "(); want it, as droptest_kernels.h declares it"));
  }
  tables_ = get(kNewest);
  const std::string versions = "; want version " + std::to_string(kNewest) + " of the interface";
  if (tables_ == nullptr) {
    throw ConfigError(error_text(std::string(kSymbol) + "(" + std::to_string(kNewest) + ") returned null" + versions));
  }
  if (tables_->abi_version < 1 || tables_->abi_version > kNewest) {
    throw ConfigError(error_text("got version " + std::to_string(tables_->abi_version) + versions));
  }
  require_size(*this, kSymbol, tables_->struct_size,
               offsetof(droptest_kernel_library, matmul) + sizeof(droptest_kernel_library::matmul));
  require_text(*this, "name", tables_->name);
  require_text(*this, "version", tables_->version);
  name_ = tables_->name;
  version_ = tables_->version;
}

std::string KernelLibrary::error_text(const std::string& message) const {
  return pointer_ + ": \"" + path_ + "\"" + (version_.empty() ? "" : " (" + name_ + " " + version_ + ")") + ": " +
         message;
}

std::unique_ptr<AttentionKernel> attention_of(std::shared_ptr<const KernelLibrary> library) {
  const droptest_attention_kernel* const table = library->tables().attention;
  require_pointer(*library, "attention", table);
  require_size(*library, "attention", table->struct_size,
               offsetof(droptest_attention_kernel, backward) + sizeof(droptest_attention_kernel::backward));
  require_type<float>(*library, "attention", table->element_types);
  if ((table->masks & DROPTEST_MASK_CAUSAL) == 0) {
    throw ConfigError(library->error_text("attention->masks: got " + std::to_string(table->masks) +
                                          ", want one with 1, the flag of the causal mask"));
  }
  require_pointer(*library, "attention->statistics_elems", table->statistics_elems);
  require_pointer(*library, "attention->forward_scratch_elems", table->forward_scratch_elems);
  require_pointer(*library, "attention->backward_scratch_elems", table->backward_scratch_elems);
  require_pointer(*library, "attention->forward", table->forward);
  require_pointer(*library, "attention->backward", table->backward);
  return std::make_unique<LibraryAttention>(std::move(library));
}

std::unique_ptr<MatmulKernel> matmul_of(std::shared_ptr<const KernelLibrary> library) {
  const droptest_matmul_kernel* const table = library->tables().matmul;
  require_pointer(*library, "matmul", table);
  require_size(*library, "matmul", table->struct_size,
               offsetof(droptest_matmul_kernel, multiply) + sizeof(droptest_matmul_kernel::multiply));
  require_type<float>(*library, "matmul", table->element_types);
  require_pointer(*library, "matmul->multiply", table->multiply);
  return std::make_unique<LibraryMatmul>(std::move(library));
}

}  // namespace droptest::models
