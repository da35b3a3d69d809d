// SPDX-License-Identifier: Apache-2.0
#include "experiments/files/manifest.h"

#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "comm/json/json_text.h"
#include "comm/json/schema.h"
#include "experiments/files/crc32c.h"
#include "experiments/schema/schema_kinds.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using nlohmann::json;

/// Most elements of one piece, so that sums of offsets fit into 64 bits.
constexpr std::uint64_t kMostElems = std::uint64_t{1} << 48U;

std::string crc_of(const json& without) {
  const std::string text = comm::canonical_json(without);
  return crc_text(crc32c(std::as_bytes(std::span(text))));
}

json slice_json(const models::TensorSlice& slice) {
  json ranges = json::array();
  for (const models::IndexRange& range : slice.ranges) ranges.push_back({range.first, range.count});
  return {{"shape", slice.full_shape}, {"axis", slice.axis}, {"ranges", ranges}};
}

models::TensorSlice slice_from(const json& object, const std::string& where) {
  models::TensorSlice slice;
  slice.full_shape = object.at("shape").get<std::vector<std::uint64_t>>();
  slice.axis = object.at("axis");
  std::uint64_t elems = 1;
  for (const std::uint64_t extent : slice.full_shape) {
    if (extent != 0 && elems > kMostElems / extent) {
      throw ConfigError(where + "/shape: got " + comm::quote_json(object["shape"]) + ", want at most 2^48 elements");
    }
    elems *= extent;
  }
  if (slice.full_shape.size() > 2) {
    throw ConfigError(where + "/shape: got " + comm::quote_json(object["shape"]) + ", want one or two dimensions");
  }
  if (slice.axis >= slice.full_shape.size()) {
    throw ConfigError(where + "/axis: got " + std::to_string(slice.axis) + ", want one of " +
                      std::to_string(slice.full_shape.size()) + " dimensions");
  }
  std::uint64_t from = 0;
  for (const json& range : object.at("ranges")) {
    const models::IndexRange& added = slice.ranges.emplace_back(models::IndexRange{range.at(0), range.at(1)});
    const std::uint64_t extent = slice.full_shape[slice.axis];
    if (added.first < from || added.first > extent || added.count > extent - added.first) {
      throw ConfigError(where + "/ranges: got " + comm::quote_json(range) + ", want ascending ranges within " +
                        std::to_string(extent));
    }
    from = added.first + added.count;
  }
  return slice;
}

json piece_json(const StoredPiece& piece) {
  json object = slice_json(piece.slice);
  object.update({{"tensor", piece.tensor},
                 {"field", piece.field},
                 {"key", piece.key},
                 {"first", piece.first},
                 {"count", piece.count}});
  return object;
}

}  // namespace

std::string crc_text(std::uint32_t crc) {
  std::array<char, 9> text{};
  std::snprintf(text.data(), text.size(), "%08x", crc);
  return text.data();
}

json to_json(const RankFile& file) {
  json pieces = json::array();
  for (const StoredPiece& piece : file.pieces) pieces.push_back(piece_json(piece));
  json object = {{"rank", file.rank},       {"file", file.file},
                 {"bytes", file.bytes},     {"crc32c", crc_text(file.crc32c)},
                 {"numbers", file.numbers}, {"tensors", std::move(pieces)}};
  if (file.replica_of) object["replica_of"] = *file.replica_of;
  return object;
}

RankFile rank_file_from_json(const json& object, const std::string& where) {
  RankFile file;
  file.rank = object.at("rank");
  file.file = object.at("file");
  file.bytes = object.at("bytes");
  file.crc32c = static_cast<std::uint32_t>(std::stoul(object.at("crc32c").get<std::string>(), nullptr, 16));
  if (object.contains("replica_of")) file.replica_of = object["replica_of"].get<int>();
  file.numbers = object.at("numbers").get<std::map<std::string, std::uint64_t>>();
  std::size_t index = 0;
  for (const json& one : object.at("tensors")) {
    const std::string here = where + "/tensors/" + std::to_string(index++);
    StoredPiece piece{one.at("tensor"),      one.at("field"), one.at("key"),
                      slice_from(one, here), one.at("first"), one.at("count")};
    const std::uint64_t elems = piece.slice.local_elems();
    if (piece.first > elems || piece.count > elems - piece.first) {
      throw ConfigError(here + ": got elements " + std::to_string(piece.first) + " to " +
                        std::to_string(piece.first + piece.count) + ", want elements of a part of " +
                        std::to_string(elems));
    }
    file.pieces.push_back(std::move(piece));
  }
  return file;
}

std::string manifest_text(const Manifest& manifest) {
  json files = json::array();
  for (const RankFile& file : manifest.ranks) files.push_back(to_json(file));
  json order = json::array();
  for (const comm::ParallelDimension dimension : manifest.parallel.order) order.push_back(comm::name_of(dimension));
  json document = {{"schema_version", kCheckpointVersion},
                   {"step", manifest.step},
                   {"name", manifest.name},
                   {"run_id", manifest.run_id},
                   {"spec_sha256", manifest.spec_sha256},
                   {"epoch", manifest.membership},
                   {"parallel",
                    {{"data", manifest.parallel.data},
                     {"sequence", manifest.parallel.sequence},
                     {"pipeline", manifest.parallel.pipeline},
                     {"tensor", manifest.parallel.tensor},
                     {"order", std::move(order)}}},
                   {"epochs", manifest.memberships},
                   {"provenance", manifest.provenance},
                   {"ranks", std::move(files)}};
  if (!manifest.attention.empty()) document["attention"] = manifest.attention;
  if (manifest.is_rescue) document["is_rescue"] = true;
  document["crc32c"] = crc_of(document);
  comm::require_valid(schema_of(SchemaKind::kCheckpoint), document, "manifest.json");
  return document.dump(1) + "\n";
}

bool continues(const Manifest& manifest, const comm::ParallelLayout& layout) {
  return manifest.parallel == layout && !manifest.is_rescue;
}

Manifest parse_manifest(const std::string& text, const std::string& where, ManifestUse use) {
  json document = comm::parse_json(text, where);
  // The checksum comes first: a damaged file should not be reported as one of another version.
  if (!document.is_object() || !document.contains("crc32c") || !document["crc32c"].is_string()) {
    throw ConfigError(where + ": /crc32c: got none, want the checksum of a checkpoint's manifest");
  }
  const std::string stored = document["crc32c"];
  document.erase("crc32c");
  if (const std::string computed = crc_of(document); stored != computed) {
    throw ConfigError(where + ": /crc32c: got \"" + stored + "\", but the content has \"" + computed +
                      "\": the file is damaged");
  }
  document["crc32c"] = stored;
  comm::require_valid(schema_of(SchemaKind::kCheckpoint), document, where);
  if (const int version = document["schema_version"];
      use != ManifestUse::kParameters && version != kCheckpointVersion) {
    throw ConfigError(where + ": /schema_version: got " + std::to_string(version) + ", want " +
                      std::to_string(kCheckpointVersion) + " to go on from its state");
  }
  Manifest manifest;
  manifest.step = document["step"];
  manifest.name = document["name"];
  manifest.run_id = document["run_id"];
  manifest.spec_sha256 = document["spec_sha256"];
  manifest.attention = document.value("attention", "");
  manifest.membership = document["epoch"];
  manifest.memberships = document["epochs"];
  manifest.provenance = document["provenance"];
  manifest.is_rescue = document.value("is_rescue", false);
  const json& parallel = document["parallel"];
  for (const comm::ParallelDimension dimension : comm::kParallelDimensions) {
    manifest.parallel.of(dimension) = parallel[std::string(comm::name_of(dimension))];
  }
  if (parallel["order"].size() != manifest.parallel.order.size()) {
    throw ConfigError(where + ": /parallel/order: got " + comm::quote_json(parallel["order"]) +
                      ", want each dimension once");
  }
  for (std::size_t i = 0; i < manifest.parallel.order.size(); ++i) {
    for (const comm::ParallelDimension dimension : comm::kParallelDimensions) {
      if (comm::name_of(dimension) == parallel["order"][i]) manifest.parallel.order[i] = dimension;
    }
  }
  const int ranks = manifest.parallel.world_size();
  const std::size_t want = use == ManifestUse::kOwnState ? 1 : static_cast<std::size_t>(ranks);
  if (document["ranks"].size() != want) {
    throw ConfigError(where + ": /ranks: got " + std::to_string(document["ranks"].size()) + " ranks, want " +
                      std::to_string(want) + " of " + manifest.parallel.text());
  }
  for (std::size_t i = 0; i < want; ++i) {
    const auto rank = static_cast<int>(i);
    const std::string here = where + ": /ranks/" + std::to_string(rank);
    manifest.ranks.push_back(rank_file_from_json(document["ranks"][i], here));
    const RankFile& file = manifest.ranks.back();
    if (use == ManifestUse::kOwnState) {
      if (file.rank < 0 || file.rank >= ranks) {
        throw ConfigError(here + "/rank: got " + std::to_string(file.rank) + ", want a rank below " +
                          std::to_string(ranks));
      }
    } else if (file.rank != rank) {
      throw ConfigError(here + "/rank: got " + std::to_string(file.rank) + ", want " + std::to_string(rank));
    }
    if (file.replica_of && (*file.replica_of < 0 || *file.replica_of >= ranks)) {
      throw ConfigError(here + "/replica_of: got " + std::to_string(*file.replica_of) + ", want a rank below " +
                        std::to_string(ranks));
    }
  }
  return manifest;
}

}  // namespace droptest::experiments
