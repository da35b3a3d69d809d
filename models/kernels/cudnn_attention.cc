// SPDX-License-Identifier: Apache-2.0
// The one source that includes cuDNN's frontend, which takes the compiler half a minute.
#include "models/kernels/cudnn_attention.h"

#include <cudnn_frontend.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <utility>
#include <vector>

#include "comm/device/device_libraries.h"
#include "comm/device/shared_library.h"
#include "sim/error.h"

namespace cudnn_frontend {
// The frontend looks up cuDNN's functions in this handle.
void* cudnn_dlhandle = nullptr;
}  // namespace cudnn_frontend

namespace droptest::models {
namespace {

namespace fe = cudnn_frontend;
using Attributes = std::shared_ptr<fe::graph::Tensor_attributes>;

// Since this version, cuDNN clears its own sums of the backward pass, and supports lengths that are no multiple of a
// tile.
constexpr std::size_t kOldestVersion = 90600;

std::string dotted(std::size_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

CudnnLibrary open_library() {
  std::optional<comm::SharedLibrary> opened;
  try {
    opened.emplace(comm::cudnn_names(), "attention by cuDNN");
  } catch (const DeviceError& error) {
    return {.absence = error.what()};
  }
  // This environment variable of the frontend would choose another backward algorithm, with other bits.
  if (std::getenv("CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT") != nullptr) {
    return {.absence = "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT is set, which changes cuDNN's results"};
  }
  // The frontend asks for the CUDA runtime by its short name, which finds this one once it is open.
  if (std::getenv("CUDNN_FRONTEND_CUDART_LIB_NAME") == nullptr) {
    constexpr std::array kRuntimes = {DROPTEST_CUDA_RUNTIME, "libcudart.so.13", "libcudart.so.12"};
    const bool is_open = std::any_of(kRuntimes.begin(), kRuntimes.end(),
                                     [](const char* name) { return ::dlopen(name, RTLD_NOW | RTLD_LOCAL) != nullptr; });
    if (!is_open) {
      return {.absence = std::string("no CUDA runtime for cuDNN's frontend: neither ") + DROPTEST_CUDA_RUNTIME +
                         " nor libcudart.so.13 or libcudart.so.12 can be opened"};
    }
  }
  fe::cudnn_dlhandle = opened->handle();
  const std::size_t version = fe::detail::get_backend_version();
  CudnnLibrary library{opened->path(), dotted(version), ""};
  if (version < kOldestVersion) {
    library.absence = "cuDNN " + library.version + " (" + library.path + ") is older than " + dotted(kOldestVersion);
  }
  return library;
}

std::string named(const CudnnLibrary& library) { return "cuDNN " + library.version + " (" + library.path + ")"; }

/// Calls `body`. Exceptions of the frontend become Errors with its message; those of droptest stay.
template <class Error, class Body>
auto in_words(const std::string& before, const Body& body) {
  try {
    return body();
  } catch (const ConfigError&) {
    throw;
  } catch (const DeviceError&) {
    throw;
  } catch (const std::runtime_error& error) {
    throw Error(before + ": " + error.what());
  }
}

/// The frontend's description of a tensor of the graph; `uid` identifies it when the graph runs.
fe::graph::Tensor_attributes described(const AttentionGraphTensor& tensor, std::int64_t uid) {
  const fe::DataType_t type = tensor.type == comm::ElementType::kBfloat16  ? fe::DataType_t::BFLOAT16
                              : tensor.type == comm::ElementType::kFloat16 ? fe::DataType_t::HALF
                                                                           : fe::DataType_t::FLOAT;
  return fe::graph::Tensor_attributes()
      .set_uid(uid)
      .set_dim({tensor.dims.begin(), tensor.dims.end()})
      .set_stride({tensor.strides.begin(), tensor.strides.end()})
      .set_data_type(type);
}

/// The frontend's description of a pass.
class CudnnGraph {
 public:
  /// `compute_capability`: if absent, that of the current device.
  explicit CudnnGraph(const AttentionGraph& graph, std::optional<int> compute_capability = std::nullopt) {
    if (compute_capability) {  // first, because the parts of the graph inherit it
      graph_.set_sm_version(*compute_capability);
      graph_.set_sm_count(1);
    }
    const bool bf16 = graph.queries.type == comm::ElementType::kBfloat16;
    graph_.set_io_data_type(bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::HALF)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (graph.pass == AttentionPass::kForward) {
      add_forward(graph);
    } else {
      add_backward(graph);
    }
  }

  fe::graph::Graph& graph() { return graph_; }
  /// The addresses of the tensors, by uid.
  const std::vector<AttentionGraphTensor>& tensors() const { return tensors_; }

 private:
  Attributes input(const AttentionGraphTensor& tensor) { return graph_.tensor(described(tensor, next_uid(tensor))); }
  void output(const Attributes& of, const AttentionGraphTensor& tensor) {
    *of = described(tensor, next_uid(tensor)).set_name(of->get_name()).set_output(true);
  }
  std::int64_t next_uid(const AttentionGraphTensor& tensor) {
    tensors_.push_back(tensor);
    return static_cast<std::int64_t>(tensors_.size()) - 1;
  }

  void add_forward(const AttentionGraph& g) {
    const auto attributes = fe::graph::SDPA_attributes()
                                .set_name("attention")
                                .set_generate_stats(true)
                                .set_attn_scale(static_cast<float>(g.scale))
                                .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                                .set_diagonal_band_right_bound(static_cast<int>(g.band_right));
    const Attributes q = input(g.queries);
    const Attributes k = input(g.keys);
    const Attributes v = input(g.values);
    const std::array<Attributes, 2> results = graph_.sdpa(q, k, v, attributes);
    output(results[0], g.output);
    output(results[1], g.log_sum_exp);
  }
  void add_backward(const AttentionGraph& g) {
    const auto attributes = fe::graph::SDPA_backward_attributes()
                                .set_name("gradient of attention")
                                .set_attn_scale(static_cast<float>(g.scale))
                                .set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT)
                                .set_diagonal_band_right_bound(static_cast<int>(g.band_right))
                                .set_deterministic_algorithm(g.deterministic);
    const Attributes q = input(g.queries);
    const Attributes k = input(g.keys);
    const Attributes v = input(g.values);
    const Attributes o = input(g.output);
    const Attributes grad_o = input(g.grad_output);
    const Attributes statistics = input(g.log_sum_exp);
    const std::array<Attributes, 3> results = graph_.sdpa_backward(q, k, v, o, grad_o, statistics, attributes);
    output(results[0], g.grad_queries);
    output(results[1], g.grad_keys);
    output(results[2], g.grad_values);
  }

  fe::graph::Graph graph_;
  std::vector<AttentionGraphTensor> tensors_;
};

class CudnnPlan final : public AttentionPlan {
 public:
  CudnnPlan(cudnnHandle_t handle, const AttentionGraph& graph) : handle_(handle), graph_(graph) {
    const std::string refused = named(cudnn_library()) + " refuses attention of B " +
                                std::to_string(graph.queries.dims[0]) + ", T " + std::to_string(graph.queries.dims[2]) +
                                ", NH " + std::to_string(graph.queries.dims[1]) + ", D " +
                                std::to_string(graph.queries.dims[3]);
    const auto check = [&refused](fe::error_t status) {
      if (status.is_bad()) throw ConfigError(refused + ": " + status.get_message());
    };
    in_words<ConfigError>(refused, [&] {
      fe::graph::Graph& built = graph_.graph();
      check(built.validate());
      check(built.build_operation_graph(handle_));
      check(built.create_execution_plans({fe::HeurMode_t::A}));
      check(built.check_support(handle_));
      check(built.build_plans(handle_, fe::BuildPlanPolicy_t::HEURISTICS_CHOICE));
      std::int64_t bytes = 0;
      check(built.get_workspace_size(bytes));
      workspace_bytes_ = static_cast<std::uint64_t>(bytes);
    });
  }

  std::uint64_t workspace_bytes() const override { return workspace_bytes_; }

  void run(const AttentionArrays& arrays, std::int64_t first_sequence, std::byte* workspace,
           comm::Stream& stream) override {
    std::unordered_map<std::int64_t, void*> pointers;
    const std::vector<AttentionGraphTensor>& tensors = graph_.tensors();
    for (std::size_t uid = 0; uid < tensors.size(); ++uid) {
      pointers[static_cast<std::int64_t>(uid)] = const_cast<std::byte*>(tensors[uid].address(arrays, first_sequence));
    }
    in_words<DeviceError>(named(cudnn_library()) + ", attention", [&] {
      const cudnnStatus_t on_stream = fe::detail::set_stream(handle_, stream.handle());
      if (on_stream != CUDNN_STATUS_SUCCESS) {
        throw DeviceError("cudnnSetStream: " + std::string(fe::detail::get_error_string(on_stream)));
      }
      fe::error_t status = graph_.graph().execute(handle_, pointers, workspace);
      if (status.is_bad()) throw DeviceError(named(cudnn_library()) + ", attention: " + status.get_message());
    });
  }

 private:
  cudnnHandle_t handle_;
  CudnnGraph graph_;
  std::uint64_t workspace_bytes_ = 0;
};

class CudnnPlanner final : public AttentionPlanner {
 public:
  CudnnPlanner() {
    const CudnnLibrary library = cudnn_library();
    if (!library.absence.empty()) throw ConfigError(library.absence);
    const cudnnStatus_t status =
        in_words<ConfigError>(named(library), [this] { return fe::detail::create_handle(&handle_); });
    if (status == CUDNN_STATUS_SUCCESS) return;
    throw ConfigError(named(library) + " cannot use the device: cudnnCreate: " + fe::detail::get_error_string(status));
  }
  ~CudnnPlanner() override {
    try {
      (void)fe::detail::destroy_handle(handle_);
    } catch (const std::exception&) {
      // If the call fails, there is nothing to free.
    }
  }
  CudnnPlanner(const CudnnPlanner&) = delete;
  CudnnPlanner& operator=(const CudnnPlanner&) = delete;

  std::unique_ptr<AttentionPlan> plan(const AttentionGraph& graph) override {
    return std::make_unique<CudnnPlan>(handle_, graph);
  }

 private:
  cudnnHandle_t handle_ = nullptr;
};

}  // namespace

CudnnLibrary cudnn_library() {
  static const CudnnLibrary library = open_library();
  return library;
}

std::string cudnn_objection(const AttentionGraph& graph, int compute_capability) {
  if (const CudnnLibrary library = cudnn_library(); !library.absence.empty()) throw ConfigError(library.absence);
  CudnnGraph described(graph, compute_capability);
  return in_words<ConfigError>("cuDNN's frontend", [&] { return described.graph().validate().get_message(); });
}

std::unique_ptr<AttentionPlanner> make_cudnn_planner() { return std::make_unique<CudnnPlanner>(); }

}  // namespace droptest::models
