// SPDX-License-Identifier: Apache-2.0
// The sections of a spec, each with the function that resolves it. resolve.cc has the order in which they run.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/spec/file_hashes.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// A spec on its way to a resolved one: what the resolvers read, change and report into. Everything is borrowed.
struct Resolution {
  nlohmann::json& spec;         ///< the spec with the schema's defaults; becomes the resolved one section by section
  const nlohmann::json& given;  ///< the spec as its user wrote it
  const std::string& where;     ///< the document, for errors
  FileHashes* files;            ///< null: the files of the spec need not be there, and are not hashed
  RunConfig& config;            ///< what was read so far
  std::vector<std::string>& errors;

  /// Adds an error about the member at a pointer.
  void report(const std::string& pointer, const std::string& message) const;
  bool has_errors() const { return !errors.empty(); }

  /// Writes the hash of the file that the member `path` of the object at `pointer` names into its member `hash`, or
  /// compares the two. Reports a hash that is another file's, a file that cannot be read, and a hash without a file.
  void take_hash(const std::string& pointer, const char* path, const char* hash = "sha256") const;
};

/// Reports each member that asks for more than one run, or for another file, and removes these members.
void refuse_several_runs(Resolution& resolution);
/// Writes out the three seeds in the place of the one.
void resolve_seeds(Resolution& resolution);
/// The extents of the model, of a preset or a pretrained folder, its attention, and its weights' hash.
void resolve_model(Resolution& resolution);
/// Takes the extents of the folder's model into /model, which may name equal ones, and with files the hashes of its
/// weights and of its vocabulary. Changes nothing without /model/pretrained.
void resolve_pretrained(Resolution& resolution);
/// The layout without the members that the run has no use for: equal runs have equal resolved specs. A schedule's file
/// becomes its rows.
void resolve_parallel(Resolution& resolution);
/// Whether the model's heads, width and vocabulary fit each other and the tensor-parallel ranks.
void check_model(Resolution& resolution);
/// "auto" becomes the device that it means on this machine; the CPU needs no entry.
void resolve_device(Resolution& resolution);
/// Leaves out the device's default implementations, but for attention on CUDA (resolve_default_attention()). Shared
/// objects are loaded and checked, and have the name that they give themselves.
void resolve_kernels(Resolution& resolution);
/// The files, shards, documents and examples of /data.
void resolve_data(Resolution& resolution);
/// /task and the members of /data that belong to it, with the labels and hashes of the files; the classes of the model.
/// Changes nothing for a language model.
void resolve_examples(Resolution& resolution);
/// Compares the classification head that the weights of the spec's start have with the spec's: task, number and names
/// of classes. A file without one is fine. Reads only headers.
void check_stored_head(Resolution& resolution);
/// Checks the data of a spec with /model/pretrained, whose shards are listed, against the folder's tokenizer: the
/// sidecars of its token files and examples name its vocabulary, and count the tokens that the files have; nothing is a
/// text, unless the tokens of texts are bytes.
void check_data_of_pretrained(Resolution& resolution);
/// Whether attention with state is left to its only implementation.
void check_attention(Resolution& resolution);
/// /training with its batches, optimizer, dropout, steps and schedule.
void resolve_training(Resolution& resolution);
/// Every type of /training/precision, absent if all are float32; the loss scale as an object, absent if there is none.
void resolve_precision(Resolution& resolution);
/// /training/class_weights, to a number for each class; /training/lora; /training/layer_decay and /training/tensors, to
/// a list of patterns with factors.
void resolve_tensor_rules(Resolution& resolution);
/// The steps of /training/epochs, once shards, batches and sequences are resolved. If the spec has no list of files,
/// and they are not there, the steps are those of the spec, or more.
void resolve_epochs(Resolution& resolution);
/// /training/schedule and the learning rate at its end, once the steps are resolved. Cosine, the default, is absent.
void resolve_schedule(Resolution& resolution);
/// The hash of the checkpoint of /start, its step, and the membership that it begins.
void resolve_start(Resolution& resolution);
/// The layers of a pipeline's stages, once the number of micro-batches and the device are known.
void resolve_stages(Resolution& resolution);
/// /failures without those that have no effect.
void resolve_failures(Resolution& resolution);
/// /outer without members that have no effect.
void resolve_outer(Resolution& resolution);
/// /elastic, which gives a run the defaults of /restart.
void resolve_elastic(Resolution& resolution);
/// All members of /memory, or none if all activations are saved.
void resolve_memory(Resolution& resolution);
/// The network of each class that the run sends, or of each class that the spec names if it has errors.
void resolve_network(Resolution& resolution);
/// Whether /memory agrees with the network.
void check_memory(Resolution& resolution);
/// Alerts name actions that the run can take, and thresholds of one kind.
void check_alerts(Resolution& resolution);
/// Whether the profiled steps are a range.
void check_profile(Resolution& resolution);
/// The virtual clock, once the network is resolved.
void resolve_time(Resolution& resolution);
/// The messages for which outer steps wait, once the network and the clock are resolved.
void resolve_quorum(Resolution& resolution);
/// Whether packets that are sent again arrive at some time.
void check_repetitions(Resolution& resolution);
/// Attention's default on a device depends on the whole spec: leaves the default out, and reports a kernel that does
/// not serve the spec.
void resolve_default_attention(Resolution& resolution);
/// Whether every packet of the run has an index of its own.
void check_indices(Resolution& resolution);

}  // namespace droptest::experiments
