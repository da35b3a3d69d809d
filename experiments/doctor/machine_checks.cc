// SPDX-License-Identifier: Apache-2.0
#include "experiments/doctor/machine_checks.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>

#include "comm/backend_registry.h"
#include "comm/host_name.h"
#include "experiments/data/corpus.h"
#include "experiments/data/example_set.h"
#include "experiments/files/atomic_file.h"
#include "experiments/spec/pipeline_plan.h"
#include "experiments/training/layer_memory.h"
#include "experiments/training/memory_estimate.h"
#include "experiments/training/run_device.h"
#include "experiments/training/training_data.h"
#include "models/gpt2/planned_memory.h"
#include "models/ops/host_ops.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

/// Estimated bytes of a line of metrics.jsonl with all members.
constexpr std::uint64_t kMetricsLineBytes = 1024;
/// Estimated bytes of the other records of a run.
constexpr std::uint64_t kOtherRecordBytes = 64 * 1024;
/// Bytes of float weights, gradients and two moments.
constexpr double kTrainingBytesPerParameter = 16;
/// Finding "disk" is a warning if the results would leave less free space than this.
constexpr std::uint64_t kDiskMarginBytes = std::uint64_t{256} << 20;

/// The nearest folder on the way to `path` that exists.
std::filesystem::path nearest_existing(const std::string& path) {
  std::error_code error;
  std::filesystem::path place = std::filesystem::absolute(path, error);
  while (!std::filesystem::is_directory(place, error) && place.has_relative_path()) place = place.parent_path();
  return place;
}

struct AddressFree {
  void operator()(addrinfo* list) const { ::freeaddrinfo(list); }
};

/// The first address of a host's name, or the reason why there is none.
struct Resolved {
  std::string address;
  bool loopback = false;
  std::string error;
};

Resolved resolve_host(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int code = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (code != 0) return {"", false, ::gai_strerror(code)};
  const std::unique_ptr<addrinfo, AddressFree> list(found);
  std::array<char, INET6_ADDRSTRLEN> text{};
  Resolved resolved;
  if (list->ai_family == AF_INET) {
    const auto* address = reinterpret_cast<const sockaddr_in*>(list->ai_addr);
    ::inet_ntop(AF_INET, &address->sin_addr, text.data(), text.size());
    resolved.loopback = ntohl(address->sin_addr.s_addr) >> 24 == 127;
  } else {
    const auto* address = reinterpret_cast<const sockaddr_in6*>(list->ai_addr);
    ::inet_ntop(AF_INET6, &address->sin6_addr, text.data(), text.size());
    resolved.loopback = IN6_IS_ADDR_LOOPBACK(&address->sin6_addr) != 0;
  }
  resolved.address = text.data();
  return resolved;
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array kUnits = {"KiB", "MiB", "GiB", "TiB"};
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g %s", value, kUnits[unit]);
  return text.data();
}

Finding check_backend(const std::string& name) {
  const comm::BackendEntry& backend = comm::backend_entry(name);
  if (backend.built) return {"backend", "", Health::kOk, name + ": " + std::string(backend.summary), ""};
  return {"backend", "", Health::kFailed, name + " is not in this build",
          "use one of " + comm::built_backends_text() + ", or build with its libraries"};
}

Finding check_shards(const ShardedData& data) {
  const std::string seen = std::to_string(data.table().files().size()) +
                           " shards: " + std::to_string(data.table().samples()) + " samples to train on";
  if (data.damaged().empty()) return {"corpus", "", Health::kOk, seen, ""};
  const ShardFailure& first = data.damaged().front();
  return {"corpus", "", Health::kFailed,
          data.table().files()[first.shard].file + ": " + first.error + " (" + std::to_string(data.damaged().size()) +
              " of " + seen + ")",
          "mend the file; /data/lost_limit says how much a run may do without"};
}

Finding check_corpus(const RunConfig& config) {
  const std::string& file = config.data.text.empty() ? config.data.tokens : config.data.text;
  try {
    const Corpus corpus = load_corpus(config);
    if (corpus.examples != nullptr) {
      return {"corpus", "", Health::kOk,
              config.data.examples->training + ": " + std::to_string(corpus.examples->training.size()) +
                  " examples to train on, " + std::to_string(corpus.examples->validation.size()) + " to validate",
              ""};
    }
    if (corpus.shards != nullptr) return check_shards(*corpus.shards);
    return {"corpus", "", Health::kOk,
            file + ": " + std::to_string(corpus.training.size()) + " tokens to train on, " +
                std::to_string(corpus.validation.size()) + " to validate",
            ""};
  } catch (const ConfigError& error) {
    return {"corpus", "", Health::kFailed, error.what(),
            "paths are relative to where droptest is started (" + std::filesystem::current_path().string() +
                "); docs/formats.md says what a file holds"};
  }
}

std::optional<Finding> check_initial_weights(const RunConfig& config) {
  if (config.initial_weights.empty()) return std::nullopt;
  std::ifstream file(config.initial_weights, std::ios::binary);
  if (file.get() == std::ifstream::traits_type::eof()) {
    return Finding{"initial weights", "", Health::kFailed, config.initial_weights + ": cannot be read, or is empty",
                   "name a safetensors file that this machine has, or leave the weights random"};
  }
  return Finding{"initial weights", "", Health::kOk, config.initial_weights + ": can be read", ""};
}

Finding check_results(const std::string& directory) {
  Finding finding{"results", "", Health::kOk, "files can be written to " + directory, ""};
  try {
    const std::string probe = directory + "/.doctor-" + std::to_string(::getpid());
    write_file_atomically(probe, "droptest doctor\n");
    std::filesystem::remove(probe);
  } catch (const std::exception& error) {
    finding = {"results", "", Health::kFailed, error.what(), "name another folder with --out, or mend its permissions"};
  }
  return finding;
}

std::uint64_t record_bytes(const RunConfig& config) {
  std::uint64_t bytes = kOtherRecordBytes + config.training.steps / config.record.every_steps * kMetricsLineBytes;
  return bytes + kept_weights_bytes(config);
}

std::uint64_t kept_weights_bytes(const RunConfig& config) {
  if (config.record.weights == RecordConfig::Weights::kNone) return 0;
  return sizeof(float) * models::parameter_count(config.model);
}

Finding check_disk(const std::string& directory, std::uint64_t wanted_bytes) {
  const std::filesystem::path place = nearest_existing(directory);
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(place, error);
  if (error) {
    return {"disk", "", Health::kWarning, place.string() + ": " + error.message(), "look at it with df"};
  }
  const std::string seen =
      bytes_text(space.available) + " free at " + place.string() + ", records take about " + bytes_text(wanted_bytes);
  const std::string advice = "make room, name another folder with --out, or keep no weights (/record/weights)";
  if (space.available < wanted_bytes) return {"disk", "", Health::kFailed, seen, advice};
  if (space.available - wanted_bytes < kDiskMarginBytes) return {"disk", "", Health::kWarning, seen, advice};
  return {"disk", "", Health::kOk, seen, ""};
}

std::uint64_t least_memory_bytes(const RunConfig& config, const RanksHere& here) {
  std::error_code ignored;
  const std::string& file = config.data.text.empty() ? config.data.tokens : config.data.text;
  const std::uintmax_t file_bytes = std::filesystem::file_size(file, ignored);
  // A text's bytes become tokens of two bytes each.
  const std::uint64_t corpus_bytes = ignored || config.data.shards ? 0
                                     : config.data.text.empty()    ? file_bytes
                                                                   : 2 * file_bytes;
  models::HostOpsOptions options;
  options.threads = config.backend.threads_per_rank;
  if (config.device == Device::kCpu) options.kernels = config.kernels;
  const std::unique_ptr<models::OpsForm> form = models::host_ops_form(options, config.parallel.tensor);
  const auto plan = pipeline_plan(config);
  const LazyDryRun run(config);
  const std::uint64_t remembered = layer_memory(config, run).remembered;
  double of_rank = 0;  // bytes of the pipeline's rank with the most
  for (int p = 0; p < config.parallel.pipeline; ++p) {
    std::uint64_t bytes = remembered + models::state_use(tensors_of_rank(config, p, 0), *form, config.sharding,
                                                         config.parallel.gradient_ranks(), 0, config.training.optimizer)
                                           .total();
    if (config.device == Device::kCpu) {
      bytes += largest_activation_bytes(config, *form, plan.get(), run, p);
    }
    of_rank = std::max(of_rank, static_cast<double>(bytes));
  }
  const double bytes = here.ranks * of_rank + static_cast<double>(here.processes) * static_cast<double>(corpus_bytes);
  return static_cast<std::uint64_t>(std::min(bytes, 0x1p63));
}

Finding check_memory(std::uint64_t least_bytes, std::optional<std::uint64_t> available) {
  const std::string least = "weights, gradients, moments, activations and data take " + bytes_text(least_bytes);
  if (!available)
    return {"memory", "", Health::kWarning, "the free memory is not known; " + least, "look at it with free"};
  const std::string seen = bytes_text(*available) + " free; " + least;
  if (*available < least_bytes) {
    return {"memory", "", Health::kFailed, seen, "take a smaller model, or a machine with more memory"};
  }
  if (*available / 2 < least_bytes) {
    return {"memory", "", Health::kWarning, seen, "keep the batch small, and run one run at a time (sweep --jobs 1)"};
  }
  return {"memory", "", Health::kOk, seen, ""};
}

std::optional<std::uint64_t> meminfo_bytes(std::string_view meminfo, std::string_view key) {
  const std::size_t place = meminfo.find(key);
  if (place == std::string_view::npos) return std::nullopt;
  meminfo.remove_prefix(place + key.size());
  meminfo.remove_prefix(std::min(meminfo.find_first_not_of(' '), meminfo.size()));
  std::uint64_t kibibytes = 0;
  const auto [end, error] = std::from_chars(meminfo.data(), meminfo.data() + meminfo.size(), kibibytes);
  if (error != std::errc() || !std::string_view(end, meminfo.data() + meminfo.size()).starts_with(" kB")) {
    return std::nullopt;
  }
  return kibibytes * 1024;
}

std::optional<std::uint64_t> memory_limit_bytes(std::string_view cgroups, const std::string& root) {
  std::optional<std::uint64_t> smallest;
  const auto look = [&smallest](const std::filesystem::path& file) {
    std::ifstream stream(file);
    std::uint64_t limit = 0;
    if (stream >> limit) smallest = std::min(limit, smallest.value_or(limit));  // "max" is no number
  };
  std::istringstream lines{std::string(cgroups)};
  for (std::string line; std::getline(lines, line);) {
    // "0::/job" is version 2; "4:memory:/job" is version 1, in which each controller has a tree.
    const std::size_t controllers = line.find(':');
    const std::size_t path = controllers == std::string::npos ? controllers : line.find(':', controllers + 1);
    if (path == std::string::npos) continue;
    const std::string names = "," + line.substr(controllers + 1, path - controllers - 1) + ",";
    const bool second = names == ",,";
    if (!second && names.find(",memory,") == std::string::npos) continue;
    const std::filesystem::path tree = second ? root : root + "/memory";
    const char* file = second ? "memory.max" : "memory.limit_in_bytes";
    std::filesystem::path place = line.substr(path + 1);
    for (;; place = place.parent_path()) {
      look(tree / place.relative_path() / file);
      if (!place.has_relative_path()) break;
    }
  }
  return smallest;
}

namespace {

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::optional<std::uint64_t> memory_bytes(std::string_view key) {
  const std::optional<std::uint64_t> machine = meminfo_bytes(text_of("/proc/meminfo"), key);
  const std::optional<std::uint64_t> limit = memory_limit_bytes(text_of("/proc/self/cgroup"), "/sys/fs/cgroup");
  if (!machine || !limit) return machine ? machine : limit;
  return std::min(*machine, *limit);
}

}  // namespace

std::optional<std::uint64_t> available_memory_bytes() { return memory_bytes("MemAvailable:"); }

std::optional<std::uint64_t> total_memory_bytes() { return memory_bytes("MemTotal:"); }

Finding check_host_name(OtherMachines others) {
  const std::string host = comm::host_name();
  const Resolved resolved = resolve_host(host);
  const bool reachable = resolved.error.empty() && !resolved.loopback;
  const std::string seen = resolved.error.empty()
                               ? host + " is " + resolved.address
                               : host + " does not resolve (" + resolved.error + "): 127.0.0.1 is used";
  if (reachable || others == OtherMachines::kNone) return {std::string(kHostNameCheck), "", Health::kOk, seen, ""};
  return {std::string(kHostNameCheck), "", Health::kWarning,
          seen + (resolved.loopback ? ", which other machines cannot reach" : ""),
          "where ranks run on several machines, give the name its network address in /etc/hosts or DNS"};
}

}  // namespace droptest::experiments
