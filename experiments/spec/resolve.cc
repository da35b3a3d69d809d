// SPDX-License-Identifier: Apache-2.0
#include "experiments/spec/resolve.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "comm/device/device_info.h"
#include "comm/json/json_text.h"
#include "comm/spec/resolve_network.h"
#include "comm/spec/resolve_time.h"
#include "experiments/process/program_path.h"
#include "experiments/schema/schema_kinds.h"
#include "experiments/spec/choose_paths.h"
#include "experiments/spec/common_members.h"
#include "experiments/spec/dry_run.h"
#include "experiments/spec/idle_protection.h"
#include "experiments/spec/index_space.h"
#include "experiments/spec/numerics_version.h"
#include "experiments/spec/odd_schedule.h"
#include "experiments/spec/pipeline_plan.h"
#include "experiments/spec/read_resolved.h"
#include "experiments/spec/resolve_command.h"
#include "experiments/spec/resolve_data.h"
#include "experiments/spec/resolve_examples.h"
#include "experiments/spec/resolve_failures.h"
#include "experiments/spec/resolve_kernels.h"
#include "experiments/spec/resolve_memory.h"
#include "experiments/spec/resolve_outer.h"
#include "experiments/spec/resolve_parallel.h"
#include "experiments/spec/resolve_precision.h"
#include "experiments/spec/resolve_pretrained.h"
#include "experiments/spec/resolve_start.h"
#include "experiments/spec/resolve_tensor_rules.h"
#include "experiments/spec/run_id.h"
#include "experiments/spec/value_classes.h"
#include "models/gpt2/shard_plan.h"
#include "sim/error.h"

namespace droptest::experiments {
namespace {

using comm::quote_json;
using nlohmann::json;

/// Looked up once, so that a spec resolves to the same run for as long as a program runs.
bool some_device_answers() {
  static const bool answers = comm::survey_devices().absence.empty();
  return answers;
}

int to_int(const json& value) { return value.get<int>(); }  // the schema's maxima are below 2^31

/// Whether a rank can lose its own part of a gather.
bool loses_own_parts(const comm::ClassNetwork& network, comm::NetworkUse use) {
  const bool can_lose =
      network.gather.loss != nullptr || !network.gather.links.empty() || use == comm::NetworkUse::kDeadline;
  const bool by_sized_path = std::any_of(network.sized_paths.begin(), network.sized_paths.end(),
                                         [](const comm::SizedPath& sized) { return sized.path == "contribution"; });
  return can_lose &&
         (network.consistency == comm::Consistency::kShared || network.path == "contribution" || by_sized_path);
}

std::vector<sim::TrafficClass> named_classes(const json& network) {
  std::vector<sim::TrafficClass> named;
  for (const sim::TrafficClass of : sim::kAllTrafficClasses) {
    if (network.value("classes", json::object()).contains(sim::traffic_class_name(of))) named.push_back(of);
  }
  return named;
}

class Resolver {
 public:
  Resolver(const json& document, const std::string& where, FileHashes* files, NumericsUse use)
      : where_(where),
        given_(document),
        files_(files),
        use_(use),
        full_(schema_of(SchemaKind::kSpec).with_defaults(document)) {}

  ResolvedRun resolve() {
    refuse_several_runs(full_, where_, errors_);
    config_.seeds = resolve_seeds(full_, given_, where_, errors_);
    resolve_model();
    resolve_device();
    resolve_kernels(full_, where_, files_, config_, errors_);
    resolve_data();
    check_attention();
    resolve_training();
    if (full_.contains("start")) {
      resolve_file("start", "manifest");
      if (errors_.empty() && files_ != nullptr) resolve_start(full_, where_, errors_);
    }
    if (errors_.empty()) {
      resolve_stages(full_["parallel"], to_int(full_["training"]["accumulation"]), where_, config_, errors_);
    }
    if (config_.parallel.pipeline > 1) comm::require_none(errors_);  // the rest reads the stages
    resolve_failures(full_, where_, config_, errors_);
    resolve_outer(full_, where_, config_, errors_);
    resolve_elastic(full_, where_, config_, errors_);
    if (errors_.empty()) resolve_memory(full_, where_, config_, errors_);
    resolve_network_section();
    if (errors_.empty()) {
      const bool has_deadline = comm::network_use(full_.value("time", json())) == comm::NetworkUse::kDeadline;
      check_memory(given_, where_, config_, has_deadline, errors_);
    }
    check_alerts();
    check_profile();
    resolve_time_section();
    if (errors_.empty()) resolve_quorum(full_, where_, config_, errors_);
    check_repetitions();
    comm::require_none(errors_);
    ResolvedRun run;
    run.config = std::move(config_);
    read_resolved(full_, run.config);
    resolve_default_attention(full_, where_, run.config, errors_);
    check_indices(run.config);
    resolve_numerics(run.config);
    comm::require_none(errors_);
    run.spec = full_;
    run.run_id = run_id_of(run.spec);
    if (run.config.elastic) {
      for (int data = run.config.elastic->min_data; data <= run.config.elastic->max_data; ++data) {
        (void)with_replicas(run, data);
      }
    } else if (run.config.full_data) {
      for (const ReplicaAbsence& absence : run.config.failures->replicas) {
        for (const std::uint64_t step : {absence.first_without(), absence.until.value_or(absence.first_without())}) {
          const std::vector<int> absent = absent_replicas(run.config.failures->replicas, step);
          (void)with_replicas(run, run.config.parallel.data - static_cast<int>(absent.size()));
        }
      }
    }
    const json network = given_.value("network", json::object());
    run.warnings = idle_network(network, classes_with_network(*shared_dry_run(full_, run.config), run.config),
                                comm::network_use(full_.value("time", json())));
    const std::vector<Warning> of_protection = idle_protection(network, run.config);
    run.warnings.insert(run.warnings.end(), of_protection.begin(), of_protection.end());
    const std::vector<Warning> of_values = zeroed_values(network, run.config);
    run.warnings.insert(run.warnings.end(), of_values.begin(), of_values.end());
    const std::vector<Warning> of_rates = odd_schedule(run.config);
    run.warnings.insert(run.warnings.end(), of_rates.begin(), of_rates.end());
    return run;
  }

 private:
  void report(const std::string& pointer, const std::string& message) {
    errors_.push_back(where_ + ": " + pointer + ": " + message);
  }

  void resolve_numerics(const RunConfig& config) {
    const Numerics numerics = numerics_of(config);
    const int given = full_.value("numerics_version", numerics.version);
    const bool can_read = use_ == NumericsUse::kToRead && given <= kNewestNumerics;
    if (given != numerics.version && !can_read) {
      const std::string version = std::to_string(numerics.version);
      report(
          "/numerics_version",
          "got " + std::to_string(given) + ", but this droptest has version " + version +
              (given < numerics.version ? " for a spec with " + std::string(numerics.changed) : " for this spec") +
              ", which gives other losses or times: use the commit that summary.json names, or leave this member out");
    }
    full_["numerics_version"] = given;
  }

  /// Writes the hash of the file that the section's member `path` names, next to it.
  void resolve_file(const std::string& section_name, const char* path) {
    json& section = full_[section_name];
    const std::string pointer = "/" + section_name + "/";
    if (!section.contains(path)) {
      if (section.contains("sha256")) report(pointer + "sha256", "got a hash without a file, want no hash");
      return;
    }
    if (files_ == nullptr) return;
    const std::string file = section[path].get<std::string>();
    try {
      const std::string& hash = files_->of(file);
      if (section.contains("sha256") && section["sha256"] != hash) {
        report(pointer + "sha256", "got " + section["sha256"].dump() + ", but " + file + " has \"" + hash +
                                       "\"; want the file that was meant, or no hash");
      }
      section["sha256"] = hash;
    } catch (const ConfigError& error) {
      report(pointer + path,
             std::string(error.what()) + "; paths are relative to " + std::filesystem::current_path().string());
    }
  }

  void resolve_model() {
    resolve_pretrained(full_, given_, where_, files_, errors_);
    json& model = full_["model"];
    const models::Gpt2Config preset = models::gpt2_preset(model["preset"].get<std::string>()).config;
    model.erase("preset");
    const auto number = [&model](const char* name, int from_preset) {
      if (!model.contains(name)) model[name] = from_preset;
      return to_int(model[name]);
    };
    models::Gpt2Config& config = config_.model;
    config.layers = number("layers", preset.layers);
    config.width = number("width", preset.width);
    config.heads = number("heads", preset.heads);
    config.context = number("context", preset.context);
    config.vocabulary = number("vocabulary", preset.vocabulary);
    resolve_attention(model);
    config_.initial_weights = model.value("weights", model.value("pretrained", ""));
    if (!model.contains("pretrained")) resolve_file("model", "weights");
    resolve_parallel(full_["parallel"], given_.value("parallel", json::object()), where_, config_, errors_);

    const std::size_t before = errors_.size();
    if (config.width % config.heads != 0) {
      report("/model/heads",
             "got " + std::to_string(config.heads) + ", want a divisor of the width " + std::to_string(config.width));
    }
    const auto at_most = [this](const char* what, int most) {
      if (config_.parallel.tensor <= most) return;
      report("/parallel/tensor", "got " + std::to_string(config_.parallel.tensor) + ", want at most " +
                                     std::to_string(most) + ", the model's " + what);
    };
    at_most("heads", config.heads);
    at_most("vocabulary", config.vocabulary);
    if (errors_.size() > before) return;
    try {
      models::validate(config, config_.parallel.tensor);
    } catch (const ConfigError& error) {
      report("/model", error.what());
    }
  }

  /// Dense attention needs no entry.
  void resolve_attention(json& model) {
    if (!model.contains("attention")) return;
    const json attention = model["attention"];
    const bool is_dilated = attention.value("kind", "dense") == "dilated";
    for (const char* of_dilated : {"branches", "gradient"}) {
      if (is_dilated || !given_["model"]["attention"].contains(of_dilated)) continue;
      report(std::string("/model/attention/") + of_dilated,
             "got " + quote_json(attention[of_dilated]) + R"(, want it absent, or /model/attention/kind "dilated")");
    }
    if (!is_dilated) {
      model.erase("attention");
      return;
    }
    models::AttentionOptions& options = config_.model.attention;
    if (attention.value("gradient", "exact") == "stopped") options.gradient = models::BranchGradient::kStopped;
    for (const json& branch : attention.value("branches", json::array())) {
      options.branches.push_back({branch["segment"].get<std::int64_t>(), branch["dilation"].get<std::int64_t>()});
    }
    try {
      models::validate(options.branches);
    } catch (const ConfigError& error) {
      report("/model/attention/branches", error.what());
      options.branches.clear();
    }
  }

  static constexpr const char* kStateful =
      " with attention over sequence ranks (/parallel/sequence), within documents (/data/documents), dilated "
      "(/model/attention) or in chunks (/memory/attention_chunk), ";

  /// Attention that has state has one implementation.
  void check_attention() {
    models::AttentionOptions& attention = config_.model.attention;
    const json memory = full_.value("memory", json());
    if (memory.is_object()) attention.chunk_tokens = memory.value("attention_chunk", 0);
    if (attention.is_stateful() && !is_default_attention(config_)) {
      report("/kernels/attention", "got " + quote_json(full_["kernels"]["attention"]) + kStateful +
                                       "which has one implementation; want it absent");
    }
  }

  /// "auto" becomes the device that it means on this machine; the CPU needs no entry.
  void resolve_device() {
    const std::string wanted = full_.value("device", "cpu");
    const std::string backend = full_["backend"]["name"].get<std::string>();
    // NCCL has no choice, and sockets have none either: they carry host memory.
    const bool only_cuda = backend == "nccl";
    const bool only_cpu = backend == "gloo" || backend == "udp";
    const bool cuda = wanted == "cuda" || (wanted == "auto" && !only_cpu && (only_cuda || some_device_answers()));
    if (only_cuda && !cuda) {
      report("/device", R"(got "cpu", want "cuda" with backend "nccl", whose ranks are GPUs)");
    }
    if (only_cpu && cuda) {
      report("/backend/name", "got " + quote_json(full_["backend"]["name"]) +
                                  R"( with device "cuda", but it carries host memory alone; want "local" or "nccl")");
    }
    full_.erase("device");
    if (cuda) full_["device"] = "cuda";
    config_.device = cuda ? Device::kCuda : Device::kCpu;
  }

  void resolve_data() {
    json& data = full_["data"];
    const bool text_shards = data.contains("shards") && data["format"] == "text";
    const bool one_file = !data.contains("shards") && !data.contains("examples");
    if (one_file) resolve_file("data", data.contains("text") ? "text" : "tokens");
    resolve_shards(full_, given_, where_, files_, errors_);
    resolve_documents(data);
    resolve_examples(full_, given_, where_, files_, config_, errors_);
    if (errors_.empty() && files_ != nullptr) {
      check_stored_head(full_, where_, config_, errors_);
      check_data_of_pretrained(full_, where_, errors_);
    }
    // A text has no layout of token files.
    if (data.contains("text")) data.erase("format");
    if ((data.contains("text") || text_shards) && config_.model.vocabulary < 256) {
      report("/model/vocabulary", "got " + std::to_string(config_.model.vocabulary) +
                                      ", want at least 256, a token for each byte of " +
                                      (text_shards ? "data.shards" : "data.text"));
    }
  }

  void resolve_documents(json& data) {
    constexpr int kEndOfText = 50256;
    if (data["documents"] == false) {
      data.erase("documents");
      if (!data.contains("end_of_text")) return;
      report("/data/end_of_text",
             "got " + quote_json(data["end_of_text"]) + ", want it absent, or /data/documents true");
      return;
    }
    const bool is_text = data.contains("text") || data["format"] == "text";
    if (!data.contains("end_of_text") && !is_text) data["end_of_text"] = kEndOfText;
    if (!data.contains("end_of_text") || to_int(data["end_of_text"]) >= config_.model.vocabulary) {
      report("/data/end_of_text",
             (data.contains("end_of_text") ? "got " + quote_json(data["end_of_text"]) : "is missing") +
                 ", want a token below the vocabulary " + std::to_string(config_.model.vocabulary) +
                 ", which ends each document");
      return;
    }
    config_.model.attention.within = models::AttentionOptions::Within::kDocument;
  }

  void resolve_training() {
    json& training = full_["training"];
    const int context = config_.model.context;
    if (!training.contains("sequence_tokens")) training["sequence_tokens"] = context;
    if (to_int(training["sequence_tokens"]) > context) {
      report("/training/sequence_tokens", "got " + quote_json(training["sequence_tokens"]) + ", want at most " +
                                              std::to_string(context) + ", the model's context");
    }
    resolve_precision(training, config_.device, where_, errors_);
    resolve_batch(training);
    resolve_optimizer(training);
    resolve_dropout(training);
    resolve_tensor_rules(full_, given_, where_, config_, errors_);
    config_.sharding.micro_batches = to_int(training["accumulation"]);
    if (training["gradient_norm"] == "own" && config_.sharding.shards_state()) {
      report("/training/gradient_norm", R"(got "own", want "agreed" with /parallel/zero )" +
                                            std::to_string(config_.sharding.zero) +
                                            ", where no replica has all gradients");
    }
    if (training["gradient_norm"] == "agreed" || config_.parallel.gradient_ranks() == 1)
      training.erase("gradient_norm");
    if (config_.sharding.micro_batches == 1) {
      config_.sharding.reduce = models::ShardOptions::Reduce::kAfterLast;
      full_["parallel"].erase("reduce");
    }
    resolve_epochs(full_, given_, where_, config_.parallel.data, errors_);
    resolve_schedule(full_, given_, where_, errors_);
  }

  void resolve_optimizer(json& training) {
    const bool is_sgd = training["optimizer"] == "sgd";
    const json given = given_.value("training", json::object());
    const models::OptimizerConfig usual;
    for (const auto& [of_adamw, value] :
         {std::pair("beta1", usual.beta1), std::pair("beta2", usual.beta2), std::pair("epsilon", usual.epsilon)}) {
      // Resolved specs have the usual values.
      if (!is_sgd || !given.contains(of_adamw) || given[of_adamw] == value) continue;
      report(std::string("/training/") + of_adamw, "got " + quote_json(given[of_adamw]) +
                                                       ", which \"sgd\" has no use for, want it absent, or "
                                                       "/training/optimizer \"adamw\"");
    }
    if (is_sgd) return;
    if (given.contains("momentum")) {
      report("/training/momentum",
             "got " + quote_json(given["momentum"]) +
                 ", which \"adamw\" has no use for, want it absent, or /training/optimizer \"sgd\"");
    }
    training.erase("optimizer");
    training.erase("momentum");
  }

  void resolve_dropout(json& training) {
    if (!training.contains("dropout")) return;
    json& dropout = training["dropout"];
    if (dropout.is_number()) dropout = {{"attention", dropout}, {"residual", dropout}, {"embedding", dropout}};
    const bool is_on = std::any_of(dropout.begin(), dropout.end(), [](const json& p) { return p != 0; });
    const auto attention = config_.kernels.find("attention");
    if (dropout["attention"] != 0 && attention != config_.kernels.end() && !attention->second.library.empty()) {
      report("/training/dropout", "got " + quote_json(given_["training"]["dropout"]) +
                                      " with the library of /kernels/attention, whose interface has no dropout; want 0 "
                                      "for attention, or a kernel of droptest");
    }
    if (!is_on) training.erase("dropout");
  }

  /// Sequences of all replicas -> micro-batches of each.
  void resolve_batch(json& training) {
    if (!training.contains("global_batch_sequences")) return;
    const auto wanted = training["global_batch_sequences"].get<std::uint64_t>();
    training.erase("global_batch_sequences");
    const auto at_once =
        training["batch_sequences"].get<std::uint64_t>() * static_cast<std::uint64_t>(config_.parallel.data);
    const std::string pointer = "/training/global_batch_sequences";
    if (given_.at("training").contains("accumulation")) {
      report(pointer, "got " + std::to_string(wanted) + " and /training/accumulation, want one of the two");
    } else if (wanted % at_once != 0) {
      const std::uint64_t below = wanted / at_once * at_once;
      report(pointer, "got " + std::to_string(wanted) + ", want a multiple of " + std::to_string(at_once) +
                          ", the sequences of a micro-batch of all replicas: for example " +
                          (below > 0 ? std::to_string(below) + " or " : "") + std::to_string(below + at_once));
    } else if (wanted / at_once > 1048576) {
      report(pointer, "got " + std::to_string(wanted) + ", want at most 1048576 micro-batches of " +
                          std::to_string(at_once) + " sequences");
    } else {
      training["accumulation"] = wanted / at_once;
    }
  }

  void resolve_network_section() {
    json& network = full_["network"];
    const json time = full_.value("time", json());
    // A spec with other errors does not say what its run sends: only the sections of the classes that it names are
    // checked then.
    std::vector<sim::TrafficClass> sent = named_classes(network);
    comm::ClassRoles roles{{}, {}, class_with_quorum(full_), value_classes(config_), config_.tensor_sequence};
    int world_size = 1;
    if (errors_.empty()) {
      read_training(full_["training"], config_.training);
      const std::shared_ptr<const DryRun> run = dry_run(config_);
      if (run == nullptr) return;
      sent = classes_with_network(*run, config_);
      roles.scattered = run->scattered_class();
      roles.exchanged = run->exchanged_class();
      choose_paths(network, sent, *run, roles, config_, time, where_, errors_);
      if (!errors_.empty()) return;
      world_size = config_.parallel.world_size();
    }
    comm::ResolvedNetwork resolved = comm::resolve_network(network, sent, config_.seeds.network, where_, world_size,
                                                           comm::network_use(time), time, roles);
    errors_.insert(errors_.end(), resolved.errors.begin(), resolved.errors.end());
    network = {{"classes", std::move(resolved.classes)}};
    config_.network = std::move(resolved.network);
    if (errors_.empty()) {
      const std::vector<std::string> members = {"path", "compression", "recovery"};
      check_outer_network(where_, pointer_in_network("outer", members), config_, errors_);
    }
    const auto& gather = config_.network.of(sim::TrafficClass::kParameterGather);
    if (gather && config_.sharding.shards_values() && gather->gather.rule().keeps_own()) {
      report(pointer_in_network("parameter_gather", {"gather/fill", "fill"}),
             "got " + quote_json(network["classes"]["parameter_gather"]["gather"]["fill"]) +
                 R"(, want "stale" or "zero" with /parallel/zero 3, where a rank keeps no other parameters)");
    }
    for (const sim::TrafficClass of : {sim::TrafficClass::kTpForward, sim::TrafficClass::kTpBackward}) {
      const auto& layers = config_.network.of(of);
      if (!config_.tensor_sequence || !layers || !layers->gather.rule().keeps_own()) continue;
      const std::string name(sim::traffic_class_name(of));
      report(pointer_in_network(name, {"gather/fill", "fill"}),
             "got " + quote_json(network["classes"][name]["gather"]["fill"]) +
                 R"(, want "zero" or "stale" with /parallel/tensor_sequence true, where a rank has no values of the )"
                 "tokens that it gathers");
    }
    for (const comm::ValueClass& values : value_classes(config_)) check_owner(values.of, comm::network_use(time));
  }

  /// A rank's own parameters lie among those that it gathers, but with ZeRO 3.
  void check_owner(sim::TrafficClass of, comm::NetworkUse use) {
    const auto& network = config_.network.of(of);
    const bool is_sharded = of == sim::TrafficClass::kParameterGather;
    if (!network || (is_sharded && config_.sharding.shards_values())) return;
    if (!loses_own_parts(*network, use) || network->gather.rule().keeps_own()) return;
    const std::string name(sim::traffic_class_name(of));
    report(network->consistency == comm::Consistency::kShared
               ? pointer_in_network(name, {"consistency"})
               : pointer_in_network(name, {network->path == "contribution" ? "path" : "sized_paths"}),
           "got a network on which an owner loses its own parameters with the others (path \"contribution\", or "
           "consistency \"shared\"), want another one, " +
               std::string(is_sharded ? "gather fill \"own\", or /parallel/zero 3, where owners keep their parameters "
                                        "apart"
                                      : "or gather fill \"own\""));
  }

  /// Alerts name actions that the run can take, and thresholds of one kind.
  void check_profile() {
    constexpr std::uint64_t kMostSteps = 1000;  // of spans that ranks hold in memory
    if (!full_["record"].contains("profile_steps")) return;
    const json& steps = full_["record"]["profile_steps"];
    const auto step = [&steps](std::size_t i) { return steps[i].get<std::uint64_t>(); };
    if (steps.size() == 2 && step(0) <= step(1) && step(1) - step(0) < kMostSteps) return;
    report("/record/profile_steps", "got " + quote_json(steps) +
                                        ", want the first step and the last one, not before it, of at most " +
                                        std::to_string(kMostSteps) + " steps");
  }

  void check_alerts() {
    const json alerts = full_.value("alerts", json::array());
    for (std::size_t i = 0; i < alerts.size(); ++i) {
      const std::string pointer = "/alerts/" + std::to_string(i);
      const std::string when = alerts[i]["when"];
      if (alerts[i]["do"] == "checkpoint" && !full_.contains("checkpoint")) {
        report(pointer + "/do", "got \"checkpoint\", want a section /checkpoint, which may be {}, too");
      }
      if (alerts[i].contains("threshold") && (when == "any" || when == "not_finite")) {
        report(pointer + "/threshold", "got " + quote_json(alerts[i]["threshold"]) + " with when \"" + when +
                                           "\", which has no threshold of its own; leave it out");
      }
      if (files_ == nullptr || !alerts[i]["do"].is_object()) continue;
      const std::string program = alerts[i]["do"]["command"][0];
      if (program_path(program)) continue;
      report(pointer + "/do/command/0", "got " + quote_json(program) +
                                            ", want the path of a program from the working folder, or the name of one "
                                            "in the folders of PATH");
    }
  }

  void check_indices(const RunConfig& config) {
    const std::shared_ptr<const DryRun> run = config.network.is_empty() ? nullptr : dry_run(config);
    if (run == nullptr) return;
    for (const IndexRefusal& refusal : index_refusals(config, *run)) {
      const std::string name(sim::traffic_class_name(refusal.of));
      report(refusal.member.empty() ? "/training/steps" : pointer_in_network(name, {refusal.member}), refusal.reason);
    }
  }

  /// Where the spec says what holds for a class: the first of the members, or of the network's members of these names.
  std::string pointer_in_network(const std::string& class_name, const std::vector<std::string>& members) const {
    for (const std::string& section : {"/network/classes/" + class_name, std::string("/network")}) {
      for (const std::string& member : members) {
        std::string pointer = section + "/" + member;
        if (given_.contains(json::json_pointer(pointer))) return pointer;
      }
    }
    return "/network";
  }

  /// Null for a config that cannot be run dry, with the reason among the errors.
  std::shared_ptr<const DryRun> dry_run(const RunConfig& config) {
    try {
      return shared_dry_run(full_, config);
    } catch (const ConfigError& error) {
      errors_.push_back(where_ + ": " + error.what());
      return nullptr;
    }
  }

  void check_repetitions() {
    if (!errors_.empty() || config_.network.is_empty()) return;
    const std::shared_ptr<const DryRun> run = dry_run(config_);
    if (run == nullptr) return;
    for (const sim::TrafficClass traffic_class : run->classes()) {
      for (const PlannedCollective& planned : run->of(traffic_class)) {
        // Uneven parts are judged as if all were as large as the largest.
        const auto& counts = planned.call.counts;
        const auto ranks = static_cast<std::uint64_t>(planned.call.ranks);
        const std::uint64_t even =
            counts.empty() ? planned.call.elements : ranks * *std::max_element(counts.begin(), counts.end());
        // The whole of a message between two ranks is as large as a part of an all-reduce of twice its size.
        const std::uint64_t whole = even * (planned.call.collective == sim::Collective::kBroadcast ? ranks : 1);
        const comm::AllReduceSize size{planned.call.ranks, whole * sizeof(float) / comm::element_bytes(planned.type),
                                       planned.type};
        errors_ = comm::endless_repetitions(config_.network, size, full_.value("time", json()), where_);
        if (!errors_.empty()) return;
      }
    }
  }

  void resolve_time_section() {
    if (!full_.contains("time") || !errors_.empty()) return;
    comm::ResolvedTime resolved = comm::resolve_time(full_["time"], config_.network, where_);
    errors_.insert(errors_.end(), resolved.errors.begin(), resolved.errors.end());
    config_.time = std::move(resolved.model);
  }

  const std::string& where_;
  const json& given_;
  FileHashes* files_;
  NumericsUse use_;
  json full_;  ///< the spec with defaults; becomes the resolved one section by section
  RunConfig config_;
  std::vector<std::string> errors_;
};

}  // namespace

ResolvedRun resolve(const json& given, const std::string& where, FileHashes* files, NumericsUse use) {
  const json document = schema_of_spec(given).with_one_word(given);
  comm::require_none(violations_of_spec(document), where);
  if (document.contains("command")) return resolve_command(document, where, files);
  ResolvedRun run = Resolver(document, where, files, use).resolve();
  const std::vector<comm::Violation> violations = schema_of(SchemaKind::kResolvedSpec).check(run.spec);
  DROPTEST_CHECK(violations.empty(), "resolved spec: " + violations.at(0).pointer + ": " + violations.at(0).message);
  return run;
}

json seeds_json(const Seeds& seeds) {
  return {{"weights", seeds.weights}, {"data", seeds.data}, {"network", seeds.network}};
}

void reseed(ResolvedRun& run, const Seeds& seeds) {
  run.spec["seeds"] = seeds_json(seeds);
  run.config.seeds = seeds;
  run.config.network.seed = seeds.network;
  run.run_id = run_id_of(run.spec);
}

RunConfig with_replicas(const ResolvedRun& run, int replicas) {
  if (replicas == run.config.parallel.data) return run.config;
  json spec = run.spec;
  const std::string section = run.config.elastic ? "/elastic" : "/failures/replicas";
  spec.erase("elastic");
  spec.erase("failures");  // of stages: there is one replica then
  spec.erase("numerics_version");
  spec["parallel"]["data"] = replicas;
  if (replicas == 1 && run.config.parallel.sequence == 1) spec["parallel"].erase("zero");
  if (spec["training"].contains("epochs")) spec["training"].erase("steps");
  RunConfig config = resolve(spec, section + ": with /parallel/data " + std::to_string(replicas), nullptr).config;
  config.elastic = run.config.elastic;
  config.full_data = run.config.full_data;
  // Epochs have other numbers of steps then; the schedule stays that of the run.
  config.training.steps = run.config.training.steps;
  config.training.learning_rate = run.config.training.learning_rate;
  return config;
}

}  // namespace droptest::experiments
