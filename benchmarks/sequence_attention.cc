// SPDX-License-Identifier: Apache-2.0
// Attention of long sequences, in turns: one rank with dense, chunked and dilated attention; four ranks as a ring, as a
// zigzag ring and by Ulysses. Prints one JSON object with the milliseconds of a forward and of a backward pass. For one
// rank, it also has the memory of both passes, measured and by formula.
#include <malloc.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <map>
#include <new>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/run_ranks.h"
#include "models/attention/chunked_attention.h"
#include "models/attention/dilated_attention.h"
#include "models/attention/sequence_attention.h"

namespace {

// The bytes that new has allocated and delete has not freed.
std::atomic<std::int64_t> allocated_bytes = 0;
std::atomic<std::int64_t> most_allocated_bytes = 0;

void* counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const auto bytes = static_cast<std::int64_t>(::malloc_usable_size(memory));
  const std::int64_t now = allocated_bytes += bytes;
  std::int64_t most = most_allocated_bytes;
  while (most < now && !most_allocated_bytes.compare_exchange_weak(most, now)) {
  }
  return memory;
}

}  // namespace

void* operator new(std::size_t bytes) { return counted(std::malloc(bytes)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  const auto align = static_cast<std::size_t>(alignment);
  return counted(std::aligned_alloc(align, (bytes + align - 1) / align * align));
}
void operator delete(void* memory) noexcept {
  allocated_bytes -= static_cast<std::int64_t>(::malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { ::operator delete(memory); }
void operator delete(void* memory, std::align_val_t /*alignment*/) noexcept { ::operator delete(memory); }
void operator delete(void* memory, std::size_t /*bytes*/, std::align_val_t /*alignment*/) noexcept {
  ::operator delete(memory);
}

namespace droptest::models {
namespace {

using Clock = std::chrono::steady_clock;
using Floats = std::vector<float>;
using nlohmann::ordered_json;

struct Options {
  std::vector<std::int64_t> contexts = {256, 1024, 4096, 16384};
  std::int64_t heads = 4;
  std::int64_t width = 64;
  std::int64_t chunk = 512;
  int threads = 2;
  int ranks = 4;
  int rounds = 3;
  std::string folder;
};

/// One rank's tensors of a pass. Their memory is touched here, so that passes add none for them.
struct Tensors {
  explicit Tensors(const HeadShape& of) : shape(of) {
    double first = 0;
    for (Floats* elems : {&queries, &keys, &values, &output, &grad_output, &grad_queries, &grad_keys, &grad_values}) {
      elems->resize(shape.elems());
      ++first;
      for (std::size_t i = 0; i < elems->size(); ++i) {
        (*elems)[i] = static_cast<float>(std::sin(first * static_cast<double>(i + 1)));
      }
    }
  }
  HeadView<float> view(Floats& elems) const {
    return view_of("tensor", std::span(elems), shape, TokenLayout::kBatchFirst);
  }
  AttentionGradients<float> gradients() { return {view(grad_queries), view(grad_keys), view(grad_values)}; }

  HeadShape shape;
  Floats queries, keys, values, output, grad_output, grad_queries, grad_keys, grad_values;
};

/// The peak of allocated bytes since the construction of this object, minus the bytes at its construction.
class PeakMemory {
 public:
  PeakMemory() : before_(allocated_bytes) { most_allocated_bytes = before_; }
  std::int64_t bytes() const { return most_allocated_bytes - before_; }

 private:
  std::int64_t before_;
};

double milliseconds(const std::function<void()>& work) {
  const Clock::time_point begin = Clock::now();
  work();
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

struct Measured {
  double forward_ms = 0;
  double backward_ms = 0;
  std::int64_t peak_bytes = 0;
  std::uint64_t formula_bytes = 0;  ///< 0: several ranks in one process
};

/// A pass of one rank over the whole sequence.
template <class Attention>
Measured whole(const Options& options, std::int64_t context, const std::function<Attention()>& make,
               std::uint64_t formula_elems) {
  Tensors t({1, context, options.heads, options.width});
  const Team team(options.threads);
  const PeakMemory peak;
  Attention attention = make();
  const SequenceParts parts = SequenceParts::even(context, 1);
  const AttentionMask mask(Causality::kCausal);
  typename Attention::Saved saved;
  Measured result;
  result.forward_ms = milliseconds([&] {
    attention.forward({parts, mask, 0}, t.view(t.queries), t.view(t.keys), t.view(t.values), t.view(t.output), saved,
                      team);
  });
  result.backward_ms = milliseconds([&] {
    const SequencePass pass{parts, mask, 0};
    if constexpr (std::is_same_v<Attention, DilatedAttention<float>>) {
      attention.backward(pass, t.view(t.output), t.view(t.grad_output), saved, t.gradients(), team);
    } else {
      attention.backward(pass, t.view(t.grad_output), saved, t.gradients(), team);
    }
  });
  result.peak_bytes = peak.bytes();
  result.formula_bytes = sizeof(float) * formula_elems;
  return result;
}

Measured dense(const Options& options, std::int64_t context) {
  using Attention = SequenceAttention<float>;
  const std::uint64_t tensor = HeadShape{1, context, options.heads, options.width}.elems();
  return whole<Attention>(
      options, context, [&] { return Attention(nullptr, {}, options.heads); },
      // The saved queries, keys, values and output, and a gradient of each; log_sum_exp; and the threads' scores.
      8 * tensor + static_cast<std::uint64_t>(context * options.heads) +
          token_attention_scratch_elems(options.width, options.threads));
}

/// One chunk's tensors stand for those of all chunks, like those of a caller that computes chunk by chunk.
Measured chunked(const Options& options, std::int64_t context) {
  const HeadShape shape{1, context, options.heads, options.width};
  Tensors t({1, std::min(options.chunk, context), options.heads, options.width});
  Floats log_sum_exp(static_cast<std::size_t>(t.shape.tokens * options.heads));
  const Team team(options.threads);
  const PeakMemory peak;
  OffloadFile file(make_offload_file(options.folder));
  ChunkedAttention<float> attention(shape, {{0, context, 0}}, options.chunk, file);
  const AttentionMask mask(Causality::kCausal);
  Measured result;
  result.forward_ms = milliseconds([&] {
    for (int chunk = 0; chunk < attention.chunks(); ++chunk) {
      attention.put(chunk, t.view(t.keys), t.view(t.values));
      attention.forward(chunk, t.view(t.queries), mask, t.view(t.output), log_sum_exp, team);
    }
  });
  result.backward_ms = milliseconds([&] {
    for (int chunk = attention.chunks() - 1; chunk >= 0; --chunk) {
      attention.backward(chunk, t.view(t.queries), mask, {t.view(t.output), log_sum_exp, t.view(t.grad_output)},
                         t.view(t.grad_queries), team);
      attention.take_gradients(chunk, t.view(t.grad_keys), t.view(t.grad_values));
    }
  });
  result.peak_bytes = peak.bytes();
  result.formula_bytes = attention.backward_bytes(options.threads);
  return result;
}

/// LongNet's geometric branches: segments of 256, 1,024, ... tokens with the dilations 1, 4, ...
std::vector<DilatedBranch> branches_of(std::int64_t context) {
  std::vector<DilatedBranch> branches;
  for (std::int64_t segment = 256, dilation = 1; segment <= context; segment *= 4, dilation *= 4) {
    branches.push_back({segment, dilation});
  }
  if (branches.empty()) branches.push_back({context, 1});
  return branches;
}

Measured dilated(const Options& options, std::int64_t context) {
  using Attention = DilatedAttention<float>;
  const std::uint64_t tensor = HeadShape{1, context, options.heads, options.width}.elems();
  return whole<Attention>(
      options, context, [&] { return Attention(nullptr, {.branches = branches_of(context)}, options.heads); },
      // The saved queries, keys and values; log_sum_exp; and the threads' scores.
      3 * tensor + static_cast<std::uint64_t>(context * options.heads) +
          token_attention_scratch_elems(options.width, options.threads));
}

/// Each rank is a thread with its part of the sequence. Times are those of all ranks, from barrier to barrier.
Measured over_ranks(const Options& options, std::int64_t context, const SequenceFactors& factors, bool zigzag) {
  Measured result;
  comm::run_ranks(options.ranks, std::chrono::minutes(10), [&](comm::Communicator& group) {
    const SequenceParts parts = zigzag ? SequenceParts::zigzag(context, factors.ring, factors.ulysses)
                                       : SequenceParts::even(context, options.ranks);
    Tensors t({1, parts.length_of(group.rank()), options.heads, options.width});
    const Team team(1);
    SequenceAttention<float> attention(&group, factors, options.heads);
    const AttentionMask mask(Causality::kCausal);
    SavedAttention<float> saved;
    const auto timed = [&](const std::function<void()>& work) {
      group.barrier({.name = "turn"});
      return milliseconds([&] {
        work();
        group.barrier({.name = "turn"});
      });
    };
    const double forward = timed([&] {
      attention.forward({parts, mask, 0}, t.view(t.queries), t.view(t.keys), t.view(t.values), t.view(t.output), saved,
                        team);
    });
    const double backward = timed([&] {
      attention.backward({parts, mask, 0}, t.view(t.grad_output), saved, t.gradients(), team);
    });
    if (group.rank() != 0) return;
    result.forward_ms = forward;
    result.backward_ms = backward;
  });
  return result;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

ordered_json measure(const Options& options) {
  const std::vector<std::pair<std::string, std::function<Measured(std::int64_t)>>> contestants = {
      {"dense", [&](std::int64_t context) { return dense(options, context); }},
      {"chunked", [&](std::int64_t context) { return chunked(options, context); }},
      {"dilated", [&](std::int64_t context) { return dilated(options, context); }},
      {"ring",
       [&](std::int64_t context) {
         return over_ranks(options, context, {1, options.ranks}, false);
       }},
      {"zigzag",
       [&](std::int64_t context) {
         return over_ranks(options, context, {1, options.ranks}, true);
       }},
      {"ulysses",
       [&](std::int64_t context) {
         return over_ranks(options, context, {options.ranks, 1}, false);
       }},
  };
  ordered_json rows = ordered_json::array();
  for (const std::int64_t context : options.contexts) {
    std::map<std::string, std::vector<Measured>> all;
    for (int round = 0; round <= options.rounds; ++round) {
      for (const auto& [name, run] : contestants) {
        const Measured measured = run(context);
        if (round > 0) all[name].push_back(measured);  // the first round is a warm-up
      }
    }
    for (const auto& [name, run] : contestants) {
      const std::vector<Measured>& of = all[name];
      const auto median_of = [&](const std::vector<Measured>& of_name, auto member) {
        std::vector<double> values;
        for (const Measured& m : of_name) values.push_back(static_cast<double>(m.*member));
        return median(values);
      };
      std::vector<double> ratios;
      for (std::size_t round = 0; round < of.size(); ++round) {
        const Measured& one = all["dense"][round];
        ratios.push_back((of[round].forward_ms + of[round].backward_ms) / (one.forward_ms + one.backward_ms));
      }
      ordered_json row = {{"context", context},
                          {"attention", name},
                          {"forward_ms", median_of(of, &Measured::forward_ms)},
                          {"backward_ms", median_of(of, &Measured::backward_ms)},
                          {"time_over_dense", median(ratios)}};
      if (of[0].formula_bytes > 0) {
        row["peak_bytes"] = median_of(of, &Measured::peak_bytes);
        row["formula_bytes"] = of[0].formula_bytes;
      }
      rows.push_back(row);
    }
  }
  return {{"heads", options.heads},
          {"width", options.width},
          {"chunk_tokens", options.chunk},
          {"threads", options.threads},
          {"ranks", options.ranks},
          {"rounds", options.rounds},
          {"rows", rows}};
}

int run(int argc, char** argv) {
  Options options;
  CLI::App app("Attention of long sequences: time and memory of one rank and of several.");
  app.add_option("--contexts", options.contexts, "tokens of a sequence")->delimiter(',')->check(CLI::PositiveNumber);
  app.add_option("--heads", options.heads)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--width", options.width, "of a head")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--chunk", options.chunk, "tokens of a chunk")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--threads", options.threads, "of the one rank")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--ranks", options.ranks, "with a thread each")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--rounds", options.rounds, "after one that is not counted")->check(CLI::PositiveNumber);
  app.add_option("--folder", options.folder, "for the chunks' file");
  CLI11_PARSE(app, argc, argv);
  if (options.heads < options.ranks) {
    std::cerr << "sequence_attention: --heads: got " << options.heads << " for --ranks " << options.ranks
              << ", want a head for each rank\n";
    return 2;
  }
  std::cout << measure(options).dump(1) << "\n";
  return 0;
}

}  // namespace
}  // namespace droptest::models

int main(int argc, char** argv) { return droptest::models::run(argc, argv); }
