// SPDX-License-Identifier: Apache-2.0
// The rate of only oneDNN's GEMMs at the shapes of one GPT-2 training step: the upper limit for train_step. Prints one
// JSON object. The GEMMs inside attention are not included, as in the rule "6 flop per parameter and token". Buffers
// are reused and results are not accumulated, so a real step cannot reach this rate.
#include <dnnl.h>
#include <omp.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <dnnl.hpp>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "benchmarks/fma_probe.h"

namespace droptest::benchmarks {
namespace {

using Clock = std::chrono::steady_clock;
using dnnl::memory;

constexpr int kProbeWindows = 40;
constexpr double kShortestTiming = 1e-3;  ///< seconds; shorter products are repeated until they take that long

enum class Precision : std::uint8_t { kFloat32, kBfloat16 };

struct Options {
  std::int64_t layers = 12;
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t vocabulary = 50257;
  std::int64_t batch = 4;
  std::int64_t length = 64;
  int threads = 2;
  int repetitions = 7;
  Precision precision = Precision::kFloat32;
  bool packed = false;
  bool probe = false;
};

Options parsed(int argc, char** argv) {
  Options o;
  CLI::App app("Rate of oneDNN's matrix products at the shapes of one GPT-2 training step");
  const auto positive = CLI::Range(std::int64_t{1}, std::int64_t{1} << 24);
  app.add_option("--layers", o.layers)->check(positive)->capture_default_str();
  app.add_option("--width", o.width)->check(positive)->capture_default_str();
  app.add_option("--heads", o.heads, "as train_step has it; changes no product")->capture_default_str();
  app.add_option("--vocabulary", o.vocabulary)->check(positive)->capture_default_str();
  app.add_option("--batch", o.batch)->check(positive)->capture_default_str();
  app.add_option("--length", o.length)->check(positive)->capture_default_str();
  app.add_option("--threads", o.threads)->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--repetitions", o.repetitions, "of each product; the median counts")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  app.add_option("--precision", o.precision, "float32, or bfloat16 factors with float32 results")
      ->transform(CLI::CheckedTransformer(std::vector<std::pair<std::string, Precision>>{
          {"float32", Precision::kFloat32}, {"bfloat16", Precision::kBfloat16}}));
  app.add_flag("--packed", o.packed, "Also with weights that the library packed before, and the time of the packing");
  app.add_flag("--probe", o.probe, "Only measure fused multiply-adds, on one thread and on all");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return o;
}

/// result [rows, columns] = a [rows, inner] b [inner, columns]; a transposed operand is stored with its axes swapped.
struct Product {
  std::string name;
  std::string pass;
  std::int64_t rows, columns, inner;
  bool transposed_a, transposed_b;
  std::int64_t times;  ///< number of calls in a step

  double gigaflop() const { return 2e-9 * static_cast<double>(rows * columns) * static_cast<double>(inner); }
};

std::vector<Product> products_of_a_step(const Options& o) {
  const std::int64_t rows = o.batch * o.length;
  std::vector<Product> products;
  // The weights of linear layers, [in, out].
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    products.push_back({name, "forward", rows, out, in, false, false, o.layers});
    products.push_back({name, "grad_input", rows, in, out, false, true, o.layers});
    products.push_back({name, "grad_weight", in, out, rows, true, false, o.layers});
  };
  linear("qkv", o.width, 3 * o.width);
  linear("attention_projection", o.width, o.width);
  linear("fc", o.width, 4 * o.width);
  linear("fc_projection", 4 * o.width, o.width);
  // The token embedding [vocabulary, width] as the LM head.
  products.push_back({"lm_head", "forward", rows, o.vocabulary, o.width, false, true, 1});
  products.push_back({"lm_head", "grad_input", rows, o.width, o.vocabulary, false, false, 1});
  products.push_back({"lm_head", "grad_weight", o.vocabulary, o.width, rows, true, false, 1});
  return products;
}

/// Buffers that are large enough for the operands and the result of every GEMM.
struct Buffers {
  std::vector<float> a, b, result;

  explicit Buffers(const std::vector<Product>& products) {
    std::int64_t most_a = 0;
    std::int64_t most_b = 0;
    std::int64_t most_result = 0;
    for (const Product& p : products) {
      most_a = std::max(most_a, p.rows * p.inner);
      most_b = std::max(most_b, p.inner * p.columns);
      most_result = std::max(most_result, p.rows * p.columns);
    }
    a.resize(static_cast<std::size_t>(most_a));
    b.resize(static_cast<std::size_t>(most_b));
    result.resize(static_cast<std::size_t>(most_result));
    fill(a);
    fill(b);
  }

  // The bits 0x3f81 are 1.0078 as bfloat16; repeated, they are a float32 close to it. So both precisions read ordinary
  // numbers.
  static void fill(std::vector<float>& values) {
    constexpr std::uint32_t kBits = 0x3f813f81U;
    float value = 0;
    std::memcpy(&value, &kBits, sizeof value);
    std::fill(values.begin(), values.end(), value);
  }
};

std::function<void()> sgemm_call(const Product& p, Buffers& buffers) {
  return [&p, &buffers] {
    const dnnl_status_t status =
        dnnl_sgemm(p.transposed_a ? 'T' : 'N', p.transposed_b ? 'T' : 'N', p.rows, p.columns, p.inner, 1.0F,
                   buffers.a.data(), p.transposed_a ? p.rows : p.inner, buffers.b.data(),
                   p.transposed_b ? p.inner : p.columns, 0.0F, buffers.result.data(), p.columns);
    if (status != dnnl_success) throw std::runtime_error("dnnl_sgemm refused " + p.name + " " + p.pass);
  };
}

/// The descriptions of the matrices of a GEMM.
struct Descriptions {
  memory::desc a, b, result;
};

Descriptions descriptions_of(const Product& p, Precision precision) {
  const auto type = precision == Precision::kFloat32 ? memory::data_type::f32 : memory::data_type::bf16;
  const auto layout = [](bool transposed, std::int64_t rows, std::int64_t columns) {
    return transposed ? memory::dims{1, rows} : memory::dims{columns, 1};
  };
  return {memory::desc({p.rows, p.inner}, type, layout(p.transposed_a, p.rows, p.inner)),
          memory::desc({p.inner, p.columns}, type, layout(p.transposed_b, p.inner, p.columns)),
          memory::desc({p.rows, p.columns}, memory::data_type::f32, layout(false, p.rows, p.columns))};
}

std::function<void()> call_of(const dnnl::primitive& primitive, std::unordered_map<int, memory> arguments,
                              const dnnl::engine& engine) {
  return [primitive, arguments = std::move(arguments), stream = dnnl::stream(engine)]() mutable {
    primitive.execute(stream, arguments);
    stream.wait();
  };
}

std::function<void()> matmul_call(const Product& p, Buffers& buffers, Precision precision, const dnnl::engine& engine) {
  const Descriptions d = descriptions_of(p, precision);
  const dnnl::matmul primitive(dnnl::matmul::primitive_desc(dnnl::matmul::desc(d.a, d.b, d.result), engine));
  return call_of(primitive,
                 {{DNNL_ARG_SRC, memory(d.a, engine, buffers.a.data())},
                  {DNNL_ARG_WEIGHTS, memory(d.b, engine, buffers.b.data())},
                  {DNNL_ARG_DST, memory(d.result, engine, buffers.result.data())}},
                 engine);
}

/// A GEMM with its second operand in the layout that the library chooses, and the call that converts the operand.
struct PackedCalls {
  std::function<void()> pack;
  std::function<void()> multiply;
};

PackedCalls packed_calls(const Product& p, Buffers& buffers, Precision precision, const dnnl::engine& engine) {
  const Descriptions d = descriptions_of(p, precision);
  const memory::desc any(d.b.dims(), d.b.data_type(), memory::format_tag::any);
  const dnnl::matmul::primitive_desc chosen(dnnl::matmul::desc(d.a, any, d.result), engine);
  const memory plain(d.b, engine, buffers.b.data());
  const memory packed(chosen.weights_desc(), engine);
  return {call_of(dnnl::reorder(plain, packed), {{DNNL_ARG_FROM, plain}, {DNNL_ARG_TO, packed}}, engine),
          call_of(dnnl::matmul(chosen),
                  {{DNNL_ARG_SRC, memory(d.a, engine, buffers.a.data())},
                   {DNNL_ARG_WEIGHTS, packed},
                   {DNNL_ARG_DST, memory(d.result, engine, buffers.result.data())}},
                  engine)};
}

/// One way to compute a GEMM, and its measured times.
struct Timing {
  std::function<void()> call;
  int calls = 1;  ///< calls in one measurement
  std::vector<double> seconds;

  double measure() const {
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    return std::chrono::duration<double>(Clock::now() - start).count() / calls;
  }

  void warm_up() {
    measure();
    calls = std::max(1, static_cast<int>(std::ceil(kShortestTiming / measure())));
  }

  double median() const {
    std::vector<double> sorted = seconds;
    std::sort(sorted.begin(), sorted.end());
    return sorted[sorted.size() / 2];
  }
};

/// A GEMM and the ways to compute it.
struct Candidate {
  Product product;
  std::optional<Timing> sgemm;  ///< only for float32
  std::optional<Timing> matmul;
  std::optional<Timing> packing;  ///< packing the weight, if there is one
  std::optional<Timing> packed;   ///< the GEMM with the packed weight

  /// All ways that are measured.
  std::vector<Timing*> timings() {
    std::vector<Timing*> measured;
    for (std::optional<Timing>* timing : {&sgemm, &matmul, &packing, &packed}) {
      if (*timing) measured.push_back(&**timing);
    }
    return measured;
  }

  double best() const {
    if (!sgemm) return matmul->median();
    return std::min(sgemm->median(), matmul->median());
  }
};

nlohmann::json total(double gigaflop, double seconds) {
  return {{"seconds", seconds}, {"gigaflop_per_second", gigaflop / seconds}};
}

double peak_mebibytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

std::string onednn_version() {
  const dnnl_version_t& v = *dnnl_version();
  return std::to_string(v.major) + "." + std::to_string(v.minor) + "." + std::to_string(v.patch);
}

nlohmann::json measure(const Options& o) {
  omp_set_num_threads(o.threads);
  const std::vector<Product> products = products_of_a_step(o);
  Buffers buffers(products);
  const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  std::vector<Candidate> candidates;
  for (const Product& product : products) {
    Candidate candidate{product, std::nullopt, std::nullopt, std::nullopt, std::nullopt};
    if (o.precision == Precision::kFloat32) candidate.sgemm.emplace(Timing{sgemm_call(product, buffers), 1, {}});
    candidate.matmul.emplace(Timing{matmul_call(product, buffers, o.precision, engine), 1, {}});
    // The second operand of a weight gradient is the gradient of an activation, which no other GEMM shares.
    if (o.packed && product.pass != "grad_weight") {
      const PackedCalls calls = packed_calls(product, buffers, o.precision, engine);
      candidate.packing.emplace(Timing{calls.pack, 1, {}});
      candidate.packed.emplace(Timing{calls.multiply, 1, {}});
    }
    for (Timing* timing : candidate.timings()) timing->warm_up();
    candidates.push_back(std::move(candidate));
  }
  // All GEMMs run in turn, repeatedly, so that a disturbance of the machine affects few samples of each.
  for (int repetition = 0; repetition < o.repetitions; ++repetition) {
    for (Candidate& c : candidates) {
      for (Timing* timing : c.timings()) timing->seconds.push_back(timing->measure());
    }
  }

  double gigaflop = 0;
  double sgemm_seconds = 0;
  double matmul_seconds = 0;
  double best_seconds = 0;
  double packing_seconds = 0;
  double packed_seconds = 0;
  nlohmann::json list = nlohmann::json::array();
  for (const Candidate& c : candidates) {
    const auto times = static_cast<double>(c.product.times);
    gigaflop += times * c.product.gigaflop();
    if (c.sgemm) sgemm_seconds += times * c.sgemm->median();
    matmul_seconds += times * c.matmul->median();
    best_seconds += times * c.best();
    if (c.packing) packing_seconds += times * c.packing->median();
    packed_seconds += times * (c.packed ? *c.packed : *c.matmul).median();
    nlohmann::json entry = {{"product", c.product.name},
                            {"pass", c.product.pass},
                            {"rows", c.product.rows},
                            {"columns", c.product.columns},
                            {"inner", c.product.inner},
                            {"times", c.product.times},
                            {"matmul_gigaflop_per_second", c.product.gigaflop() / c.matmul->median()}};
    if (c.sgemm) entry["sgemm_gigaflop_per_second"] = c.product.gigaflop() / c.sgemm->median();
    if (c.packed) {
      entry["packed_gigaflop_per_second"] = c.product.gigaflop() / c.packed->median();
      entry["packing_seconds"] = c.packing->median();
    }
    list.push_back(std::move(entry));
  }
  nlohmann::json result = {{"program", "oneDNN " + onednn_version()},
                           {"precision", o.precision == Precision::kFloat32 ? "float32" : "bfloat16"},
                           {"threads", o.threads},
                           {"gigaflop_per_step", gigaflop},
                           {"matmul", total(gigaflop, matmul_seconds)},
                           {"best", total(gigaflop, best_seconds)},
                           {"products", std::move(list)},
                           {"peak_mebibytes", peak_mebibytes()}};
  if (o.precision == Precision::kFloat32) result["sgemm"] = total(gigaflop, sgemm_seconds);
  if (o.packed) {
    result["packed"] = total(gigaflop, packed_seconds);
    result["packed"]["packing_seconds"] = packing_seconds;
  }
  return result;
}

nlohmann::json probe(const Options& o) {
  const auto rates = [](int threads) {
    const FmaRates r = probe_fma(threads, kProbeWindows);
    return nlohmann::json{{"threads", threads},
                          {"gigaflop_per_second", r.median},
                          {"lowest_gigaflop_per_second", r.lowest},
                          {"share_of_dips", r.share_of_dips}};
  };
  return {{"program", "fused multiply-adds"}, {"one", rates(1)}, {"all", rates(o.threads)}};
}

}  // namespace
}  // namespace droptest::benchmarks

int main(int argc, char** argv) {
  using namespace droptest::benchmarks;
  const Options options = parsed(argc, argv);
  try {
    std::cout << (options.probe ? probe(options) : measure(options)).dump() << "\n";
  } catch (const std::exception& error) {
    std::cerr << "matmul_rate: error: " << error.what() << "\n";
    return 1;
  }
}
