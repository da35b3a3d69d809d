// SPDX-License-Identifier: Apache-2.0
// The sections of a spec, each with the function that resolves it. resolve.cc has the order in which they run; those
// that resolve a part of /data or /training run within resolve_data() or resolve_training().
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "experiments/spec/file_hashes.h"
#include "experiments/spec/idle_network.h"
#include "experiments/spec/run_config.h"

namespace droptest::experiments {

/// A spec on its way to a resolved one: the arguments that all resolvers read and change. Everything is borrowed.
struct Resolution {
  nlohmann::json& spec;         ///< the spec with the schema's defaults; becomes the resolved one section by section
  const nlohmann::json& given;  ///< the spec as its user wrote it
  const std::string& where;     ///< the document, for errors
  FileHashes* files;            ///< null: the files of the spec need not be there, and are not hashed
  RunConfig& config;            ///< the sections that were read so far
  std::vector<std::string>& errors;
  std::vector<Warning>& warnings;

  /// Adds an error about the member at a pointer.
  void report(const std::string& pointer, const std::string& message) const;
  bool has_errors() const { return !errors.empty(); }

  /// Gives the object at a pointer the schema's defaults of its absent members, as the whole spec has them: for an
  /// object that a shorthand stood for.
  void fill_defaults(const std::string& pointer) const;

  /// The object at `pointer` names a file in its member `path`. Writes the file's hash into its member `hash`, or
  /// compares the two. Reports a hash that is another file's, a file that cannot be read, and a hash without a file.
  void take_hash(const std::string& pointer, const char* path, const char* hash = "sha256") const;
};

/// Reports each member that asks for more than one run, or for another file, and removes these members.
void refuse_several_runs(Resolution& resolution);
/// Replaces a single seed by the three seeds.
void resolve_seeds(Resolution& resolution);
/// Resolves the extents of the model (a preset's or a pretrained folder's), its attention, and its weights' hash.
void resolve_model(Resolution& resolution);
/// Writes the extents of the folder's model into /model, which may name equal ones. If there are files, also writes the
/// hashes of its weights and of its vocabulary. Changes nothing without /model/pretrained.
void resolve_pretrained(Resolution& resolution);
/// Removes the members of the layout that the run has no use for: equal runs have equal resolved specs. A schedule's
/// file becomes its rows.
void resolve_parallel(Resolution& resolution);
/// Checks that the model's heads, width and vocabulary fit each other and the tensor-parallel ranks.
void check_model(Resolution& resolution);
/// Replaces the device "auto" by the device that it means on this machine; the CPU needs no entry.
void resolve_device(Resolution& resolution);
/// Leaves out the device's default implementations, except for attention on CUDA (resolve_default_attention()). Loads
/// and checks shared objects, which get the names that they give themselves.
void resolve_kernels(Resolution& resolution);
/// Resolves the files, shards, documents and examples of /data.
void resolve_data(Resolution& resolution);
/// Resolves /task, the members of /data that belong to it with the labels and hashes of the files, and the classes of
/// the model. Changes nothing for a language model.
void resolve_examples(Resolution& resolution);
/// Compares the classification head of the starting weights with the spec's: task, number and names of classes. A file
/// without such a head is accepted. Reads only headers.
void check_stored_head(Resolution& resolution);
/// Checks the data of a spec with /model/pretrained against the folder's tokenizer, after the shards are listed. The
/// sidecars of token files and examples name its vocabulary, and count the tokens that the files have. Nothing is a
/// text, unless the tokens of texts are bytes.
void check_data_of_pretrained(Resolution& resolution);
/// Checks that attention with state is left to its only implementation.
void check_attention(Resolution& resolution);
/// Resolves /training with its batches, optimizer, dropout, steps and schedule.
void resolve_training(Resolution& resolution);
/// Writes every type of /training/precision, or removes it if all are float32. Writes the loss scale as an object, or
/// removes it if there is none.
void resolve_precision(Resolution& resolution);
/// Resolves /training/class_weights to a number for each class, /training/lora, and /training/layer_decay with
/// /training/tensors to a list of patterns with factors.
void resolve_tensor_rules(Resolution& resolution);
/// Resolves the steps of /training/epochs, once shards, batches and sequences are resolved. If the spec has no list of
/// files, and they are not there, the steps are those of the spec, or more.
void resolve_epochs(Resolution& resolution);
/// Resolves /training/schedule and the learning rate at its end, once the steps are resolved. Cosine is
/// the default and removed.
void resolve_schedule(Resolution& resolution);
/// Resolves the hash of the checkpoint of /start, its step, and the membership that it begins.
void resolve_start(Resolution& resolution);
/// Resolves the layers of a pipeline's stages, once the number of micro-batches and the device are known.
void resolve_stages(Resolution& resolution);
/// Checks /failures and removes failures without an effect.
void resolve_failures(Resolution& resolution);
/// Checks /outer and removes members without an effect.
void resolve_outer(Resolution& resolution);
/// Resolves /elastic, which gives a run the defaults of /restart.
void resolve_elastic(Resolution& resolution);
/// Writes all members of /memory, or removes it if all activations are saved.
void resolve_memory(Resolution& resolution);
/// Resolves the network of each class that the run sends. If the spec has errors, it resolves the classes that the spec
/// names.
void resolve_network(Resolution& resolution);
/// Checks that /memory agrees with the network.
void check_memory(Resolution& resolution);
/// Checks that alerts name actions that the run can take, and thresholds of one kind.
void check_alerts(Resolution& resolution);
/// Checks that the profiled steps are a range.
void check_profile(Resolution& resolution);
/// Resolves the virtual clock, once the network is resolved.
void resolve_time(Resolution& resolution);
/// Resolves the number of messages for which outer steps wait, once the network and the clock are resolved.
void resolve_quorum(Resolution& resolution);
/// Checks that packets that are sent again can arrive.
void check_repetitions(Resolution& resolution);
/// Removes attention's default kernel on a device, which depends on the whole spec, and reports a kernel that cannot
/// serve the spec.
void resolve_default_attention(Resolution& resolution);
/// Checks that every packet of the run has an index of its own.
void check_indices(Resolution& resolution);

}  // namespace droptest::experiments
