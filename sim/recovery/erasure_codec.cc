// SPDX-License-Identifier: Apache-2.0
#include "sim/recovery/erasure_codec.h"

#include <isa-l/erasure_code.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "sim/error.h"

namespace droptest::sim {
namespace {

// ISA-L's expanded multiplication tables: 32 bytes per coefficient.
constexpr std::size_t kTableBytes = 32;

// to[i] = sum over j of coefficients[i][j] * from[j] in GF(2^8). ISA-L takes its inputs as not const, and reads them.
void multiply(std::vector<std::uint8_t> coefficients, const std::vector<std::uint8_t*>& from,
              const std::vector<std::uint8_t*>& to, std::size_t packet_bytes) {
  const auto inputs = static_cast<int>(from.size());
  const auto outputs = static_cast<int>(to.size());
  std::vector<std::uint8_t> tables(kTableBytes * from.size() * to.size());
  ec_init_tables(inputs, outputs, coefficients.data(), tables.data());
  std::vector<std::uint8_t*> in = from;
  std::vector<std::uint8_t*> out = to;
  ec_encode_data(static_cast<int>(packet_bytes), inputs, outputs, tables.data(), in.data(), out.data());
}

std::uint8_t* bytes_of(const std::byte* packet) {
  return const_cast<std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(packet));  // NOLINT: see multiply()
}

void check_size(std::size_t packet_bytes) {
  DROPTEST_CHECK(packet_bytes < (std::size_t{1} << 31), "a packet of " + std::to_string(packet_bytes) + " bytes");
}

}  // namespace

ErasureCodec::ErasureCodec(const ParityCode& code) : code_(Parity(code).code()) {
  const auto k = static_cast<std::size_t>(code.data);
  const auto m = static_cast<std::size_t>(code.parity);
  matrix_.resize((k + m) * k);
  gf_gen_cauchy1_matrix(matrix_.data(), static_cast<int>(k + m), static_cast<int>(k));
  if (m == 1) std::fill(matrix_.begin() + static_cast<std::ptrdiff_t>(k * k), matrix_.end(), std::uint8_t{1});
}

// The matrix of a block of fewer data packets: the same with the columns of the absent ones, which are zeros, left out.
std::vector<std::uint8_t> ErasureCodec::rows_of(std::size_t data) const {
  const auto k = static_cast<std::size_t>(code_.data);
  std::vector<std::uint8_t> rows((data + code_.parity) * data);
  for (std::size_t i = 0; i < data + code_.parity; ++i) {
    const std::size_t row = i < data ? i : k + (i - data);
    std::copy_n(matrix_.begin() + static_cast<std::ptrdiff_t>(row * k), data,
                rows.begin() + static_cast<std::ptrdiff_t>(i * data));
  }
  return rows;
}

void ErasureCodec::encode(std::span<const std::byte* const> data, std::span<std::byte* const> parity,
                          std::size_t packet_bytes) const {
  DROPTEST_CHECK(!data.empty() && data.size() <= code_.data && parity.size() == code_.parity,
                 std::to_string(data.size()) + " data and " + std::to_string(parity.size()) + " parity packets");
  check_size(packet_bytes);
  const std::vector<std::uint8_t> rows = rows_of(data.size());
  std::vector<std::uint8_t*> from;
  std::vector<std::uint8_t*> to;
  for (const std::byte* packet : data) from.push_back(bytes_of(packet));
  for (std::byte* packet : parity) to.push_back(bytes_of(packet));
  multiply({rows.begin() + static_cast<std::ptrdiff_t>(data.size() * data.size()), rows.end()}, from, to, packet_bytes);
}

// The first k' packets that arrived are rows of the matrix times the data; the inverse of those rows gives the data
// back, of which only the lost packets are computed.
bool ErasureCodec::decode(std::span<std::byte* const> data, std::span<const std::byte* const> parity,
                          const std::vector<bool>& lost, std::size_t packet_bytes) const {
  const std::size_t k = data.size();
  DROPTEST_CHECK(k >= 1 && k <= code_.data && parity.size() == code_.parity && lost.size() == k + parity.size(),
                 std::to_string(k) + " data and " + std::to_string(parity.size()) + " parity packets, " +
                     std::to_string(lost.size()) + " fates");
  check_size(packet_bytes);
  if (static_cast<std::uint64_t>(std::count(lost.begin(), lost.end(), true)) > code_.parity) return false;
  const std::vector<std::uint8_t> rows = rows_of(k);
  std::vector<std::uint8_t> arrived;
  std::vector<std::uint8_t*> from;
  std::vector<std::uint8_t*> to;
  std::vector<std::size_t> wanted;
  for (std::size_t i = 0; i < lost.size(); ++i) {
    if (lost[i] && i < k) {
      wanted.push_back(i);
      to.push_back(bytes_of(data[i]));
    } else if (!lost[i] && from.size() < k) {
      arrived.insert(arrived.end(), rows.begin() + static_cast<std::ptrdiff_t>(i * k),
                     rows.begin() + static_cast<std::ptrdiff_t>((i + 1) * k));
      from.push_back(bytes_of(i < k ? data[i] : parity[i - k]));
    }
  }
  if (wanted.empty()) return true;
  std::vector<std::uint8_t> inverse(k * k);
  const int singular = gf_invert_matrix(arrived.data(), inverse.data(), static_cast<int>(k));
  DROPTEST_CHECK(singular == 0, "a Cauchy matrix has no singular part");
  std::vector<std::uint8_t> coefficients;
  for (const std::size_t i : wanted) {
    coefficients.insert(coefficients.end(), inverse.begin() + static_cast<std::ptrdiff_t>(i * k),
                        inverse.begin() + static_cast<std::ptrdiff_t>((i + 1) * k));
  }
  multiply(std::move(coefficients), from, to, packet_bytes);
  return true;
}

}  // namespace droptest::sim
