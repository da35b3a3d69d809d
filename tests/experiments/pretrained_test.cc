// SPDX-License-Identifier: Apache-2.0
// Folders that Hugging Face's libraries wrote (scripts/make_huggingface_vectors.py), and specs that name them.
#include "experiments/data/pretrained_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/json/read_file.h"
#include "experiments/data/token_sidecar.h"
#include "experiments/data/vocabulary.h"
#include "experiments/files/weights_file.h"
#include "experiments/spec/pretrained_checks.h"
#include "models/gpt2/gpt2_weights.h"
#include "sim/error.h"
#include "tests/comm/temporary_folder.h"
#include "tests/experiments/resolved_spec.h"
#include "tests/models/formula_model.h"

namespace droptest::experiments::pretrained_test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const std::string kFolder = std::string(DROPTEST_VECTORS) + "/huggingface";
const std::string kLanguageModel = kFolder + "/lm";
const std::string kClassifier = kFolder + "/classifier";

template <class Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

std::vector<double> expected(const std::string& name) {
  const models::StoredTensors tensors = read_weights(kFolder + "/expected.safetensors");
  const models::StoredTensor& tensor = tensors.at(name);
  std::vector<double> values(tensor.bytes.size() / sizeof(double));
  std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
  return values;
}

/// A copy that a test may change.
class Copy {
 public:
  explicit Copy(const std::string& from) : path_(folder_.path() + "/model") {
    fs::copy(from, path_, fs::copy_options::recursive);
  }
  const std::string& path() const { return path_; }
  void change(const std::string& file, const std::function<void(json&)>& change) const {
    json document = json::parse(comm::read_file(path_ + "/" + file));
    change(document);
    std::ofstream(path_ + "/" + file) << document.dump();
  }

 private:
  TemporaryFolder folder_;
  std::string path_;
};

/// The folder's model on one rank, in float32.
template <class Body>
void with_model(const std::string& folder, int classes, const Body& body) {
  models::Gpt2Config config = read_pretrained_folder(folder, FolderHead::kClassification).model;
  config.classes = classes;
  comm::run_ranks(1, models::kTestTimeout, [&](comm::Communicator& group) {
    models::HostGpt2<float> model(config, group, 1);
    models::load_gpt2_weights(config, model.parameters(), group, read_weights(folder), folder);
    body(model);
  });
}

// A float pass differs from double by 7e-7 per tensor.
TEST(PretrainedFolder, ShardsOfALanguageModelGiveItsLoss) {
  const PretrainedFolder folder = read_pretrained_folder(kLanguageModel, FolderHead::kLanguageModel);
  EXPECT_EQ(folder.weights.size(), 2U);
  EXPECT_EQ(folder.model.layers, 2);
  EXPECT_EQ(folder.model.context, 16);
  with_model(kLanguageModel, 0, [&](models::HostGpt2<float>& model) {
    const auto tokens = models::formula_tokens(0, 32, 270);
    std::vector<std::int32_t> targets(tokens.begin() + 1, tokens.end());
    targets.push_back(models::kIgnoredTarget);
    targets[15] = models::kIgnoredTarget;  // Hugging Face's labels are shifted within each sequence
    EXPECT_NEAR(model.evaluate(tokens, targets, 2, 16) / expected("lm_loss")[0], 1, 1e-5);
  });
}

TEST(PretrainedFolder, AClassifierGivesTheLogitsOfGpt2ForSequenceClassification) {
  const std::vector<std::size_t> lengths = {5, 16, 1, 9};
  const std::vector<std::int32_t> labels = {2, 0, 1, 1};
  with_model(kClassifier, 3, [&](models::HostGpt2<float>& model) {
    std::vector<std::int32_t> tokens = models::formula_tokens(0, 64, 270);
    std::replace(tokens.begin(), tokens.end(), 1, 2);
    std::vector<std::int32_t> targets(64, models::kIgnoredTarget);
    for (std::size_t row = 0; row < 4; ++row) targets[row * 16 + lengths[row] - 1] = labels[row];
    const double loss = model.model().evaluate({tokens, targets, {4, 16}}, models::EvaluationDetail::kLogits);
    EXPECT_NEAR(loss / expected("loss")[0], 1, 1e-5);
    EXPECT_LE(models::relative_difference(model.model().detail(), expected("logits")), 1e-5);
  });
}

TEST(PretrainedFolder, OddConfigurationsAreHonouredOrRefusedByName) {
  const auto error_with = [](const char* member, const json& value, FolderHead head = FolderHead::kLanguageModel) {
    const Copy copy(kLanguageModel);
    copy.change("config.json", [&](json& config) { config[member] = value; });
    return error_of([&] { (void)read_pretrained_folder(copy.path(), head); });
  };
  for (const auto& [member, value] :
       std::vector<std::pair<const char*, json>>{{"model_type", "gptj"},
                                                 {"activation_function", "gelu"},
                                                 {"layer_norm_epsilon", 1e-6},
                                                 {"scale_attn_weights", false},
                                                 {"scale_attn_by_inverse_layer_idx", true},
                                                 {"add_cross_attention", true},
                                                 {"tie_word_embeddings", false},
                                                 {"n_inner", 32},
                                                 {"position_embedding_type", "rope"},
                                                 {"quantization_config", {{"bits", 4}}},
                                                 {"pruned_heads", {{"0", {1}}}},
                                                 {"n_layer", 0},
                                                 {"vocab_size", nullptr}}) {
    EXPECT_THAT(error_with(member, value), HasSubstr("config.json: /" + std::string(member) + ": got " + value.dump()));
  }
  EXPECT_EQ(error_with("activation_function", "gelu_pytorch_tanh"), "");
  EXPECT_EQ(error_with("reorder_and_upcast_attn", true), "");
  EXPECT_EQ(error_with("n_inner", 64), "");
  EXPECT_EQ(error_with("tie_word_embeddings", false, FolderHead::kClassification), "");
  for (const char* problem : {"multi_label_classification", "regression", "classification"}) {
    EXPECT_THAT(error_with("problem_type", problem, FolderHead::kClassification),
                HasSubstr("config.json: /problem_type: got \"" + std::string(problem) +
                          "\", want null or \"single_label_classification\""));
    EXPECT_EQ(error_with("problem_type", problem), "") << "a language model has no use for it";
  }
  EXPECT_EQ(error_with("problem_type", "single_label_classification", FolderHead::kClassification), "");
  EXPECT_THAT(error_with("activation_function", "relu"),
              HasSubstr("want \"gelu_new\" or \"gelu_pytorch_tanh\" (GELU by tanh)"));
}

TEST(PretrainedFolder, ShardsHaveTheTensorsThatTheIndexSays) {
  const char* const index = "model.safetensors.index.json";
  const auto error_after = [&](const std::function<void(json&)>& change) {
    const Copy copy(kLanguageModel);
    copy.change(index, [&](json& document) { change(document["weight_map"]); });
    return error_of([&] { (void)read_weights(copy.path()); });
  };
  EXPECT_EQ(error_after([](json&) {}), "");
  EXPECT_THAT(error_after([](json& map) { map.erase("transformer.wte.weight"); }),
              HasSubstr("tensor \"transformer.wte.weight\": is not in "));
  EXPECT_THAT(error_after([](json& map) { map["more"] = "model-00001-of-00002.safetensors"; }),
              HasSubstr("tensor \"more\" is missing, which "));
  EXPECT_THAT(error_after([](json& map) { map["transformer.wte.weight"] = "model-00002-of-00002.safetensors"; }),
              HasSubstr("says that it is in model-00002-of-00002.safetensors"));
  EXPECT_THAT(error_after([](json& map) { map["transformer.wte.weight"] = "../a.safetensors"; }),
              HasSubstr("got \"../a.safetensors\", want the name of a file in the same folder"));
  EXPECT_THAT(error_after([](json& map) { map["transformer.wte.weight"] = "a.safetensors"; }),
              HasSubstr("a.safetensors"));
}

TEST(PretrainedFolder, WithoutSafetensorsSaysHowToWriteThem) {
  const Copy copy(kClassifier);
  fs::rename(copy.path() + "/model.safetensors", copy.path() + "/pytorch_model.bin");
  EXPECT_THAT(error_of([&] { (void)read_weights(copy.path()); }),
              HasSubstr("pytorch_model.bin is not read: save_pretr"));
  EXPECT_THAT(error_of([&] { (void)read_pretrained_folder(kFolder + "/none", FolderHead::kLanguageModel); }),
              HasSubstr("no such folder"));
}

TEST(Vocabulary, HasOneHashInAllFiles) {
  const Copy copy(kLanguageModel);
  const std::optional<Vocabulary> of_json = read_vocabulary(copy.path());
  ASSERT_TRUE(of_json.has_value());
  EXPECT_EQ(of_json->size(), 270);
  EXPECT_EQ(of_json->number_of("<|endoftext|>"), 0);
  EXPECT_EQ(of_json->number_of("no such token"), std::nullopt);
  // Newer versions of the library write merges as pairs.
  copy.change("tokenizer.json", [](json& document) {
    for (json& merge : document["model"]["merges"]) {
      const std::string text = merge;
      merge = {text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)};
    }
  });
  EXPECT_EQ(read_vocabulary(copy.path())->hash(), of_json->hash());
  fs::remove(copy.path() + "/tokenizer.json");
  EXPECT_EQ(read_vocabulary(copy.path())->hash(), of_json->hash()) << "of vocab.json and merges.txt";
  std::string merges = comm::read_file(copy.path() + "/merges.txt");
  merges.resize(merges.rfind('\n', merges.size() - 2) + 1);
  std::ofstream(copy.path() + "/merges.txt") << merges;
  EXPECT_NE(read_vocabulary(copy.path())->hash(), of_json->hash()) << "without the last merge";
  std::ofstream(copy.path() + "/merges.txt") << "#version: 0.2\na b\nc\n";
  EXPECT_THAT(error_of([&] { (void)read_vocabulary(copy.path()); }),
              HasSubstr("merges.txt: line 3: got \"c\", want two"));
  EXPECT_FALSE(read_vocabulary(kClassifier).has_value());
}

TEST(Vocabulary, EncodesAsHuggingFaceDoes) {
  const std::optional<Vocabulary> vocabulary = read_vocabulary(kLanguageModel);
  for (const json& one : json::parse(comm::read_file(kFolder + "/encoded.json"))) {
    const std::string text = one["text"];
    const auto tokens = one["tokens"].get<std::vector<std::int32_t>>();
    EXPECT_EQ(vocabulary->encode(text), tokens) << text;
    EXPECT_EQ(vocabulary->decode(tokens), text);
  }
  EXPECT_EQ(vocabulary->decode(std::vector<std::int32_t>{0, 9999}), "<|endoftext|>");
  EXPECT_THAT(error_of([&] { (void)vocabulary->encode("caf\xc3\xa9"); }), HasSubstr("byte 3 is not ASCII"));
}

ResolvedRun resolved_with(const json& model, const std::string& tokens, FileHashes& files) {
  const json spec = {{"name", "t"},
                     {"model", model},
                     {"data", {{"tokens", tokens}}},
                     {"training", {{"sequence_tokens", 8}}},
                     {"network", json::object()}};
  return resolve(spec, "s.json", &files);
}

TEST(PretrainedFolder, GivesASpecItsModelAndChecksTheVocabularyOfItsTokens) {
  const TemporaryFolder folder;
  const std::string tokens = folder.path() + "/a.bin";
  std::ofstream(tokens) << std::string(4000, '\0');
  FileHashes files;
  const ResolvedRun run = resolved_with({{"pretrained", kLanguageModel}}, tokens, files);
  EXPECT_EQ(run.config.model.vocabulary, 270);
  EXPECT_EQ(run.config.model.width, 16);
  EXPECT_EQ(run.config.initial_weights, kLanguageModel);
  EXPECT_EQ(run.spec["model"]["vocabulary_sha256"], read_vocabulary(kLanguageModel)->hash());
  EXPECT_EQ(resolve(run.spec, "spec.json", &files).spec, run.spec);
  EXPECT_EQ(resolve(run.spec, "spec.json").run_id, run.run_id) << "without a look at files";
  const Copy copy(kLanguageModel);
  EXPECT_EQ(resolved_with({{"pretrained", copy.path()}}, tokens, files).run_id, run.run_id) << "contents count";

  const auto error_with = [&](const json& model) {
    return error_of([&] { (void)resolved_with(model, tokens, files); });
  };
  EXPECT_THAT(error_with({{"pretrained", kLanguageModel}, {"layers", 3}}),
              HasSubstr("/model/layers: got 3, but " + kLanguageModel + "/config.json has 2; leave this member out"));
  EXPECT_THAT(error_with({{"pretrained", kLanguageModel}, {"preset", "nano"}}),
              HasSubstr("/model/preset: got \"nano\" and /model/pretrained, want one of the two"));
  EXPECT_THAT(error_with({{"pretrained", kLanguageModel}, {"sha256", std::string(64, '0')}}),
              HasSubstr("/model/sha256: got "));
  EXPECT_THAT(error_with({{"pretrained", folder.path()}}), HasSubstr("/model/pretrained: "));

  const auto write_sidecar = [&](const std::string& hash) {
    std::ofstream(folder.path() + "/a.json") << json{{"vocabulary_sha256", hash}}.dump();
  };
  write_sidecar(read_vocabulary(kLanguageModel)->hash());
  EXPECT_EQ(error_with({{"pretrained", kLanguageModel}}), "");
  write_sidecar(std::string(64, '1'));
  EXPECT_THAT(error_with({{"pretrained", kLanguageModel}}),
              HasSubstr("/data/tokens: " + tokens + " was made with the vocabulary 111111111111..., but "));
}

/// A spec of a classifier from this folder, with examples of these labels, each in three lines.
std::string error_of_classifier(const std::string& model, const std::vector<std::string>& labels,
                                const json& example = {{"tokens", {5, 7}}}) {
  const TemporaryFolder folder;
  const std::string examples = folder.path() + "/a.jsonl";
  const std::string others = folder.path() + "/b.jsonl";
  for (const auto& [path, lines] : {std::pair(examples, 3), std::pair(others, 2)}) {
    std::ofstream file(path);
    for (int i = 0; i < lines; ++i) {
      for (const std::string& label : labels) {
        json line = example;
        line["label"] = label;
        file << line.dump() << "\n";
      }
    }
  }
  const json spec = {{"name", "t"},
                     {"task", "classification"},
                     {"model", {{"pretrained", model}}},
                     {"data", {{"examples", examples}, {"validation_examples", others}, {"labels", labels}}},
                     {"network", json::object()}};
  FileHashes files;
  return error_of([&] { (void)resolve(spec, "s.json", &files); });
}

TEST(PretrainedFolder, AStoredHeadHasTheClassesOfTheSpec) {
  const Copy copy(kClassifier);
  EXPECT_EQ(error_of_classifier(copy.path(), {"a", "b", "c"}), "") << "its classes have no names";
  EXPECT_EQ(error_of_classifier(kLanguageModel, {"a", "b"}), "") << "it has no head";
  EXPECT_THAT(
      error_of_classifier(copy.path(), {"a", "b"}),
      HasSubstr("/model/pretrained: " + copy.path() +
                R"(: its score.weight is of 3 classes, but /data/labels has 2, ["a","b"]; want its classes, or )" +
                "weights without that tensor, which get a new head"));
  copy.change("config.json", [](json& config) { config["id2label"] = {{"0", "a"}, {"1", "b"}, {"2", "c"}}; });
  EXPECT_EQ(error_of_classifier(copy.path(), {"a", "b", "c"}), "");
  EXPECT_THAT(
      error_of_classifier(copy.path(), {"a", "c", "b"}),
      HasSubstr(copy.path() + R"(/config.json: /id2label: has the classes ["a","b","c"], but /data/labels has )" +
                R"(["a","c","b"]; want the same ones in the same order)"));
  copy.change("config.json", [](json& config) { config["id2label"] = {{"0", "a"}, {"2", "c"}}; });
  EXPECT_THAT(error_of_classifier(copy.path(), {"a", "b", "c"}),
              HasSubstr("/id2label: got {\"0\":\"a\",\"2\":\"c\"}, want an object with the texts 0 to 1"));
  FileHashes files;
  const TemporaryFolder folder;
  const std::string tokens = folder.path() + "/a.bin";
  std::ofstream(tokens) << std::string(4000, '\0');
  EXPECT_THAT(error_of([&] {
                (void)resolved_with({{"pretrained", kClassifier}}, tokens, files);
              }),
              HasSubstr("has score.weight, a classification head; want a model with an LM head, or /task "
                        "\"classification\""));
}

/// The error of a spec with this model and data.
std::string error_of_data(const std::string& model, const json& data) {
  const json spec = {{"name", "t"},
                     {"model", {{"pretrained", model}}},
                     {"data", data},
                     {"training", {{"sequence_tokens", 8}}},
                     {"network", json::object()}};
  FileHashes files;
  return error_of([&] { (void)resolve(spec, "s.json", &files); });
}

TEST(PretrainedFolder, TextsAreNoBytesWhereItHasATokenizer) {
  const TemporaryFolder folder;
  const std::string text = folder.path() + "/a.txt";
  for (const char* name : {"/a.txt", "/b.txt"}) std::ofstream(folder.path() + name) << std::string(4000, name[1]);
  for (const json& data : {json{{"text", text}}, json{{"shards", folder.path() + "/*.txt"}, {"format", "text"}}}) {
    EXPECT_THAT(error_of_data(kLanguageModel, data),
                HasSubstr(text + ": is a text, whose tokens are its bytes, but " + kLanguageModel +
                          " has a tokenizer; want the token file of scripts/tokenize " + text + " --tokenizer " +
                          kLanguageModel + "/tokenizer.json --out " + folder.path() + "/a.tokens.bin"));
    const Copy without(kLanguageModel);
    for (const char* file : {"tokenizer.json", "vocab.json", "merges.txt"}) fs::remove(without.path() + "/" + file);
    EXPECT_EQ(error_of_data(without.path(), data), "") << "a model of bytes";
  }
  const Copy copy(kLanguageModel);
  fs::remove(copy.path() + "/tokenizer.json");
  EXPECT_THAT(error_of_data(copy.path(), {{"text", text}}), HasSubstr(" --gpt2 " + copy.path() + "/vocab.json "));
  EXPECT_EQ(error_of_classifier(kLanguageModel, {"a", "b"}), "");
  EXPECT_THAT(error_of_classifier(kLanguageModel, {"a", "b"}, {{"text", "x"}}),
              AllOf(HasSubstr("/data/examples: "), HasSubstr("a.jsonl: line 1: is a text, whose tokens are its bytes"),
                    HasSubstr("/data/validation_examples: "), HasSubstr("a.jsonl --examples plain --tokenizer ")));
}

TEST(PretrainedFolder, SidecarsOfShardsAreChecked) {
  const TemporaryFolder folder;
  const auto write = [&](const std::string& name, int tokens, const json& sidecar) {
    std::string bytes;
    for (int i = 0; i < tokens; ++i) bytes += {static_cast<char>((i * 7 + tokens) % 200), '\0'};
    std::ofstream(folder.path() + "/" + name + ".bin", std::ios::binary) << bytes;
    std::ofstream(folder.path() + "/" + name + ".json") << sidecar.dump();
  };
  const std::string hash = read_vocabulary(kLanguageModel)->hash();
  const json data = {{"shards", folder.path() + "/t*.bin"}, {"validation_shards", folder.path() + "/v.bin"}};
  write("t1", 400, {{"vocabulary_sha256", hash}, {"tokens", 400}});
  write("t2", 500, {{"vocabulary_sha256", hash}, {"tokens", 500}});
  write("v", 600, {{"vocabulary_sha256", hash}});
  EXPECT_EQ(error_of_data(kLanguageModel, data), "");
  write("t2", 500, {{"vocabulary_sha256", std::string(64, '1')}});
  EXPECT_THAT(error_of_data(kLanguageModel, data),
              HasSubstr("/data/shards: " + folder.path() + "/t2.bin was made with the vocabulary 111111111111..."));
  write("t2", 501, {{"vocabulary_sha256", hash}, {"tokens", 500}});
  EXPECT_THAT(error_of_data(kLanguageModel, data), HasSubstr("/t2.json: /tokens: got 500, but "));
  EXPECT_THAT(error_of_data(kLanguageModel, {{"tokens", folder.path() + "/t2.bin"}}),
              AllOf(HasSubstr("/data/tokens: "), HasSubstr("/t2.json: /tokens: got 500, but ")));
  write("t2", 500, {{"vocabulary_sha256", hash}, {"tokens", 500}});
  write("v", 600, {{"vocabulary_sha256", std::string(64, '2')}});
  EXPECT_THAT(error_of_data(kLanguageModel, data), HasSubstr("/data/validation_shards: "));
}

TEST(PretrainedFolder, OneWithAnotherKindOfTokenizerServesTokenFiles) {
  const TemporaryFolder folder;
  const std::string tokens = folder.path() + "/a.bin";
  std::ofstream(tokens) << std::string(4000, '\0');
  const Copy copy(kLanguageModel);
  std::ofstream(copy.path() + "/tokenizer.json") << R"({"model": {"type": "WordPiece", "vocab": {"a": 0}}})";
  FileHashes files;
  const ResolvedRun run = resolved_with({{"pretrained", copy.path()}}, tokens, files);
  EXPECT_EQ(run.spec["model"]["vocabulary_sha256"], read_vocabulary(copy.path())->hash());
}

TEST(PretrainedFolder, TextsAreNoBytesWhereItsTokenizerHasNoFilesOfBytePairs) {
  const TemporaryFolder folder;
  const std::string text = folder.path() + "/a.txt";
  std::ofstream(text) << std::string(4000, 'a');
  const std::string tokens = folder.path() + "/a.bin";
  std::ofstream(tokens) << std::string(4000, '\0');
  FileHashes files;
  for (const char* name : {"vocab.txt", "tokenizer.model"}) {
    const Copy copy(kLanguageModel);
    for (const char* file : {"tokenizer.json", "vocab.json", "merges.txt"}) fs::remove(copy.path() + "/" + file);
    const std::string id = resolved_with({{"pretrained", copy.path()}}, tokens, files).run_id;
    std::ofstream(copy.path() + "/" + name) << "a\nb\n";
    EXPECT_THAT(error_of_data(copy.path(), {{"text", text}}),
                AllOf(HasSubstr(" has a tokenizer; want the token file of scripts/tokenize "),
                      HasSubstr(", once save_pretrained() of the tokenizer in Hugging Face's library has written " +
                                copy.path() + "/tokenizer.json")));
    EXPECT_EQ(resolved_with({{"pretrained", copy.path()}}, tokens, files).run_id, id) << "its token files are served";
    EXPECT_THAT(error_of([&] { (void)read_vocabulary(copy.path())->encode("a"); }),
                HasSubstr(std::string(name) + ": got a vocabulary that is not GPT-2's, want tokenizer.json"));
    EXPECT_THAT(tokenizer_files(copy.path()), testing::Contains(name));
  }
}

TEST(PretrainedFolder, TextsAreNoBytesForAFileOfWeightsBesideATokenizer) {
  const TemporaryFolder folder;
  const std::string text = folder.path() + "/a.txt";
  std::ofstream(text) << std::string(4000, 'a');
  const auto error_with = [&](const std::string& weights) {
    const json spec = {
        {"name", "t"},
        {"model",
         {{"weights", weights}, {"layers", 2}, {"width", 16}, {"heads", 2}, {"context", 16}, {"vocabulary", 270}}},
        {"data", {{"text", text}}},
        {"training", {{"sequence_tokens", 8}}},
        {"network", json::object()}};
    FileHashes files;
    return error_of([&] { (void)resolve(spec, "s.json", &files); });
  };
  const std::string weights = folder.path() + "/model.safetensors";
  fs::copy_file(kClassifier + "/model.safetensors", weights);
  EXPECT_THAT(error_with(weights), testing::Not(HasSubstr("tokenizer")));
  fs::copy_file(kLanguageModel + "/tokenizer.json", folder.path() + "/tokenizer.json");
  EXPECT_THAT(error_with(weights), HasSubstr("/data/text: " + text + ": is a text, whose tokens are its bytes, but " +
                                             folder.path() + " has a tokenizer"));
}

TEST(PretrainedFolder, TheTokenizerIsThatOfTheFirstWeightsThatHaveOne) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() + "/model.safetensors") << "";
  EXPECT_EQ(tokenizer_folder({folder.path(), kLanguageModel}, 270), kLanguageModel);
  EXPECT_EQ(tokenizer_folder({folder.path() + "/model.safetensors", ""}, 270), "");
  EXPECT_EQ(tokenizer_folder({"", kLanguageModel + "/model.safetensors", folder.path()}, 270), kLanguageModel);
  EXPECT_EQ(tokenizer_folder({kLanguageModel + "/model.safetensors"}, 256), "") << "a model of bytes";
  EXPECT_EQ(tokenizer_folder({kLanguageModel}, 256), kLanguageModel);
}

TEST(PretrainedFolder, TokenizerFilesAreFound) {
  EXPECT_THAT(tokenizer_files(kLanguageModel), testing::IsSupersetOf({"tokenizer.json", "vocab.json", "merges.txt"}));
  EXPECT_THAT(tokenizer_files(kClassifier), testing::IsEmpty());
}

TEST(PretrainedFolder, ASidecarHasATextAsHash) {
  const TemporaryFolder folder;
  const std::string tokens = folder.path() + "/a.bin";
  std::ofstream(folder.path() + "/a.json") << R"({"vocabulary_sha256": 7})";
  EXPECT_THAT(error_of([&] { (void)vocabulary_hash_of(tokens); }),
              HasSubstr("/a.json: /vocabulary_sha256: got 7, want a text, as scripts/tokenize writes it"));
}

TEST(PretrainedFolder, ConfigTextIsReadBack) {
  const TemporaryFolder folder;
  models::Gpt2Config config{3, 24, 2, 32, 300};
  config.classes = 2;
  std::ofstream(folder.path() + "/config.json") << pretrained_config_text(config, {"no", "yes"});
  std::ofstream(folder.path() + "/model.safetensors") << "";
  const models::Gpt2Config read = read_pretrained_folder(folder.path(), FolderHead::kClassification).model;
  EXPECT_EQ(read.layers, 3);
  EXPECT_EQ(read.context, 32);
  EXPECT_EQ(json::parse(comm::read_file(folder.path() + "/config.json"))["id2label"]["1"], "yes");
}

}  // namespace
}  // namespace droptest::experiments::pretrained_test
