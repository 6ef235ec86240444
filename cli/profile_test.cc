#include "cli/profile.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "gtest/gtest.h"

namespace muster {
namespace {

using ::nlohmann::json;

TEST(Stacks, TheMainThreadIsFirstAndItsInnermostFrameOnTop) {
  const auto text = RenderStacks(R"([
    {"pid": 7, "os_thread_id": 9, "thread_name": "loader", "active": true, "frames": []},
    {"pid": 7, "os_thread_id": 7, "thread_name": "MainThread", "active": false, "frames": [
      {"name": "recv", "filename": "/lib/socket.py", "short_filename": "socket.py", "line": 5},
      {"name": "<module>", "filename": "/w/train.py", "short_filename": null, "line": 12}]}])");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text,
            "  process 7\n"
            "  MainThread (7), waits\n"
            "    recv  socket.py:5\n"
            "    <module>  /w/train.py:12\n"
            "  loader (9), runs\n");
}

TEST(Stacks, NamesOfTheJobsOwnSteerNoTerminal) {
  const auto text = RenderStacks(R"([
    {"pid": 7, "os_thread_id": 7, "thread_name": "a\u001b[2J", "active": true, "frames": [
      {"name": "f\u001b[1m", "short_filename": "b\u0007.py", "line": 5},
      {"name": "g\nh", "filename": "/w/\u009bc.py", "short_filename": null, "line": 6}]}])");
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->find_first_of("\x1b\x07"), std::string::npos) << *text;
  EXPECT_EQ(text->find("\xc2\x9b"), std::string::npos) << *text;
  EXPECT_EQ(std::count(text->begin(), text->end(), '\n'), 4) << *text;
}

TEST(Stacks, WhatIsNoneIsRefused) {
  for (const char* bad :
       {"", "{}", "[]", "[1]", R"([{"frames": 3}])", R"([{"frames": [3]}])", "[{"})
    EXPECT_FALSE(RenderStacks(bad).ok()) << bad;
}

TEST(Traces, ProcessesOfAllRanksHaveNumbersAndNamesOfTheirOwn) {
  const auto merged = MergeTraces(
      {{0,
        R"([{"ph":"B","name":"f","pid":12,"tid":12,"ts":1.5},{"ph":"E","name":"f","pid":12,"ts":2}])"},
       {3, R"([{"ph":"X","name":"g","pid":12,"ts":4},{"ph":"X","name":"h","pid":13,"ts":5}])"}});
  ASSERT_TRUE(merged.ok()) << merged.status();
  std::map<int, std::string> names;
  std::vector<std::pair<std::string, int>> events;
  const json read = json::parse(*merged);
  for (const json& event : read["traceEvents"]) {
    if (event["ph"] == "M")
      names[event["pid"]] = event["args"]["name"];
    else
      events.emplace_back(event["name"], event["pid"]);
  }
  EXPECT_EQ(names,
            (std::map<int, std::string>{
                {1, "rank 0, process 12"}, {2, "rank 3, process 12"}, {3, "rank 3, process 13"}}));
  EXPECT_EQ(events,
            (std::vector<std::pair<std::string, int>>{{"f", 1}, {"f", 1}, {"g", 2}, {"h", 3}}));
}

TEST(Traces, TimesOfKinetosTracesAreFromTheEarliestBase) {
  const auto merged = MergeTraces(
      {{0,
        R"({"baseTimeNanoseconds": 5000000, "traceEvents": [{"ph":"X","name":"a","pid":1,"ts":10}]})"},
       {1,
        R"({"traceEvents": [{"ph":"X","name":"b","pid":"Spans","ts":10},{"ph":"M","name":"process_name","pid":"Spans"}],
               "baseTimeNanoseconds": 3000000})"}});
  ASSERT_TRUE(merged.ok()) << merged.status();
  std::map<std::string, double> at;
  const json read = json::parse(*merged);
  for (const json& event : read["traceEvents"])
    if (event["ph"] == "X") at[event["name"]] = event["ts"];
  EXPECT_EQ(at, (std::map<std::string, double>{{"a", 2010}, {"b", 10}}));
}

TEST(Traces, WhatIsNoneIsRefusedWithItsRank) {
  for (const char* bad : {"", "3", "{}", R"({"traceEvents": 3})", "[{"}) {
    const auto merged = MergeTraces({{4, bad}});
    ASSERT_FALSE(merged.ok()) << bad;
    EXPECT_NE(merged.status().message().find("rank 4"), std::string::npos);
  }
}

TEST(Documents, AreSplitAtTheirSeparatorAndEmptyOnesLeft) {
  EXPECT_EQ(SplitDocuments("[1]\x1e\n{}\x1e\n"), (std::vector<std::string>{"[1]", "\n{}"}));
  EXPECT_TRUE(SplitDocuments("\n").empty());
}

}  // namespace
}  // namespace muster
