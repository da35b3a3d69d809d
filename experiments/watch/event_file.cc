// SPDX-License-Identifier: Apache-2.0
#include "experiments/watch/event_file.h"

#include <bit>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "experiments/files/crc32c.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

/// Fields of a protocol buffer, encoded in the order of the calls. Source: protobuf.dev, "Encoding".
class ProtoFields {
 public:
  ProtoFields& number(int field, std::uint64_t value) {
    key(field, 0);
    varint(value);
    return *this;
  }
  ProtoFields& real(int field, double value) {
    key(field, 1);
    little_endian(std::bit_cast<std::uint64_t>(value), 8);
    return *this;
  }
  ProtoFields& real32(int field, float value) {
    key(field, 5);
    little_endian(std::bit_cast<std::uint32_t>(value), 4);
    return *this;
  }
  ProtoFields& bytes(int field, std::string_view value) {
    key(field, 2);
    varint(value.size());
    data_ += value;
    return *this;
  }
  const std::string& data() const { return data_; }

 private:
  void key(int field, int wire_type) {
    varint((static_cast<std::uint64_t>(field) << 3U) | static_cast<std::uint64_t>(wire_type));
  }
  void varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7U) data_ += static_cast<char>(value | 0x80U);
    data_ += static_cast<char>(value);
  }
  void little_endian(std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) data_ += static_cast<char>(value >> (8U * static_cast<unsigned>(i)));
  }
  std::string data_;
};

std::string little_endian_text(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8U * static_cast<unsigned>(i)));
  return text;
}

/// The CRC of data that hold CRCs would be weak without the mask.
std::string masked_crc(std::string_view data) {
  const std::uint32_t crc = crc32c(std::as_bytes(std::span(data)));
  return little_endian_text(std::rotr(crc, 15) + 0xa282ead8U, 4);
}

/// A double out of the range of float is infinite there, by IEEE 754.
float to_float(double value) {
  if (std::isfinite(value) && std::abs(value) > std::numeric_limits<float>::max()) {
    return std::copysign(std::numeric_limits<float>::infinity(), static_cast<float>(value > 0 ? 1 : -1));
  }
  return static_cast<float>(value);
}

std::string hparam_value(const json& value) {
  ProtoFields fields;
  if (value.is_boolean()) return fields.number(4, value.get<bool>() ? 1 : 0).data();
  if (value.is_number()) return fields.real(2, value.get<double>()).data();
  DROPTEST_CHECK(value.is_string(), "a hyperparameter is a number, a string or a boolean");
  return fields.bytes(3, value.get_ref<const std::string&>()).data();
}

}  // namespace

std::string framed_record(std::string_view data) {
  const std::string length = little_endian_text(data.size(), 8);
  return length + masked_crc(length) + std::string(data) + masked_crc(data);
}

std::string version_event(double wall_time) {
  return ProtoFields().real(1, wall_time).bytes(3, "brain.Event:2").data();
}

void SummaryEvent::add_scalar(std::string_view tag, double value) {
  const std::string scalar = ProtoFields().bytes(1, tag).real32(2, to_float(value)).data();
  values_ += ProtoFields().bytes(1, scalar).data();
}

void SummaryEvent::add_histogram(std::string_view tag, std::span<const HistogramBucket> buckets) {
  double count = 0;
  double sum = 0;
  double sum_squares = 0;
  std::string limit_bytes;
  std::string count_bytes;
  const auto append = [](std::string& bytes, double value) {
    bytes += little_endian_text(std::bit_cast<std::uint64_t>(value), 8);
  };
  // Readers draw a bucket from the limit before: each value lies in the middle of its bucket.
  double last = buckets.empty() ? 0 : buckets.front().value - 0.5;
  append(limit_bytes, last);
  append(count_bytes, 0);
  for (const HistogramBucket& bucket : buckets) {
    count += bucket.count;
    sum += bucket.count * bucket.value;
    sum_squares += bucket.count * bucket.value * bucket.value;
    if (bucket.value - 0.5 > last) {
      append(limit_bytes, bucket.value - 0.5);
      append(count_bytes, 0);
    }
    last = bucket.value + 0.5;
    append(limit_bytes, last);
    append(count_bytes, bucket.count);
  }
  const std::string histogram = ProtoFields()
                                    .real(1, buckets.empty() ? 0 : buckets.front().value)
                                    .real(2, buckets.empty() ? 0 : buckets.back().value)
                                    .real(3, count)
                                    .real(4, sum)
                                    .real(5, sum_squares)
                                    .bytes(6, limit_bytes)
                                    .bytes(7, count_bytes)
                                    .data();
  values_ += ProtoFields().bytes(1, ProtoFields().bytes(1, tag).bytes(5, histogram).data()).data();
}

void SummaryEvent::add_session_start(const json& values, std::string_view group) {
  ProtoFields start;
  for (const auto& [name, value] : values.items()) {
    start.bytes(1, ProtoFields().bytes(1, name).bytes(2, hparam_value(value)).data());
  }
  start.bytes(4, group).real(5, wall_time_);
  add_hparams("session_start_info", ProtoFields().bytes(3, start.data()).data());
}

void SummaryEvent::add_session_end(SessionStatus status) {
  const std::string end = ProtoFields().number(1, static_cast<std::uint64_t>(status)).real(2, wall_time_).data();
  add_hparams("session_end_info", ProtoFields().bytes(4, end).data());
}

void SummaryEvent::add_hparams(std::string_view name, std::string_view content) {
  const std::string plugin = ProtoFields().bytes(1, "hparams").bytes(2, content).data();
  // Readers leave out a value without a tensor, even if it has metadata.
  const std::string tensor = ProtoFields().number(1, 1).bytes(2, "").bytes(5, std::string(4, '\0')).data();
  values_ += ProtoFields()
                 .bytes(1, ProtoFields()
                               .bytes(1, "_hparams_/" + std::string(name))
                               .bytes(8, tensor)
                               .bytes(9, ProtoFields().bytes(1, plugin).data())
                               .data())
                 .data();
}

std::string SummaryEvent::data() const {
  ProtoFields event;
  event.real(1, wall_time_);
  if (step_ != 0) event.number(2, step_);
  return event.bytes(5, values_).data();
}

}  // namespace droptest::experiments
