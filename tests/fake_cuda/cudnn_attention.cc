// SPDX-License-Identifier: Apache-2.0
// Attention by cuDNN on the fake device: in place of models/kernels/cudnn_attention.cc, passes are computed on the host
// as their graphs say.
#include "models/kernels/cudnn_attention.h"

#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "sim/error.h"
#include "tests/fake_cuda/fake_cudnn.h"
#include "tests/fake_cuda/kernel_queue.h"
#include "tests/models/attention_graph_interpreter.h"

namespace droptest::fake_cuda {
namespace {

std::mutex& mutex() {
  static std::mutex own;
  return own;
}
CudnnSettings& current() {
  static CudnnSettings own;
  return own;
}

std::vector<std::array<std::int64_t, 4>>& planned() {
  static std::vector<std::array<std::int64_t, 4>> own;
  return own;
}

}  // namespace

void configure(const CudnnSettings& settings) {
  const std::lock_guard lock(mutex());
  current() = settings;
  planned().clear();
}
std::vector<std::array<std::int64_t, 4>> planned_queries() {
  const std::lock_guard lock(mutex());
  return planned();
}
/// Empty: it takes the graph.
std::string refusal_of(const models::AttentionGraph& graph) {
  const std::lock_guard lock(mutex());
  CudnnSettings& settings = current();
  const bool concerns = settings.refused_heads == 0 || settings.refused_heads == graph.queries.dims[1];
  if (concerns && !settings.refusal.empty() && settings.refused_graphs-- > 0) return settings.refusal;
  planned().push_back(graph.queries.dims);
  return "";
}
CudnnSettings cudnn_settings() {
  const std::lock_guard lock(mutex());
  return current();
}

}  // namespace droptest::fake_cuda

namespace droptest::models {
namespace {

class InterpretedPlan final : public AttentionPlan {
 public:
  explicit InterpretedPlan(const AttentionGraph& graph)
      : graph_(graph),
        workspace_bytes_(fake_cuda::cudnn_settings().workspace_bytes_of_sequence *
                         static_cast<std::uint64_t>(graph.queries.dims[0])) {}

  std::uint64_t workspace_bytes() const override { return workspace_bytes_; }
  void run(const AttentionArrays& arrays, std::int64_t first_sequence, std::byte* workspace,
           comm::Stream& stream) override {
    // One of the threads, which run one after another, computes the pass.
    const auto pass = [graph = graph_, arrays, first_sequence, workspace, bytes = workspace_bytes_,
                       is_first = std::make_shared<bool>(true)] {
      if (!std::exchange(*is_first, false)) return;
      std::memset(workspace, 0xFF, bytes);  // what lies there would be seen
      interpret_attention(graph, arrays, first_sequence);
    };
    constexpr unsigned kThreads = 32;
    const char* const name = graph_.pass == AttentionPass::kForward ? "cudnn_forward" : "cudnn_backward";
    const cudaError_t error = fake_cuda::queue_kernel(name, 1, kThreads, 0, stream.handle(), pass);
    if (error != cudaSuccess) throw DeviceError(std::string(name) + ": " + cudaGetErrorString(error));
  }

 private:
  AttentionGraph graph_;
  std::uint64_t workspace_bytes_;
};

class Interpreter final : public AttentionPlanner {
 public:
  std::unique_ptr<AttentionPlan> plan(const AttentionGraph& graph) override {
    if (const std::string refusal = fake_cuda::refusal_of(graph); !refusal.empty()) throw ConfigError(refusal);
    return std::make_unique<InterpretedPlan>(graph);
  }
};

}  // namespace

CudnnLibrary cudnn_library() {
  const std::string absence = fake_cuda::cudnn_settings().absence;
  return absence.empty() ? CudnnLibrary{"fake cuDNN", "9.99.0", ""} : CudnnLibrary{"", "", absence};
}

std::string cudnn_objection(const AttentionGraph& graph, int /*compute_capability*/) {
  return fake_cuda::refusal_of(graph);
}

std::unique_ptr<AttentionPlanner> make_cudnn_planner() {
  if (const CudnnLibrary library = cudnn_library(); !library.absence.empty()) throw ConfigError(library.absence);
  return std::make_unique<Interpreter>();
}

}  // namespace droptest::models
