// SPDX-License-Identifier: Apache-2.0
#include "models/attention/cached_attention.h"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "models/attention/token_attention.h"
#include "models/phase_times.h"
#include "sim/error.h"

namespace droptest::models {
namespace {

template <class T>
class CachedAttention final : public StatefulAttention {
 public:
  explicit CachedAttention(Ops& ops) : team_(*ops.team()), times_(ops.times()) {}

  void forward(const AttentionPlace& at, const Sequences& sequences, const AttentionShape& s, comm::ConstTensor qkv,
               comm::Tensor output) override {
    const PhaseScope scope(times_, Phase::kAttention);
    DROPTEST_CHECK(at.slot == AttentionPlace::kEvaluation, "a training pass through cached keys and values");
    DROPTEST_CHECK(s.batch == 1, "cached keys and values of several sequences");
    Cache& cache = caches_[at.layer];
    const std::int64_t first = sequences.positions.front().begin;
    if (first == 0) cache = {};
    DROPTEST_CHECK(cache.tokens == first, "tokens from position " + std::to_string(first) + " on behind " +
                                              std::to_string(cache.tokens) + " cached ones");
    const std::int64_t row = s.heads * s.head_width;
    const std::span<const T> elems = qkv.as<T>();
    for (std::int64_t t = 0; t < s.length; ++t) {
      const T* const key = elems.data() + (3 * t + 1) * row;
      cache.keys.insert(cache.keys.end(), key, key + row);
      cache.values.insert(cache.values.end(), key + row, key + 2 * row);
    }
    cache.tokens += s.length;
    const HeadShape all{1, cache.tokens, s.heads, s.head_width};
    const HeadShape now{1, s.length, s.heads, s.head_width};
    const HeadView<const T> queries{elems.data(), now, s.length * 3 * row, 3 * row, s.head_width};
    const HeadView<const T> keys{cache.keys.data(), all, cache.tokens * row, row, s.head_width};
    const HeadView<const T> values{cache.values.data(), all, cache.tokens * row, row, s.head_width};
    const HeadView<T> attended{output.as<T>().data(), now, s.length * row, row, s.head_width};
    const AttentionMask mask(Causality::kCausal);
    log_sum_exp_.resize(static_cast<std::size_t>(s.heads * s.length));
    scratch_.resize(static_cast<std::size_t>(token_attention_scratch_elems(s.head_width, team_.threads())));
    begin_attention(attended, std::span<T>(log_sum_exp_));
    attend<T>({queries, keys, values, mask}, pattern_of({{0, s.length, first}}, {{0, cache.tokens, 0}}), attended,
              log_sum_exp_, scratch_, team_);
  }

  void backward(const AttentionPlace& /*at*/, const Sequences& /*sequences*/, const AttentionShape& /*shape*/,
                comm::ConstTensor /*output*/, comm::ConstTensor /*grad_output*/, comm::Tensor /*grad_qkv*/) override {
    throw CheckError("a backward pass of attention with cached keys and values");
  }

  std::uint64_t bytes() const override {
    std::uint64_t elems = log_sum_exp_.size() + scratch_.size();
    for (const auto& [layer, cache] : caches_) elems += cache.keys.size() + cache.values.size();
    return sizeof(T) * elems;
  }

 private:
  /// Cached keys and values, each [tokens, heads, head width].
  struct Cache {
    std::vector<T> keys, values;
    std::int64_t tokens = 0;
  };
  Team team_;
  PhaseTimes* times_;
  std::map<int, Cache> caches_;  ///< the key is the block
  std::vector<T> log_sum_exp_;
  std::vector<T> scratch_;
};

}  // namespace

std::unique_ptr<StatefulAttention> make_cached_attention(Ops& ops) {
  if (ops.team() == nullptr) {
    throw ConfigError("GPT-2: cached keys and values: got a CUDA device, want the CPU");
  }
  if (ops.form().types().activations == comm::ElementType::kFloat64) {
    return std::make_unique<CachedAttention<double>>(ops);
  }
  return std::make_unique<CachedAttention<float>>(ops);
}

}  // namespace droptest::models
