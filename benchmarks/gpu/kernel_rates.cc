// SPDX-License-Identifier: Apache-2.0
#include "benchmarks/gpu/kernel_rates.h"

#include <chrono>
#include <cstddef>
#include <sstream>
#include <utility>

#include "sim/error.h"

namespace droptest {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kWarmUpCalls = 3;
constexpr int kTurns = 5;
constexpr double kSecondsOfOne = 0.05;
constexpr double kSecondsOfATurn = 0.01;
constexpr double kSecondsOfAProposal = 0.02;
constexpr double kWorthARow = 0.98;  // share of the first proposal's time; a row changes the bits of runs

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int calls_within(double seconds, double of_one_call, int least) {
  return std::max(least, static_cast<int>(seconds / of_one_call));
}

/// A row in the form of recorded_choices().
std::string row_of(int compute_capability, const models::ProductKind& kind, const models::AlgorithmConfig& config) {
  std::ostringstream row;
  row << "{" << compute_capability << ", {" << kind.compute << ", " << kind.op_a << ", " << kind.op_b << ", "
      << kind.operands << ", " << kind.result << ", " << kind.m << ", " << kind.n << ", " << kind.k << ", "
      << kind.epilogue << ", " << (kind.adds ? "true" : "false") << "}, {";
  for (std::size_t i = 0; i < config.size(); ++i) row << (i == 0 ? "" : ", ") << config[i];
  row << "}},";
  return row.str();
}

}  // namespace

void KernelRates::record_choices(models::CublasLtProducts& products, models::FloatProducts floats) {
  if (times_ != Times::kOfChoices) return;
  products.visit_new_products([this, &products, floats](const models::CublasLtProduct& product) {
    const auto multiply = [&] { products.multiply("a proposal", product); };
    const auto seconds = [&]() -> std::optional<double> {
      try {
        (void)seconds_of(multiply, kWarmUpCalls);
        return seconds_of(multiply, calls_within(kSecondsOfAProposal, seconds_of(multiply, kWarmUpCalls), 3));
      } catch (const DeviceError&) {  // the library cannot run this proposal
        return std::nullopt;
      }
    };
    // The algorithm that runs use now is measured first.
    const std::optional<double> first = seconds();
    std::optional<double> fastest = first;
    std::optional<models::CublasLtProducts::Proposal> choice;
    const std::vector<models::CublasLtProducts::Proposal> proposals = products.proposals(product);
    for (const auto& proposal : proposals) {
      products.choose(product, proposal);
      const std::optional<double> of_proposal = seconds();
      if (!of_proposal || (fastest && *of_proposal >= *fastest)) continue;
      fastest = of_proposal;
      choice = proposal;
    }
    nlohmann::json record = {{"row", nullptr}, {"proposals", proposals.size()}};
    if (first) record["first_microseconds"] = 1e6 * *first;
    if (fastest) record["fastest_microseconds"] = 1e6 * *fastest;
    const bool is_worth_it = choice && (!first || *fastest < kWorthARow * *first);
    if (is_worth_it) {
      record["row"] = row_of(products.compute_capability(), models::kind_of(product, floats), choice->config);
    }
    choices_.push_back(std::move(record));
  });
}

// The caller may free the kernel's matrices as soon as this returns.
void KernelRates::call_once(const KernelBody& body) {
  body();
  stream_.synchronize();
}

void KernelRates::bytes(const std::string& name, double count, const KernelBody& body,
                        const std::optional<InStep>& in_step) {
  if (times_ == Times::kOfChoices) return call_once(body);
  const double seconds = seconds_of(body);
  add({{"name", name}, {"microseconds", 1e6 * seconds}, {"gigabytes_per_second", count / seconds / 1e9}}, in_step);
}

void KernelRates::operations(const std::string& name, double count, const KernelBody& body,
                             const std::optional<InStep>& in_step) {
  if (times_ == Times::kOfChoices) return call_once(body);
  const double seconds = seconds_of(body);
  add({{"name", name}, {"microseconds", 1e6 * seconds}, {"teraflops", count / seconds / 1e12}}, in_step);
}

void KernelRates::absent(const std::string& name, const std::string& reason) {
  kernels_.push_back({{"name", name}, {"absence", reason}});
}

std::vector<double> KernelRates::compare(const EpilogueForms& forms) {
  if (times_ == Times::kOfChoices) return {};
  std::vector<double> seconds = seconds_in_turns({forms.plain, forms.in_gemm, forms.by_own_kernel});
  epilogues_.push_back({{"operation", forms.operation},
                        {"gemm", forms.gemm},
                        {"plain_microseconds", 1e6 * seconds[0]},
                        {"in_gemm_microseconds", 1e6 * seconds[1]},
                        {"own_kernel_microseconds", 1e6 * seconds[2]}});
  return seconds;
}

void KernelRates::epilogue(const EpilogueForms& forms) {
  if (times_ == Times::kOfChoices) return call_once(forms.in_gemm);
  const std::vector<double> seconds = compare(forms);
  add({{"name", forms.gemm}, {"microseconds", 1e6 * seconds[0]}, {"teraflops", forms.operations / seconds[0] / 1e12}},
      forms.gemm_in_step);
  add({{"name", forms.operation}, {"microseconds", 1e6 * (seconds[1] - seconds[0])}, {"difference", true}},
      forms.operation_in_step);
}

double KernelRates::seconds_of(const KernelBody& body) {
  (void)seconds_of(body, kWarmUpCalls);
  const double one = seconds_of(body, kWarmUpCalls);
  return seconds_of(body, calls_within(kSecondsOfOne, one, 5));
}

double KernelRates::seconds_of(const KernelBody& body, int calls) {
  stream_.synchronize();
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < calls; ++i) body();
  stream_.synchronize();
  return std::chrono::duration<double>(Clock::now() - start).count() / calls;
}

std::vector<double> KernelRates::seconds_in_turns(const std::vector<KernelBody>& bodies) {
  std::vector<int> calls;
  for (const KernelBody& body : bodies) {
    (void)seconds_of(body, kWarmUpCalls);
    calls.push_back(calls_within(kSecondsOfATurn, seconds_of(body, kWarmUpCalls), 2));
  }
  std::vector<std::vector<double>> seconds(bodies.size());
  for (int turn = 0; turn < kTurns; ++turn) {
    for (std::size_t i = 0; i < bodies.size(); ++i) seconds[i].push_back(seconds_of(bodies[i], calls[i]));
  }
  std::vector<double> medians;
  for (std::vector<double>& of_one : seconds) medians.push_back(median(std::move(of_one)));
  return medians;
}

void KernelRates::add(nlohmann::json kernel, const std::optional<InStep>& in_step) {
  if (in_step) {
    kernel["calls"] = in_step->calls;
    kernel["group"] = in_step->group;
    kernel["phase"] = in_step->phase;
    if (!in_step->attention.empty()) kernel["attention"] = in_step->attention;
  }
  kernels_.push_back(std::move(kernel));
}

std::vector<std::int32_t> random_tokens(std::int64_t count, std::int64_t vocabulary) {
  sim::PhiloxEngine engine(1, sim::Purpose::kSyntheticInput, 0);
  std::vector<std::int32_t> tokens(static_cast<std::size_t>(count));
  for (std::int32_t& token : tokens) {
    token = static_cast<std::int32_t>(engine() % static_cast<std::uint32_t>(vocabulary));
  }
  return tokens;
}

comm::DeviceBuffer<std::int32_t> on_device(std::span<const std::int32_t> values, comm::Stream& stream) {
  comm::DeviceBuffer<std::int32_t> buffer(values.size(), "benchmark");
  comm::copy_to_device(values, buffer.elems(), stream);
  stream.synchronize();
  return buffer;
}

}  // namespace droptest
