// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/conformance.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/visit_elements.h"
#include "sim/error.h"
namespace droptest::comm {
namespace {

using Counts = std::vector<std::uint64_t>;

enum class Sums : std::uint8_t { kInRankOrder, kInAnyOrder };

// Values of magnitudes that differ between ranks, so that their sum depends on the order of the additions. For any
// order: small whole numbers.
template <class T>
T value_of(Sums sums, int rank, std::uint64_t index, int salt) {
  std::uint64_t x = static_cast<std::uint64_t>(rank) * 0x9e3779b97f4a7c15ULL + index * 0xbf58476d1ce4e5b9ULL +
                    static_cast<std::uint64_t>(salt) * 0x94d049bb133111ebULL;
  x ^= x >> 31;
  x *= 0xd6e8feb86659fd93ULL;
  x ^= x >> 32;
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(x);
  } else {
    using W = WideOf<T>;
    constexpr std::uint64_t kLargest = kIsNarrowFloat<T> ? 7 : 511;  // sums of which have no digit too many
    if (sums == Sums::kInAnyOrder) {
      return narrowed<T>(static_cast<W>(static_cast<double>(x & (2 * kLargest + 1)) - static_cast<double>(kLargest)));
    }
    const double fraction = static_cast<double>(x >> 11) / 9007199254740992.0 - 0.5;
    return narrowed<T>(static_cast<W>(std::ldexp(fraction, static_cast<int>(x & 15) - 4)));
  }
}

// Expects equal bits.
template <class T>
bool same(std::span<const T> a, std::span<const T> b) {
  return std::ranges::equal(std::as_bytes(a), std::as_bytes(b));
}

// An output with a guard behind it, filled with a pattern that no reference has.
template <class T>
class Output {
 public:
  explicit Output(std::uint64_t count) : bytes_((count + kGuardElems) * sizeof(T), std::byte{0xa5}), count_(count) {}
  Output(std::uint64_t count, std::uint64_t begin, const std::vector<T>& part) : Output(count) {
    if (!part.empty()) std::memcpy(elems().data() + begin, part.data(), part.size() * sizeof(T));
  }
  std::span<T> elems() { return {reinterpret_cast<T*>(bytes_.data()), count_}; }
  bool guard_intact() const {
    for (std::size_t i = count_ * sizeof(T); i < bytes_.size(); ++i) {
      if (bytes_[i] != std::byte{0xa5}) return false;
    }
    return true;
  }

 private:
  static constexpr std::uint64_t kGuardElems = 8;
  std::vector<std::byte> bytes_;
  std::uint64_t count_;
};

class Checker {
 public:
  Checker(Communicator& communicator, Sums sums)
      : communicator_(communicator), sums_(sums), rank_(communicator.rank()), size_(communicator.world_size()) {}

  template <class T>
  void all_operations(const Counts& counts) {
    const std::uint64_t total = std::accumulate(counts.begin(), counts.end(), std::uint64_t{0});
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax}) {
      all_reduce<T>(op, total);
      reduce_scatter<T>(op, counts);
    }
    if constexpr (std::is_integral_v<T>) {
      refuses_means<T>(counts);
    } else {
      // NCCL rounds a sum of narrow floats before it is divided: here it needs no rounding.
      const Sums sums = std::exchange(sums_, kIsNarrowFloat<T> ? Sums::kInAnyOrder : sums_);
      all_reduce<T>(ReduceOp::kMean, total);
      reduce_scatter<T>(ReduceOp::kMean, counts);
      sums_ = sums;
    }
    all_gather<T>(counts);
    all_to_all<T>(counts);
    for (const int root : {0, size_ - 1}) broadcast<T>(root, total);
    ring<T>(total);
    exchange<T>(total);
  }

  // All to the next rank; and each pair of ranks (r, n - 1 - r) to each other.
  void large_exchanges() {
    constexpr std::uint64_t kElems = kLargeMessageBytes / sizeof(std::uint64_t);
    exchange_large((rank_ + 1) % size_, (rank_ + size_ - 1) % size_, kElems);
    exchange_large(size_ - 1 - rank_, size_ - 1 - rank_, kElems);
  }

  std::uint64_t digest() const { return digest_; }

 private:
  template <class T>
  T value_of(int rank, std::uint64_t index, int salt) const {
    return comm::value_of<T>(sums_, rank, index, salt);
  }

  template <class T>
  std::vector<T> values(int rank, std::uint64_t count, int salt) const {
    std::vector<T> result(count);
    for (std::uint64_t i = 0; i < count; ++i) result[i] = value_of<T>(rank, i, salt);
    return result;
  }

  template <class T>
  T reduced(ReduceOp op, std::uint64_t index, int salt) const {
    WideOf<T> result = widened(value_of<T>(0, index, salt));
    for (int r = 1; r < size_; ++r) {
      const WideOf<T> next = widened(value_of<T>(r, index, salt));
      if (op != ReduceOp::kMax) {
        result = sum_of(result, next);
      } else if (next > result) {
        result = next;
      }
    }
    if (op == ReduceOp::kMean) result = static_cast<WideOf<T>>(result / static_cast<WideOf<T>>(size_));
    return narrowed<T>(result);
  }

  template <class T>
  void expect(std::string_view what, const std::vector<T>& want, Output<T>& got) {
    const std::string where = std::string(what) + ": rank " + std::to_string(rank_) + " of " + std::to_string(size_) +
                              ", " + std::to_string(want.size()) + " elements of " + std::to_string(sizeof(T)) +
                              " bytes";
    for (std::size_t i = 0; i < want.size(); ++i) {
      if (std::memcmp(&want[i], &got.elems()[i], sizeof(T)) != 0) {
        throw std::runtime_error(where + ": element " + std::to_string(i) + " is " +
                                 std::to_string(number_of(got.elems()[i])) + ", want " +
                                 std::to_string(number_of(want[i])));
      }
      std::uint64_t bits = 0;
      std::memcpy(&bits, &got.elems()[i], sizeof(T));
      digest_ = (digest_ ^ bits) * 0x100000001b3ULL;
    }
    if (!got.guard_intact()) throw std::runtime_error(where + ": wrote past the output");
  }

  template <class T>
  void expect_untouched(std::string_view what, const std::vector<T>& input, int salt) {
    if (!same<T>(input, values<T>(rank_, input.size(), salt)))
      throw std::runtime_error(std::string(what) + ": input written");
  }

  std::uint64_t before(const Counts& counts, int rank) const {
    return std::accumulate(counts.begin(), counts.begin() + rank, std::uint64_t{0});
  }

  template <class T>
  void all_reduce(ReduceOp op, std::uint64_t count) {
    const int salt = ++salt_;
    std::vector<T> want(count);
    for (std::uint64_t i = 0; i < count; ++i) want[i] = reduced<T>(op, i, salt);
    const std::vector<T> input = values<T>(rank_, count, salt);
    Output<T> output(count);
    communicator_.all_reduce(std::span<const T>(input), output.elems(), op, message_);
    expect("all_reduce", want, output);
    expect_untouched("all_reduce", input, salt);
    Output<T> in_place(count, 0, input);
    communicator_.all_reduce(in_place.elems(), op, message_);
    expect("all_reduce in place", want, in_place);
  }

  template <class T>
  void reduce_scatter(ReduceOp op, const Counts& counts) {
    const int salt = ++salt_;
    const std::uint64_t own = counts[static_cast<std::size_t>(rank_)];
    std::vector<T> want(own);
    for (std::uint64_t i = 0; i < own; ++i) want[i] = reduced<T>(op, before(counts, rank_) + i, salt);
    std::vector<T> input = values<T>(rank_, before(counts, size_), salt);
    Output<T> output(own);
    communicator_.reduce_scatter(std::span<const T>(input), output.elems(), counts, op, message_);
    expect("reduce_scatter", want, output);
    expect_untouched("reduce_scatter", input, salt);
    const std::span<T> own_part = std::span<T>(input).subspan(before(counts, rank_), own);
    communicator_.reduce_scatter(std::span<const T>(input), own_part, counts, op, message_);
    Output<T> result(own, 0, {own_part.begin(), own_part.end()});
    expect("reduce_scatter into its own part", want, result);
  }

  template <class T>
  void refuses_means(const Counts& counts) {
    const auto refused = [](std::string_view what, const std::function<void()>& call) {
      try {
        call();
      } catch (const ConfigError& error) {
        if (std::string_view(error.what()).find("got a mean of ") != std::string_view::npos) return;
        throw;
      }
      throw std::runtime_error(std::string(what) + ": took a mean of integers");
    };
    std::vector<T> input(before(counts, size_));
    std::vector<T> part(counts[static_cast<std::size_t>(rank_)]);
    const Tensor data{std::span(input)};
    refused("all_reduce", [&] { communicator_.all_reduce(data, ReduceOp::kMean, message_); });
    refused("start_all_reduce", [&] { communicator_.start_all_reduce(data, data, ReduceOp::kMean, message_).wait(); });
    refused("reduce_scatter",
            [&] { communicator_.reduce_scatter(data, std::span(part), counts, ReduceOp::kMean, message_); });
  }

  template <class T>
  void all_gather(const Counts& counts) {
    const int salt = ++salt_;
    std::vector<T> want;
    for (int r = 0; r < size_; ++r) {
      const std::vector<T> part = values<T>(r, counts[static_cast<std::size_t>(r)], salt);
      want.insert(want.end(), part.begin(), part.end());
    }
    const std::vector<T> input = values<T>(rank_, counts[static_cast<std::size_t>(rank_)], salt);
    Output<T> output(want.size());
    communicator_.all_gather(std::span<const T>(input), output.elems(), counts, message_);
    expect("all_gather", want, output);
    expect_untouched("all_gather", input, salt);
    Output<T> in_place(want.size(), before(counts, rank_), input);
    const std::span<const T> own = in_place.elems().subspan(before(counts, rank_), input.size());
    communicator_.all_gather(own, in_place.elems(), counts, message_);
    expect("all_gather in place", want, in_place);
  }

  // Rank s sends (counts[s] + d) % 7 elements, or more for large counts, to rank d: uneven, with zeros among them.
  template <class T>
  void all_to_all(const Counts& counts) {
    const auto sent = [&](int s, int d) {
      const std::uint64_t base = counts[static_cast<std::size_t>(s)];
      return base == 0 ? 0 : (base + static_cast<std::uint64_t>(d)) % 7 + (d % 2 == 0 ? base / 2 : 0);
    };
    const int salt = ++salt_;
    Counts send_counts;
    Counts receive_counts;
    std::vector<T> want;
    for (int peer = 0; peer < size_; ++peer) {
      send_counts.push_back(sent(rank_, peer));
      receive_counts.push_back(sent(peer, rank_));
      std::uint64_t begin = 0;
      for (int d = 0; d < rank_; ++d) begin += sent(peer, d);
      for (std::uint64_t i = 0; i < sent(peer, rank_); ++i) want.push_back(value_of<T>(peer, begin + i, salt));
    }
    const std::vector<T> input = values<T>(rank_, before(send_counts, size_), salt);
    Output<T> output(want.size());
    communicator_.all_to_all(std::span<const T>(input), send_counts, output.elems(), receive_counts, message_);
    expect("all_to_all", want, output);
    expect_untouched("all_to_all", input, salt);

    const Counts equal(static_cast<std::size_t>(size_), counts[0]);
    want.clear();
    for (int s = 0; s < size_; ++s) {
      for (std::uint64_t i = 0; i < counts[0]; ++i) {
        want.push_back(value_of<T>(s, counts[0] * static_cast<std::uint64_t>(rank_) + i, salt));
      }
    }
    Output<T> in_place(want.size(), 0, values<T>(rank_, want.size(), salt));
    communicator_.all_to_all(in_place.elems(), equal, in_place.elems(), equal, message_);
    expect("all_to_all in place", want, in_place);
  }

  template <class T>
  void broadcast(int root, std::uint64_t count) {
    const int salt = ++salt_;
    Output<T> data(count, 0, values<T>(rank_, count, salt));
    communicator_.broadcast(data.elems(), root, message_);
    expect("broadcast", values<T>(root, count, salt), data);
  }

  // Everyone sends two messages to the next rank before anyone receives: sends are buffered and stay in order.
  template <class T>
  void ring(std::uint64_t count) {
    const int salt = salt_ += 2;
    const int next = (rank_ + 1) % size_;
    const int previous = (rank_ + size_ - 1) % size_;
    for (const int s : {salt, salt + 1}) {
      std::vector<T> data = values<T>(rank_, count, s);
      communicator_.send(std::span<const T>(data), next, message_);
      data.assign(data.size(), T{});  // the sender may use its buffer again
    }
    for (const int s : {salt, salt + 1}) {
      Output<T> data(count);
      communicator_.recv(data.elems(), previous, message_);
      expect("send and recv", values<T>(previous, count, s), data);
    }
    communicator_.barrier(message_);
  }

  // Exchanges messages with every rank, this one included: one of `count` elements, then one of another type and class,
  // in the order of the ranks. They are received in the opposite order of the ranks. Then it exchanges only with the
  // next rank, after a message of send(), and with no rank.
  template <class T>
  void exchange(std::uint64_t count) {
    const int salt = salt_ += 2;
    const Message second{.traffic_class = sim::TrafficClass::kPpGradient, .name = "words", .layer = 1};
    const std::uint64_t words = count / 2 + 1;
    const auto elems_for = [&](int rank) { return count + static_cast<std::uint64_t>(rank); };
    std::vector<std::vector<T>> sent;
    const std::vector<std::uint64_t> sent_words = values<std::uint64_t>(rank_, words, salt + 1);
    std::vector<Output<T>> received;
    std::vector<Output<std::uint64_t>> received_words;
    for (int r = 0; r < size_; ++r) {
      sent.push_back(values<T>(rank_, elems_for(r), salt));
      received.emplace_back(elems_for(rank_));
      received_words.emplace_back(words);
    }
    std::vector<Send> sends;
    std::vector<Receive> receives;
    for (int r = 0; r < size_; ++r) {
      const auto i = static_cast<std::size_t>(r);
      const auto from = static_cast<std::size_t>(size_ - 1 - r);
      sends.push_back({std::span<const T>(sent[i]), r, message_});
      sends.push_back({std::span<const std::uint64_t>(sent_words), r, second});
      receives.push_back({received[from].elems(), size_ - 1 - r, message_});
      receives.push_back({received_words[from].elems(), size_ - 1 - r, second});
    }
    communicator_.exchange(sends, receives);
    for (int r = 0; r < size_; ++r) {
      const auto i = static_cast<std::size_t>(r);
      expect("exchange", values<T>(r, elems_for(rank_), salt), received[i]);
      expect("exchange of words", values<std::uint64_t>(r, words, salt + 1), received_words[i]);
      if (!same<T>(sent[i], values<T>(rank_, elems_for(r), salt))) throw std::runtime_error("exchange: input written");
    }

    const int next = (rank_ + 1) % size_;
    const int previous = (rank_ + size_ - 1) % size_;
    const auto after = static_cast<std::size_t>(next);
    const Send to_next{std::span<const T>(sent[after]), next, message_};
    communicator_.send(to_next.data, next, message_);
    Output<T> first(elems_for(rank_));
    Output<T> then(elems_for(rank_));
    communicator_.recv(first.elems(), previous, message_);
    const Receive from_previous{then.elems(), previous, message_};
    communicator_.exchange({&to_next, 1}, {&from_previous, 1});
    expect("recv before an exchange", values<T>(previous, elems_for(rank_), salt), first);
    expect("exchange with neighbours", values<T>(previous, elems_for(rank_), salt), then);
    communicator_.exchange({}, {});
    communicator_.barrier(message_);
  }

  void exchange_large(int destination, int source, std::uint64_t count) {
    const auto word = [](int rank, std::uint64_t i) { return static_cast<std::uint64_t>(rank + 1) << 40 | i; };
    std::vector<std::uint64_t> sent(count);
    std::vector<std::uint64_t> received(count);
    for (std::uint64_t i = 0; i < count; ++i) sent[i] = word(rank_, i);
    const Send send{std::span<const std::uint64_t>(sent), destination, message_};
    const Receive receive{std::span(received), source, message_};
    communicator_.exchange({&send, 1}, {&receive, 1});
    for (std::uint64_t i = 0; i < count; ++i) {
      if (received[i] == word(source, i)) continue;
      throw std::runtime_error("exchange of " + std::to_string(kLargeMessageBytes) + " bytes: rank " +
                               std::to_string(rank_) + ": word " + std::to_string(i) + " of rank " +
                               std::to_string(source) + " is " + std::to_string(received[i]));
    }
    digest_ = (digest_ ^ static_cast<std::uint64_t>(source)) * 0x100000001b3ULL;
  }

  Communicator& communicator_;
  Sums sums_;
  const int rank_;
  const int size_;
  const Message message_{.traffic_class = sim::TrafficClass::kTpForward, .name = "conformance"};
  int salt_ = 0;
  std::uint64_t digest_ = 0xcbf29ce484222325ULL;
};

std::uint64_t conformance(Communicator& communicator, Sums sums) {
  const auto n = static_cast<std::uint64_t>(communicator.world_size());
  Checker checker(communicator, sums);
  for (const std::uint64_t total : {std::uint64_t{0}, std::uint64_t{1}, n - 1, n, n + 1, std::uint64_t{1003}}) {
    const Counts even = even_counts(total, static_cast<int>(n));
    checker.all_operations<float>(even);
    if (total != n - 1 && total != n) checker.all_operations<double>(even);
    if (total != n + 1) continue;
    checker.all_operations<std::uint64_t>(even);
    checker.all_operations<Bf16>(even);
    checker.all_operations<Fp16>(even);
    checker.all_operations<std::int32_t>(even);
    checker.all_operations<std::int64_t>(even);
    checker.all_operations<std::uint8_t>(even);
  }
  Counts uneven;  // zeros in between; the last part is longer than a block of the reduction
  for (std::uint64_t r = 0; r < n; ++r) uneven.push_back(r % 3 == 1 ? 0 : 17 * r + 1);
  uneven.back() += 5000;
  checker.all_operations<float>(uneven);
  checker.all_operations<double>(uneven);
  return checker.digest();
}

std::uint64_t conformance_of_splits(Communicator& communicator, Sums sums) {
  const int rank = communicator.rank();
  const int size = communicator.world_size();
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw std::runtime_error("split: rank " + std::to_string(rank) + ": " + what);
  };
  const auto reversed = communicator.split(0, -rank);
  require(reversed->world_size() == size && reversed->rank() == size - 1 - rank, "ranks are not in order of the key");
  require(reversed->world_rank(reversed->rank()) == communicator.world_rank(rank), "wrong world rank");
  std::uint64_t digest = conformance(*reversed, sums);

  const auto parity = communicator.split(rank % 2, 0);
  require(parity->rank() == rank / 2 && parity->world_size() == (size + 1 - rank % 2) / 2, "wrong halves");
  for (int r = 0; r < parity->world_size(); ++r) {
    require(parity->world_rank(r) == communicator.world_rank(2 * r + rank % 2), "wrong world ranks in a half");
  }
  digest ^= conformance(*parity, sums);

  const auto nested = parity->split(parity->rank() < 2 ? 7 : -1, 0);
  require((nested == nullptr) == (parity->rank() >= 2), "a negative color must give no group, others a group");
  if (nested != nullptr) {
    require(nested->world_rank(nested->rank()) == communicator.world_rank(rank), "wrong world rank when nested");
    digest ^= conformance(*nested, sums);
  }
  communicator.barrier({.name = "after the parts"});
  return digest;
}

}  // namespace

std::uint64_t check_conformance(Communicator& communicator) { return conformance(communicator, Sums::kInRankOrder); }

std::uint64_t check_conformance_of_splits(Communicator& communicator) {
  return conformance_of_splits(communicator, Sums::kInRankOrder);
}

std::uint64_t check_conformance_of_any_order(Communicator& communicator) {
  return conformance(communicator, Sums::kInAnyOrder);
}

std::uint64_t check_conformance_of_splits_of_any_order(Communicator& communicator) {
  return conformance_of_splits(communicator, Sums::kInAnyOrder);
}

std::uint64_t check_message_sizes(Communicator& communicator) {
  Checker checker(communicator, Sums::kInRankOrder);
  const int size = communicator.world_size();
  for (const std::uint64_t part_bytes : {20 << 10, (64 << 10) - 168, 70 << 10}) {
    const std::uint64_t part = part_bytes / sizeof(float);
    checker.all_operations<float>(even_counts(part, size));
    Counts counts(static_cast<std::size_t>(size), part);
    for (std::size_t r = 1; r < counts.size(); r += 2) ++counts[r];
    checker.all_operations<float>(counts);
  }
  return checker.digest();
}

std::uint64_t check_conformance_of_channels(Communicator& communicator) {
  std::vector<std::unique_ptr<Communicator>> channels;
  std::vector<std::future<std::uint64_t>> digests;
  for (int number = 0; number < Communicator::kMostChannels; ++number) {
    channels.push_back(communicator.channel(number));
    if (channels.back() == nullptr) throw std::runtime_error("a backend without channels");
    digests.push_back(
        std::async(std::launch::async, [&channel = *channels.back()] { return check_conformance(channel); }));
  }
  const std::uint64_t digest = check_conformance(communicator);
  for (std::future<std::uint64_t>& of_channel : digests) {
    if (of_channel.get() != digest) throw std::runtime_error("a channel has other results");
  }
  return digest;
}

std::uint64_t check_large_exchanges(Communicator& communicator) {
  Checker checker(communicator, Sums::kInRankOrder);
  checker.large_exchanges();
  return checker.digest();
}

}  // namespace droptest::comm
