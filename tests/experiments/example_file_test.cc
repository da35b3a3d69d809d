// SPDX-License-Identifier: Apache-2.0
// Files of labelled texts: their layouts, and the line and reason of each error.
#include "experiments/data/example_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "experiments/data/example_set.h"
#include "models/kernels/cross_entropy.h"
#include "sim/error.h"
#include "tests/comm/temporary_folder.h"

namespace droptest::experiments::example_file_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<ExampleRow> parse(std::string_view text, const std::string& path = "a.tsv",
                              std::string_view layout = "plain") {
  return parse_examples(text, path, layout, " | ");
}

std::string error_of(std::string_view text, const std::string& path = "a.tsv", std::string_view layout = "plain") {
  try {
    (void)parse(text, path, layout);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

/// "label: text" of each row.
std::vector<std::string> texts(const std::vector<ExampleRow>& rows) {
  std::vector<std::string> all;
  for (const ExampleRow& row : rows) all.push_back(row.label + ": " + row.text);
  return all;
}

TEST(Examples, AreReadFromPlainTsv) {
  EXPECT_THAT(texts(parse("label\ttext\nlaw\tThou shalt\nlaw\t\xc3\xa9 \xe2\x82\xac\n")),
              ElementsAre("law: Thou shalt", "law: \xc3\xa9 \xe2\x82\xac"));
  EXPECT_THAT(texts(parse("number\ttext_b\tlabel\ttext_a\n1\tb\tyes\ta")), ElementsAre("yes: a | b"));
  EXPECT_THAT(texts(parse("\xef\xbb\xbflabel\ttext\nx\ty\n")), ElementsAre("x: y"));
  EXPECT_EQ(parse("label\ttext\nx\ty\nx\tz\n")[1].line, 3U);
}

TEST(Examples, PlainCellsMayBeInQuotes) {
  EXPECT_THAT(texts(parse("label\ttext\nx\t\"a\tb \"\"c\"\"\"\ny\tsay \"no\"\n")),
              ElementsAre("x: a\tb \"c\"", "y: say \"no\""));
  EXPECT_EQ(error_of("label\ttext\nx\t\"a\n"),
            "a.tsv: line 2: cell 2 begins with a quote that no other one closes on the line; two quotes stand for one");
  EXPECT_THAT(error_of("label\ttext\n\"x\"y\ta\n"), HasSubstr("line 2: cell 1 begins with a quote and goes on behind"));
}

TEST(Examples, AreReadFromTheLayoutsOfGlue) {
  EXPECT_THAT(texts(parse("gj04\t1\t\tOur friends \"won't\" buy.\ngj04\t0\t*\tBad the is.\n", "cola.tsv", "cola")),
              ElementsAre("1: Our friends \"won't\" buy.", "0: Bad the is."));
  EXPECT_THAT(
      texts(parse("index\tsentence1\tsentence2\tlabel1\tgold_label\n0\ta\tb\tneutral\tentailment\n1\tc\td\tx\t-\n",
                  "mnli.tsv", "mnli")),
      ElementsAre("entailment: a | b"));
  EXPECT_THAT(texts(parse("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n1\t2\t3\t\"a\tb\n", "mrpc.tsv", "mrpc")),
              ElementsAre("1: \"a | b"));
  EXPECT_THAT(texts(parse("sentence\tlabel\nfine \t1\n", "sst2.tsv", "sst2")), ElementsAre("1: fine "));
  EXPECT_THAT(texts(parse("index\tquestion\tsentence\tlabel\n0\tq\ts\tentailment\n", "qnli.tsv", "qnli")),
              ElementsAre("entailment: q | s"));
  EXPECT_THAT(
      error_of("sentence\tlabel\n", "q.tsv", "qqp"),
      HasSubstr("line 1: has the columns sentence, label, want a header with is_duplicate, question1, question2 of "
                "the layout qqp"));
}

TEST(Examples, AreReadFromJsonLines) {
  EXPECT_THAT(texts(parse("{\"label\": 2, \"text\": \"a\"}\n{\"label\": \"x\", \"text_a\": \"b\", \"text_b\": \"\"}\n",
                          "a.jsonl")),
              ElementsAre("2: a", "x: b | "));
  const std::vector<ExampleRow> tokens = parse("{\"label\": \"x\", \"tokens\": [5, 0, 70000]}", "a.json");
  EXPECT_THAT(tokens[0].tokens, ElementsAre(5, 0, 70000));
  EXPECT_THAT(texts(parse("{\"gold_label\": \"-\", \"sentence1\": \"a\", \"sentence2\": \"b\"}\n"
                          "{\"gold_label\": \"neutral\", \"sentence1\": \"a\", \"sentence2\": \"b\"}\n",
                          "a.jsonl", "mnli")),
              ElementsAre("neutral: a | b"));
  EXPECT_THAT(error_of("{\"label\": 1.5, \"text\": \"a\"}", "a.jsonl"),
              HasSubstr("line 1: label: got 1.5, want a text or"));
  EXPECT_THAT(error_of("{\"text\": \"a\"}", "a.jsonl"), HasSubstr("line 1: has no member label"));
  EXPECT_THAT(error_of("{\"label\": \"x\"}", "a.jsonl"), HasSubstr("want one of text, tokens, and text_a with text_b"));
  EXPECT_THAT(error_of("{\"label\": \"x\", \"text\": 3}", "a.jsonl"), HasSubstr("line 1: text: got 3, want a text"));
  EXPECT_THAT(error_of("{\"label\": \"x\", \"tokens\": []}", "a.jsonl"), HasSubstr("tokens: got [], want a list"));
  EXPECT_THAT(error_of("{\"label\": \"x\", \"tokens\": [-1]}", "a.jsonl"), HasSubstr("tokens: got [-1]"));
  EXPECT_THAT(error_of("{\"label\": \"x\"", "a.jsonl"), HasSubstr("a.jsonl: line 1"));
  EXPECT_THAT(error_of("[1]", "a.jsonl"), HasSubstr("line 1: got [1], want an object"));
}

TEST(Examples, NameLineAndReasonOfWhatIsWrong) {
  EXPECT_THAT(error_of("label\ttext\nx\ty\r\n"), HasSubstr("a.tsv: line 2: ends in CR LF, want LF alone"));
  EXPECT_THAT(error_of("label\ttext\nx\tab\xff\n"), HasSubstr("line 2: not UTF-8 at byte 4 of the line"));
  EXPECT_THAT(error_of("label\ttext\nx\n"), HasSubstr("line 2: has 1 cells, want 2, as the header has"));
  EXPECT_THAT(error_of("label\ttext\n\nx\ty\n"), HasSubstr("line 2: is empty"));
  EXPECT_THAT(error_of("label\ttext\n\ty\n"), HasSubstr("line 2: has no label"));
  EXPECT_THAT(error_of("label\ttext\nx\t\n"), HasSubstr("line 2: has no text"));
  const std::string zero(1, '\0');
  EXPECT_THAT(error_of("label\ttext\nx" + zero + "\ty\n"),
              HasSubstr("line 2: label: got \"x\\u0000\", want a text without"));
  EXPECT_THAT(
      error_of("label\tsentence\nx\ty\n"),
      HasSubstr("line 1: has the columns label, sentence, want a header with label and text, or label, text_a"));
  EXPECT_THAT(error_of("label\ttext\ttext\n"), HasSubstr("has the column text twice"));
  EXPECT_THAT(error_of("label\ttext\n"), HasSubstr("a.tsv: has no example"));
  EXPECT_THAT(error_of("1\tx\n", "cola.tsv", "cola"), HasSubstr("has 2 cells, want 4, as files of cola have"));
  EXPECT_EQ(error_of("sentence\tlabel\na\n", "a.tsv", "sst2"),
            "a.tsv: line 2: has 1 cells, want 2, as the header has; awk -F'\\t' 'NF == 2' on the file leaves out such "
            "lines");
  EXPECT_THAT(error_of("", "a.csv"), HasSubstr("a.csv: want a name that ends in .tsv or .txt"));
}

TEST(Examples, LabelsAreSortedAsNumbersWhereAllAre) {
  EXPECT_THAT(labels_of(parse("label\ttext\n10\ta\n9\tb\n10\tc\n")), ElementsAre("9", "10"));
  EXPECT_THAT(labels_of(parse("label\ttext\n10\ta\n9\tb\nx\tc\n")), ElementsAre("10", "9", "x"));
}

ExampleConfig config_of(std::vector<std::string> labels) {
  ExampleConfig config;
  config.labels = std::move(labels);
  return config;
}

std::string set_error(std::string_view text, ExampleConfig config, int vocabulary = 256, int longest = 4) {
  try {
    (void)make_examples(parse(text, text.starts_with('{') ? "a.jsonl" : "a.tsv"), "a.tsv", config, vocabulary, longest);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(ExampleSet, RefusesLabelsAndTokensThatThereAreNot) {
  EXPECT_EQ(set_error("label\ttext\na\tb\nc\td\n", config_of({"a", "b"})),
            "a.tsv: line 3: label \"c\", want one of a, b");
  EXPECT_THAT(set_error("label\ttext\na\tb\n", config_of({"a"}), 100),
              HasSubstr("line 2: the tokens of a text are its"));
  EXPECT_THAT(set_error(R"({"label": "a", "tokens": [3, 100]})", config_of({"a"}), 100),
              HasSubstr("line 1: token 100, want tokens below the model's vocabulary of 100"));
  ExampleConfig refuses = config_of({"a"});
  refuses.too_long = ExampleConfig::TooLong::kRefused;
  EXPECT_THAT(set_error("label\ttext\na\t12345\n", refuses), HasSubstr("line 2: 5 tokens, want at most 4"));
}

TEST(ExampleSet, EveryClassIsInBothParts) {
  const TemporaryFolder folder;
  const auto error_of_sets = [&](const std::string& training, const std::string& validation, double fraction) {
    ExampleConfig config = config_of({"a", "b"});
    config.training = folder.path() + "/t.tsv";
    std::ofstream(config.training) << "label\ttext\n" << training;
    if (!validation.empty()) {
      config.validation = folder.path() + "/v.tsv";
      std::ofstream(config.validation) << "label\ttext\n" << validation;
    }
    try {
      (void)load_examples(config, fraction, 256, 4);
    } catch (const ConfigError& error) {
      return std::string(error.what()).substr(folder.path().size());
    }
    return std::string();
  };
  const std::string both = "a\tx\nb\ty\n";
  EXPECT_EQ(error_of_sets(both, both, 0), "");
  EXPECT_EQ(error_of_sets(both + both, "", 0.5), "");
  EXPECT_EQ(error_of_sets("a\tx\n", both, 0),
            "/t.tsv: no example to train on has the label \"b\"; want one at least of each of a, b");
  EXPECT_EQ(error_of_sets(both, "b\tx\n", 0),
            "/v.tsv: no example to validate on has the label \"a\"; want one at least of each of a, b");
  EXPECT_EQ(error_of_sets(both + "b\tz\nb\tz\n", "", 0.5),
            "/t.tsv: no example to validate on has the label \"a\"; want one at least of each of a, b: the last part "
            "of the file validates, so its lines must be in no order of labels");
}

TEST(ExampleSet, TargetsAreTheLabelsAtTheLastTokens) {
  const ExampleSet set =
      make_examples(parse("label\ttext\nb\tx\na\twxyz\nb\t12345\n"), "a.tsv", config_of({"a", "b"}), 256, 4);
  EXPECT_EQ(set.cut, 1U);
  EXPECT_THAT(set.counts(2), ElementsAre(1U, 2U));
  const std::uint64_t numbers[] = {1, kNoExample, 0, 2};
  const Batch batch = batch_of(set, numbers, 6);
  EXPECT_EQ(batch.sequences, 4);
  const std::int32_t n = models::kIgnoredTarget;
  EXPECT_THAT(batch.targets, ElementsAre(n, n, n, 0, n, n,  //
                                         n, n, n, n, n, n,  //
                                         1, n, n, n, n, n,  //
                                         n, n, n, 1, n, n));
  EXPECT_THAT(std::span(batch.tokens).subspan(0, 6), ElementsAre('w', 'x', 'y', 'z', 0, 0));
  EXPECT_THAT(std::span(batch.tokens).subspan(18, 6), ElementsAre('1', '2', '3', '4', 0, 0));
  const EvaluationExamples evaluation(set, 2, 4);
  EXPECT_EQ(evaluation.batches(), 2U);
  EXPECT_EQ(evaluation.count_targets(), 3U);
  EXPECT_THAT(evaluation.batch(1).targets, ElementsAre(n, n, n, 1, n, n, n, n));
}

}  // namespace
}  // namespace droptest::experiments::example_file_test
