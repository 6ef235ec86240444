#include "agent/progress/line.h"

#include "gtest/gtest.h"

namespace muster::agent {
namespace {

TEST(ProgressLine, EveryKeyThatIsKnownIsRead) {
  const auto line = ParseProgressLine(
      R"({"step":12,"total_steps":40,"loss":2.5,"tokens_per_s":1e4,"mfu":0.3,"mfu_full":0.4,)"
      R"("grad_norm":1,"rows_per_s":70.5,"bad_rows":2,"rank":3,"own_time_s":0.25,)"
      R"("checkpoint":{"step":10,"path":"/c","bytes":7,"loaded_step":5,"loaded_path":"/b"},)"
      R"("loaded":{"step":5,"path":"/b","skipped":[{"path":"/a","why":"torn"},3]},)"
      R"("export":{"staged":"/s","target":"/t"},"new":{"key":[null,true]}})");
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(line->metrics->step, 12);
  EXPECT_EQ(line->metrics->total_steps, 40);
  EXPECT_EQ(line->metrics->loss, 2.5);
  EXPECT_EQ(line->metrics->tokens_per_s, 1e4);
  EXPECT_EQ(line->metrics->mfu_causal, 0.3);
  EXPECT_EQ(line->metrics->mfu_full, 0.4);
  EXPECT_EQ(line->metrics->grad_norm, 1);
  EXPECT_EQ(line->metrics->rows_per_s, 70.5);
  EXPECT_EQ(line->metrics->bad_rows, 2);
  EXPECT_EQ(line->rank, 3);
  EXPECT_EQ(line->own_time_s, 0.25);
  EXPECT_FALSE(line->own_time_alone);
  EXPECT_EQ(line->checkpoint->step, 10);
  EXPECT_EQ(line->checkpoint->path, "/c");
  EXPECT_EQ(line->checkpoint->size_bytes, 7);
  EXPECT_EQ(line->checkpoint->loaded_step, 5);
  EXPECT_EQ(line->checkpoint->loaded_path, "/b");
  EXPECT_EQ(line->loaded->step, 5);
  EXPECT_EQ(line->loaded->path, "/b");
  EXPECT_EQ(line->loaded->refused, (std::vector<std::string>{"/a: torn", ": "}));
  EXPECT_EQ(line->exported->staged, "/s");
  EXPECT_EQ(line->exported->target, "/t");
}

TEST(ProgressLine, WhatTheSchedulerWouldRefuseIsShortened) {
  const std::string path(5000, 'p');
  std::string skipped;
  for (int i = 0; i < 1200; ++i) skipped += i == 0 ? "{}" : ",{}";
  const auto line =
      ParseProgressLine("{\"step\":1,\"total_steps\":-7,\"checkpoint\":{\"path\":\"" + path +
                        "\"},\"loaded\":{\"step\":-9,\"path\":\"" + path + "\",\"skipped\":[" +
                        skipped + "]},\"export\":{\"staged\":\"/s\",\"target\":\"" + path + "\"}}");
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(line->metrics->total_steps, 0);
  EXPECT_EQ(line->loaded->path.size(), 4096u);
  EXPECT_EQ(line->loaded->step, -1);
  EXPECT_EQ(line->loaded->refused.size(), 1000u);
  EXPECT_FALSE(line->checkpoint.has_value());
  EXPECT_FALSE(line->exported.has_value());
}

// The scheduler can't read a message with a text that is no UTF-8: the stream would end, and again
// each time the line is repeated.
TEST(ProgressLine, NoPathIsCutWithinACharacterOrHoldsAnythingButUtf8) {
  std::string path(1400, 'p');
  for (int i = 0; i < 1000; ++i) path += "日";  // three bytes; the 4096th is within one
  const auto line = ParseProgressLine("{\"checkpoint\":{\"path\":\"/c\",\"loaded_path\":\"" + path +
                                      "\"},\"loaded\":{\"path\":\"" + path + "\"}}");
  ASSERT_TRUE(line.has_value());
  for (const std::string& cut : {line->checkpoint->loaded_path, line->loaded->path})
    EXPECT_EQ(cut, path.substr(0, 1400 + 898 * 3));
  EXPECT_FALSE(ParseProgressLine("{\"loaded\":{\"path\":\"\xff\"}}").has_value());
  EXPECT_FALSE(ParseProgressLine(R"({"loaded":{"path":"\ud800"}})").has_value());
}

TEST(ProgressLine, WrongTypesCountAsMissing) {
  const auto line = ParseProgressLine(
      R"({"step":"x","loss":"1","rank":"0","own_time_s":[],"checkpoint":3,"loaded":[],"export":{"staged":1}})");
  ASSERT_TRUE(line.has_value());
  EXPECT_EQ(line->metrics->step, 0);
  EXPECT_EQ(line->metrics->loss, 0);
  EXPECT_EQ(line->rank, -1);
  EXPECT_EQ(line->own_time_s, 0);
  EXPECT_FALSE(line->checkpoint.has_value());
  EXPECT_FALSE(line->loaded.has_value());
  EXPECT_FALSE(line->exported.has_value());
}

TEST(ProgressLine, WhatIsNoJsonObjectIsNoLine) {
  for (const char* text :
       {"", "[1]", "{", "{} {}", "{\"step\"}", "{\"step\":}", "{\"a\":[}]", "{\"loss\":nano}",
        "{NaN:1}", "{\"loss\":NaN", "{\"loss\":\"NaN}", "NaN", "{\"loss\":\"\\"})
    EXPECT_FALSE(ParseProgressLine(text).has_value()) << text;
  const std::string deep = "{\"a\":" + std::string(4000, '[');
  EXPECT_FALSE(ParseProgressLine(deep).has_value());
  EXPECT_TRUE(ParseProgressLine(deep + std::string(4000, ']') + "}").has_value())
      << "depth costs no stack";
}

// Python's json.dumps writes NaN, and C++ nan: a rank whose loss diverged is still at a step, and
// as slow as it is.
TEST(ProgressLine, ANumberThatIsNoneTakesNothingElseAlong) {
  for (const char* number :
       {"NaN", "nan", "-nan", "Infinity", "-Infinity", "inf", "1e400", "-1e999"}) {
    const auto line =
        ParseProgressLine(std::string(R"({"loss":)") + number + R"(, "step":7,"rank":3,)" +
                          R"("note":"NaN, \"1e400","own_time_s":0.5,"grad_norm": )" + number + "}");
    ASSERT_TRUE(line.has_value()) << number;
    EXPECT_EQ(line->metrics->loss, 0) << number;
    EXPECT_EQ(line->metrics->grad_norm, 0) << number;
    EXPECT_EQ(line->metrics->step, 7) << number;
    EXPECT_EQ(line->rank, 3) << number;
    EXPECT_EQ(line->own_time_s, 0.5) << number;
  }
  const auto path =
      ParseProgressLine(R"({"loss":NaN,"checkpoint":{"path":"/NaN, Infinity","step":1}})");
  ASSERT_TRUE(path.has_value());
  EXPECT_EQ(path->checkpoint->path, "/NaN, Infinity");
}

TEST(ProgressLine, AnOwnTimeIsAloneBesideRankAndStep) {
  EXPECT_TRUE(ParseProgressLine(R"({"step":1,"own_time_s":1})")->own_time_alone);
  EXPECT_TRUE(ParseProgressLine(R"({"own_time_s":1,"rank":0,"step":1})")->own_time_alone);
  EXPECT_FALSE(ParseProgressLine(R"({"rank":0,"step":1})")->own_time_alone);
  EXPECT_FALSE(ParseProgressLine(R"({"step":1,"own_time_s":1,"mine":2})")->own_time_alone);
}

}  // namespace
}  // namespace muster::agent
