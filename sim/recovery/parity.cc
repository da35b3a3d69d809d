// SPDX-License-Identifier: Apache-2.0
// Nouns: a message of n data packets has ceil(n / k) blocks; a group is `depth` blocks in a row (fewer at the end),
// which lie on the link one group after the other; row i of a group has the i-th data packet of each of its blocks.
#include "sim/recovery/parity.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "sim/error.h"

namespace droptest::sim {
namespace {

// Whether packets [begin, end), a range that is not empty, have a loss among them.
bool any_lost(const PacketMask& lost, std::uint64_t begin, std::uint64_t end) {
  const auto words = lost.words();
  const std::uint64_t last = (end - 1) >> 6;
  std::uint64_t bits = ~std::uint64_t{0} << (begin & 63);
  for (std::uint64_t word = begin >> 6; word <= last; ++word) {
    if (word == last) bits &= ~std::uint64_t{0} >> (63 - ((end - 1) & 63));
    if ((words[word] & bits) != 0) return true;
    bits = ~std::uint64_t{0};
  }
  return false;
}

}  // namespace

struct Parity::Group {
  std::uint64_t first_block = 0;
  std::uint64_t blocks = 0;
  std::uint64_t short_rows = 0;  // data packets of the group's last block
  std::uint64_t first_data = 0;
  std::uint64_t data = 0;
};

Parity::Parity(const ParityCode& code) : code_(code) {
  const auto require = [](bool condition, const char* what, std::uint64_t got, const char* want) {
    if (!condition) throw ConfigError(std::string(what) + ": got " + std::to_string(got) + ", want " + want);
  };
  require(code.data >= 1 && code.data <= 254, "data", code.data, "an integer in [1, 254]");
  require(code.parity >= 1 && code.parity <= 254, "parity", code.parity, "an integer in [1, 254]");
  require(code.data + code.parity <= 255, "data + parity", code.data + code.parity,
          "at most 255, the packets of a block of a Reed-Solomon code over bytes");
  require(code.depth >= 1 && code.depth <= 65536, "depth", code.depth, "an integer in [1, 65536]");
}

std::uint64_t Parity::blocks(std::uint64_t data_packets) const {
  return data_packets / code_.data + (data_packets % code_.data != 0 ? 1 : 0);
}

std::uint64_t Parity::block_data(std::uint64_t block, std::uint64_t data_packets) const {
  return std::min(code_.data, data_packets - block * code_.data);
}

std::uint64_t Parity::first_packets(std::uint64_t data_packets) const {
  return data_packets + blocks(data_packets) * code_.parity;
}

Parity::Group Parity::group_of(std::uint64_t block, std::uint64_t data_packets) const {
  Group group;
  group.first_block = block / code_.depth * code_.depth;
  group.blocks = std::min(code_.depth, blocks(data_packets) - group.first_block);
  group.short_rows = block_data(group.first_block + group.blocks - 1, data_packets);
  group.first_data = group.first_block * code_.data;
  group.data = (group.blocks - 1) * code_.data + group.short_rows;
  return group;
}

std::uint64_t Parity::position(std::uint64_t data_packet, std::uint64_t data_packets) const {
  const std::uint64_t block = data_packet / code_.data;
  const std::uint64_t row = data_packet % code_.data;
  const Group group = group_of(block, data_packets);
  const std::uint64_t full_rows = std::min(row, group.short_rows);  // rows before this one with every block in them
  return group.first_data + group.first_block * code_.parity + full_rows * group.blocks +
         (row - full_rows) * (group.blocks - 1) + (block - group.first_block);
}

std::uint64_t Parity::parity_position(std::uint64_t block, std::uint64_t parity_packet,
                                      std::uint64_t data_packets) const {
  const Group group = group_of(block, data_packets);
  return group.first_data + group.first_block * code_.parity + group.data + parity_packet * group.blocks +
         (block - group.first_block);
}

// Groups without a loss, nearly all of them, cost only a look at their words.
Repair Parity::recover(const PacketMask& lost, const DrawAgain& /*draw_again*/, const LinkTiming& /*timing*/,
                       PacketMask& missing) const {
  const std::uint64_t n = missing.size();
  Repair repair;
  for (std::uint64_t first_block = 0; first_block < blocks(n); first_block += code_.depth) {
    const Group group = group_of(first_block, n);
    const std::uint64_t begin = group.first_data + first_block * code_.parity;
    if (!any_lost(lost, begin, begin + group.data + group.blocks * code_.parity)) continue;
    for (std::uint64_t block = first_block; block < first_block + group.blocks; ++block) {
      const std::uint64_t first = block * code_.data;
      const std::uint64_t end = first + block_data(block, n);
      std::uint64_t losses = 0;
      for (std::uint64_t i = first; i < end; ++i) losses += lost.lost(position(i, n)) ? 1 : 0;
      if (losses == 0) continue;
      repair.lost_data_packets += losses;
      for (std::uint64_t j = 0; j < code_.parity; ++j) losses += lost.lost(parity_position(block, j, n)) ? 1 : 0;
      if (losses <= code_.parity) continue;
      for (std::uint64_t i = first; i < end; ++i) {
        if (lost.lost(position(i, n))) missing.set_lost(i);
      }
    }
  }
  return repair;
}

// Expected number of data packets that a block keeps missing. The chain runs over the block's packets in the order in
// which they are on the link; between two of them lie `gap` packets' steps, over which the state forgets by memory^gap.
// For each state and number of losses so far (all above m are one) it carries the probability, and the expectation of
// the number of data packets lost on that event.
double Parity::missing_of_block(const LossChain& chain, std::uint64_t block, std::uint64_t data_packets) const {
  const std::uint64_t data = block_data(block, data_packets);
  const std::size_t most = code_.parity + 1;
  struct Cell {
    double probability = 0;
    double data_lost = 0;
  };
  using Row = std::vector<std::array<Cell, 2>>;
  Row row(most + 1);
  row[0][0].probability = 1 - chain.bad_share;
  row[0][1].probability = chain.bad_share;
  const std::array<double, 2> share = {1 - chain.bad_share, chain.bad_share};
  const std::array<double, 2> loss = {chain.loss_good, chain.loss_bad};
  std::uint64_t last = 0;
  for (std::uint64_t i = 0; i < data + code_.parity; ++i) {
    const bool is_data = i < data;
    const std::uint64_t at =
        is_data ? position(block * code_.data + i, data_packets) : parity_position(block, i - data, data_packets);
    const double kept = i == 0 ? 1 : std::pow(chain.memory, static_cast<double>(at - last));
    last = at;
    Row next(most + 1);
    for (std::size_t losses = 0; losses <= most; ++losses) {
      for (std::size_t from = 0; from < 2; ++from) {
        const Cell& cell = row[losses][from];
        if (cell.probability == 0) continue;
        for (std::size_t to = 0; to < 2; ++to) {
          const double step = (from == to ? kept : 0) + share[to] * (1 - kept);
          const double arrives = step * (1 - loss[to]);
          next[losses][to].probability += cell.probability * arrives;
          next[losses][to].data_lost += cell.data_lost * arrives;
          const double lost = step * loss[to];
          Cell& more = next[std::min(losses + 1, most)][to];
          more.probability += cell.probability * lost;
          more.data_lost += (cell.data_lost + (is_data ? cell.probability : 0)) * lost;
        }
      }
    }
    row = std::move(next);
  }
  return row[most][0].data_lost + row[most][1].data_lost;
}

std::optional<double> Parity::residual_rate(const LossProcess& process, std::uint64_t data_packets) const {
  const std::optional<LossChain> chain = process.chain();
  if (!chain.has_value()) return std::nullopt;
  if (data_packets == 0) return 0;
  // Blocks of a whole group are alike: all their neighbours are `depth` apart.
  const std::uint64_t whole = data_packets / (code_.data * code_.depth) * code_.depth;
  double missing = whole > 0 ? static_cast<double>(whole) * missing_of_block(*chain, 0, data_packets) : 0;
  for (std::uint64_t block = whole; block < blocks(data_packets); ++block) {
    missing += missing_of_block(*chain, block, data_packets);
  }
  return missing / static_cast<double>(data_packets);
}

std::optional<double> Parity::residual_rate(const LossProcess& process) const {
  return residual_rate(process, code_.data * code_.depth);
}

std::string Parity::describe() const {
  return "parity(data=" + std::to_string(code_.data) + ", parity=" + std::to_string(code_.parity) +
         (code_.depth == 1 ? "" : ", depth=" + std::to_string(code_.depth)) + ")";
}

}  // namespace droptest::sim
