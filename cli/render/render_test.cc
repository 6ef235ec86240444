#include <cstdlib>
#include <ctime>
#include <limits>
#include <memory>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "cli/render/array.h"
#include "cli/render/bar.h"
#include "cli/render/escapes.h"
#include "cli/render/explain.h"
#include "cli/render/fleet.h"
#include "cli/render/job.h"
#include "cli/render/json.h"
#include "cli/render/ledger.h"
#include "cli/render/preview.h"
#include "cli/render/testing/job318.h"
#include "cli/render/top.h"
#include "common/base/units.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Utc : public ::testing::Environment {
 public:
  void SetUp() override {
    setenv("TZ", "UTC", 1);
    tzset();
  }
};
const auto* const kUtc = ::testing::AddGlobalTestEnvironment(new Utc);

TEST(FormatTest, TimesReadAsPeopleSayThem) {
  EXPECT_EQ(FormatClock(kNow + 2 * kHour, kNow), "16:00");
  EXPECT_EQ(FormatClock(kNow + kDay, kNow), "Sun 14:00");
  EXPECT_EQ(FormatClock(kNow + 30 * kDay, kNow), "2026-12-21 14:00");
  const std::pair<int64_t, const char*> spans[] = {
      {-5, "0.0 s"},          {300 * kMillisecond, "0.3 s"},         {35 * kSecond, "35 s"},
      {12 * kMinute, "12 m"}, {3 * kHour + 4 * kMinute, "3 h 04 m"}, {51 * kHour, "2 d 3 h"}};
  for (const auto& [span, text] : spans) EXPECT_EQ(FormatSpan(span), text);
  const std::pair<int64_t, const char*> starts[] = {{-1, "never"},
                                                    {0, "unknown"},
                                                    {kNow, "now"},
                                                    {kNow - kHour, "now"},
                                                    {kNow + 35 * kSecond, "~35 s"},
                                                    {kNow + 10 * kMinute, "14:10"}};
  for (const auto& [start, text] : starts) EXPECT_EQ(FormatStart(start, kNow), text);
  const std::pair<double, const char*> counts[] = {{0, "0"},         {950, "950"},
                                                   {15200, "15.2k"}, {106000, "106k"},
                                                   {999960, "1.0M"}, {1.3e6, "1.3M"}};
  for (const auto& [count, text] : counts) EXPECT_EQ(FormatCount(count), text);
}

TEST(FormatTest, StandInsAreAlwaysMarkedAsDeclared) {
  EXPECT_EQ(FlavourName("cpu-slot", false), "cpu-slot (declared)");
  EXPECT_EQ(FlavourName("h100-80g", true), "h100-80g (declared)");
  EXPECT_EQ(FlavourName("h100-80g", false), "h100-80g");
}

TEST(FormatTest, TerminalEscapesFromNamesAreHarmless) {
  EXPECT_EQ(Plain("a\x1b[2Jb\nc"), "a?[2Jb c");
  EXPECT_EQ(Plain("a\xc2\x9b"
                  "1m"),
            "a??1m");
  EXPECT_EQ(Plain("naïve ━"), "naïve ━");
  pb::Job job = Job318();
  job.mutable_spec()->set_name("x\x1b]0;owned\x07");
  EXPECT_THAT(RenderJob(job, Screen(), kNow), Not(HasSubstr("\x1b")));
  EXPECT_THAT(JobsTable({job}, kNow).Render(Screen()), Not(HasSubstr("\x1b")));
}

TEST(TableTest, ColumnsAreAlignedChosenAndCut) {
  Table table({{"JOB", Table::kRight}, {"NAME"}, {"IN USE", Table::kRight, true}, {"WHY"}});
  table.AddRow({"7", "a", "1", "a long reason that goes on"});
  table.AddRow({"318", "sft-8b", "12", ""});
  EXPECT_EQ(table.Render(Screen()),
            "JOB  NAME    WHY\n  7  a       a long reason that goes on\n318  sft-8b  -\n");
  Table::Shape wide;
  wide.wide = true;
  EXPECT_EQ(*table.Render(Screen(), wide),
            "JOB  NAME    IN USE  WHY\n  7  a            1  a long reason that goes on\n318  "
            "sft-8b      12  -\n");
  Table::Shape chosen;
  chosen.columns = {"in-use", "job"};
  EXPECT_EQ(*table.Render(Screen(), chosen), "IN USE  JOB\n     1    7\n    12  318\n");
  chosen.columns = {"nope"};
  EXPECT_THAT(std::string(table.Render(Screen(), chosen).status().message()),
              HasSubstr("no column \"nope\" here. There are job, name, in-use, why"));
  for (absl::string_view line : absl::StrSplit(table.Render(Terminal(24)), '\n'))
    EXPECT_LE(DisplayWidth(std::string(line)), 24) << line;
}

TEST(EscapesTest, ColoursReachATerminalAndNothingThatMovesItDoes) {
  const std::tuple<const char*, const char*> cases[] = {
      {"loss \x1b[1;32m2.5\x1b[0m\n", "loss \x1b[1;32m2.5\x1b[0m\n"},
      {"50%\r\x1b[K51%\b\t\n", "50%\r\x1b[K51%\b\t\n"},
      {"\x1b]0;owned\x07", "^[]0;owned^G"},
      {"a\x1b[2Jb\x1b[10;3H", "a^[[2Jb^[[10;3H"},
      {"\x1b[?1049h\x1b[6n\x1b[>1m", "^[[?1049h^[[6n^[[>1m"},
      {"\x1b[1\x1b[31m", "^[[1\x1b[31m"},
      {"\x1b"
       "c\x0e",
       "^[c^N"},
      {"\xc2\x9b"
       "2J na\xc3\xafve \xc2\xb5s",
       "?2J na\xc3\xafve \xc2\xb5s"}};
  for (const auto& [raw, shown] : cases) {
    TerminalText whole, pieces;
    EXPECT_THAT(whole.Next(raw) + whole.End(), ::testing::StartsWith(shown));
    std::string out;
    for (const char* c = raw; *c != 0; ++c) out += pieces.Next({c, 1});
    EXPECT_THAT(out + pieces.End(), ::testing::StartsWith(shown)) << "it may come in any pieces";
  }
  TerminalText open;
  EXPECT_EQ(open.Next("\x1b[31mred"), "\x1b[31mred");
  EXPECT_EQ(open.End(), "\x1b[0m") << "what a program left on is turned off";
  TerminalText cut;
  EXPECT_EQ(cut.Next("x\x1b[3"), "x");
  EXPECT_EQ(cut.End(), "^[[3");
}

TEST(FormatTest, LongLinesAreBrokenBetweenWordsAndGoOnFurtherIn) {
  const std::string text =
      "Job 3 waits: 2 more h100-80g in phx\n  have to become free before it starts\n";
  EXPECT_EQ(Wrapped(text, 20),
            "Job 3 waits: 2 more\n  h100-80g in phx\n  have to become\n    free before it\n    "
            "starts\n");
  EXPECT_EQ(Wrapped(text, 80), text);
  EXPECT_EQ(Wrapped("unbreakable/and/longer/than/that then", 10),
            "unbreakable/and/longer/than/that\n  then");
  EXPECT_EQ(Wrapped("\x1b[1mcoloured and longer", 5), "\x1b[1mcoloured and longer");
  EXPECT_EQ(Wrapped("näïve wörds", 5), "näïve\n  wörds") << "columns, not bytes";
}

TEST(PreviewTest, TableNamesGiversAndImpossiblePlaces) {
  pb::PreviewResponse preview;
  auto* first = preview.add_candidates();
  first->set_cluster("phx");
  first->set_flavour("h100-80g");
  first->set_workers(2);
  first->set_gpus_milli_per_worker(8000);
  first->set_within("1 rack");
  first->set_start_ns(kNow + 35 * kSecond);
  first->set_chosen(true);
  auto* taken = first->add_takes_from();
  taken->set_job(311);
  taken->set_queue("scratch");
  taken->set_gpus_milli(16000);
  taken->set_outcome("goes on in dal");
  taken->set_lost_gpu_ms(720'000);
  auto* second = preview.add_candidates();
  second->set_cluster("lab");
  second->set_flavour("cpu-slot");
  second->set_declared(true);
  second->set_workers(2);
  second->set_gpus_milli_per_worker(1000);
  second->set_within("1 host");
  second->set_start_ns(kNow + 130 * kMinute);
  second->add_after_jobs(305);
  auto* never = preview.add_candidates();
  never->set_cluster("dal");
  never->set_start_ns(-1);
  never->set_reason("gpu_types allows only h100-80g");
  preview.set_queue_line(
      "Queue research/nlp: 0 of 16 guaranteed h100-80g in use, 16 with this job.");
  EXPECT_EQ(RenderPreview(preview, Screen(), kNow),
            "#  CLUSTER  FLAVOUR              WORKERS  WITHIN  STARTS  CHOSEN  TAKES FROM\n"
            "1  phx      h100-80g             2 x 8    1 rack  ~35 s   yes     scratch 311: 16, "
            "goes on in dal\n"
            "2  lab      cpu-slot (declared)  2 x 1    1 host  16:10   -       nobody (305 ends)\n"
            "-  dal      -                    -        -       never   -       gpu_types allows "
            "only h100-80g\n"
            "Queue research/nlp: 0 of 16 guaranteed h100-80g in use, 16 with this job. 311 loses "
            "about 0.2 GPU-h.\n");
  EXPECT_TRUE(WouldEvict(preview));
  preview.mutable_candidates(0)->set_chosen(false);
  EXPECT_FALSE(WouldEvict(preview));
}

TEST(ExplainTest, SaysWhyUntilWhenAndWhatWouldHelp) {
  pb::ExplainResponse explained;
  explained.set_now_ns(kNow);
  explained.set_complete(true);
  pb::Job* job = explained.mutable_job();
  *job = Job318();
  job->set_state(pb::WAITING);
  job->mutable_tasks(0)->set_state(pb::TASK_WAITING);
  job->mutable_tasks(0)->clear_attempts();
  explained.set_start_ns(kNow + 130 * kMinute);
  explained.set_forecast(true);
  explained.set_place("phx/r3,r4");
  auto* why = explained.add_why();
  why->set_task("main");
  why->set_code(pb::V_CAPACITY);
  why->set_cluster("phx");
  why->set_flavour("h100-80g");
  why->set_missing_milli(16000);
  why->set_text("its turn has come, and it waits for 16 more h100-80g in phx to become free");
  for (auto [number, until_ns] :
       {std::pair{305, kNow + 100 * kMinute}, std::pair{290, int64_t{0}}}) {
    auto* holder = why->add_holders();
    holder->set_job(static_cast<uint64_t>(number));
    holder->set_queue("prod");
    holder->set_held_milli(16000);
    holder->set_until_ns(until_ns);
  }
  auto* fewer = explained.add_relaxations();
  fewer->set_own(true);
  fewer->set_change("workers: 1");
  fewer->set_start_ns(kNow);
  fewer->set_place("phx/r4/h07");
  auto* quota = explained.add_relaxations();
  quota->set_change("guarantee of research/nlp raised to 32");
  quota->set_start_ns(kNow + 10 * kSecond);
  quota->set_place("phx/r1");
  auto* taken = quota->add_takes_from();
  taken->set_queue("scratch");
  taken->set_job(311);
  taken->set_gpus_milli(16000);
  taken->set_outcome("goes on in dal");
  auto* moved = quota->add_takes_from();
  moved->set_queue("rl");
  moved->set_job(312);
  moved->set_outcome("goes on with other devices");
  explained.mutable_relaxations()->SwapElements(0, 1);  // told by their time
  explained.set_tried(9);
  EXPECT_EQ(
      RenderExplain(explained, Screen()),
      "Job 318 sft-8b, research/nlp, 2 x 8 h100-80g: waiting since 13:58, starts about 16:10 "
      "(forecast: phx/r3,r4)\n"
      "WHY       MISSING             HELD BY\n"
      "capacity  16 h100-80g in phx  prod 305: 16 until 15:40; prod 290: 16\n"
      "  its turn has come, and it waits for 16 more h100-80g in phx to become free\n"
      "It would start\n"
      " now    with workers: 1                            on phx/r4/h07\n"
      " ~10 s  if guarantee of research/nlp raised to 32  on phx/r1, from scratch 311: 16, goes on "
      "in dal; rl 312, goes on with other devices\n"
      "\"with\" is a change of the job itself; one that waits can't be changed. Submit it anew:\n"
      "  muster show 318 --spec > job.yaml    # change it there\n"
      "  muster submit -d job.yaml && muster cancel 318\n"
      "The new job stands behind those of its queue and priority that wait already, and starts "
      "without the checkpoints of this one.\n"
      "Ends come from reported progress and time limits; the forecast moves with them.\n");
  const std::string narrow = RenderExplain(explained, Terminal(60));
  for (const char* whole : {"goes on with other devices", "prod 290: 16"})
    EXPECT_THAT(absl::StrReplaceAll(narrow, {{"\n", " "}}), HasSubstr(whole)) << "nobody is cut";
  EXPECT_THAT(narrow, Not(HasSubstr("…")));
  pb::ExplainResponse running;
  running.set_now_ns(kNow);
  *running.mutable_job() = Job318();
  EXPECT_EQ(RenderExplain(running, Screen()),
            "Job 318 sft-8b, research/nlp, 2 x 8 h100-80g: running since 13:59\n  main running on "
            "phx/h07,h08, ends 15:40\n");
  running.add_borrowed()->set_text("borrowed: may be stopped at once for work within a guarantee");
  EXPECT_THAT(RenderExplain(running, Screen()),
              HasSubstr("ends 15:40\n  borrowed: may be stopped at once for work within a "
                        "guarantee\n"));
  running.clear_borrowed();
  running.mutable_job()->mutable_tasks(0)->set_spill_reason(
      "dal is full for about 9m; phx has room now");
  EXPECT_THAT(
      RenderExplain(running, Screen()),
      HasSubstr(
          "main running on phx/h07,h08, ends 15:40: dal is full for about 9m; phx has room now\n"));
}

TEST(ExplainTest, WhatRunsInMultiplesSaysByHowManyWorkersItGrows) {
  pb::ExplainResponse running;
  running.set_now_ns(kNow);
  *running.mutable_job() = Job318();
  pb::Workers* workers = running.mutable_job()->mutable_spec()->mutable_tasks(0)->mutable_workers();
  workers->set_min(2);
  workers->set_max(8);
  workers->set_multiple_of(2);
  EXPECT_THAT(
      RenderExplain(running, Screen()),
      HasSubstr("main running on phx/h07,h08, can grow by 2 workers at a time, ends 15:40\n"));
  EXPECT_EQ(DemandName(running.job().spec().tasks(0)), "{2..8 by 2} x 8 h100-80g");
  workers->set_max(2);
  EXPECT_THAT(RenderExplain(running, Screen()), Not(HasSubstr("grows")));
}

TEST(ExplainTest, WhatIsTheSameOfSeveralTasksIsSaidOnce) {
  pb::ExplainResponse explained;
  explained.set_now_ns(kNow);
  pb::Job* job = explained.mutable_job();
  *job = Job318();
  job->mutable_tasks(0)->set_state(pb::TASK_WAITING);
  for (const char* name : {"eval", "other"}) {
    job->add_tasks()->set_name(name);
    job->mutable_tasks()->rbegin()->set_state(pb::TASK_WAITING);
  }
  for (const char* task : {"main", "eval", "other"}) {
    auto* why = explained.add_why();
    why->set_task(task);
    why->set_code(pb::V_CAPACITY);
    why->set_cluster("lab");
    why->set_flavour("gpu");
    why->set_missing_milli(why->task() == "other" ? 2000 : 1000);
    why->set_text(why->task() == "other" ? "waits for 2 more" : "waits for 1 more");
  }
  auto* holder = explained.mutable_why(0)->add_holders();
  holder->set_job(290);
  holder->set_queue("prod");
  holder->set_held_milli(4000);
  EXPECT_THAT(RenderExplain(explained, Screen()),
              HasSubstr("TASK        WHY       MISSING       HELD BY\n"
                        "main, eval  capacity  1 gpu in lab  prod 290: 4\n"
                        "other       capacity  2 gpu in lab  -\n"
                        "  main, eval: waits for 1 more\n"
                        "  other: waits for 2 more\n"));
}

TEST(FormatTest, TimesWithinSentencesAreLocalOnesToo) {
  setenv("TZ", "EET-2", 1);
  tzset();
  for (const auto& [said, shown] :
       {std::pair("starts again at 14:05:09 UTC", "starts again at 16:05:09"),
        std::pair("at 23:59:59 UTC, or by 00:00:01 UTC", "at 01:59:59, or by 02:00:01"),
        std::pair("waits for its time, 2026-11-24 23:30 UTC; 1 time was left out",
                  "waits for its time, Wed 01:30; 1 time was left out"),
        std::pair("until 2027-03-01 10:00 UTC", "until 2027-03-01 12:00"),
        std::pair("back 2026-11-24 23:30:00 UTC", "back 2026-11-25 01:30:00"),
        std::pair("(14:05:09 UTC)", "(16:05:09)"), std::pair("14:05:09 UTC - so", "16:05:09 - so"),
        std::pair("no time UTC", "no time UTC"), std::pair("", "")}) {
    EXPECT_EQ(LocalTimes(said, kNow), shown);
  }
  for (const char* left :
       {"14:05:00 UTC+2", "14:05:00 UTC -02:00", "14:05:00 UTCtime", "2026-11-24T14:05:00 UTC",
        "24.11.2026 14:05:00 UTC", "114:05:00 UTC", "2026-11-24 14:05 UTC+2", " UTC"}) {
    EXPECT_EQ(LocalTimes(left, kNow), left);
  }
  setenv("TZ", "UTC", 1);
  tzset();
}

TEST(ExplainTest, WhatLacksNoDevicesWaitsForItsTurn) {
  pb::ExplainResponse explained;
  explained.set_now_ns(kNow);
  *explained.mutable_job() = Job318();
  explained.mutable_job()->mutable_tasks(0)->set_state(pb::TASK_WAITING);
  auto* why = explained.add_why();
  why->set_code(pb::V_SHARE);
  why->set_text("behind job 174");
  why->add_holders()->set_job(305);
  EXPECT_THAT(RenderExplain(explained, Screen()),
              HasSubstr("WHY    MISSING  HELD BY\norder  -        -\n  behind job 174\n"));
  why->set_missing_milli(1000);
  EXPECT_THAT(RenderExplain(explained, Screen()), HasSubstr("\nshare  "));
}

TEST(ExplainTest, BlamesOthersEndsOnlyWhereTheyHoldWhatItWaitsFor) {
  pb::ExplainResponse explained;
  explained.set_now_ns(kNow);
  explained.set_complete(true);
  *explained.mutable_job() = Job318();
  explained.mutable_job()->mutable_tasks(0)->set_state(pb::TASK_WAITING);
  auto* why = explained.add_why();
  why->set_code(pb::V_HELD);
  why->set_text("lab/h1 is drained");
  why->add_holders()->set_job(305);
  EXPECT_THAT(RenderExplain(explained, Screen()), HasSubstr("starts is unknown\n"));
  why->set_code(pb::V_HOLDER);
  EXPECT_THAT(RenderExplain(explained, Screen()), HasSubstr("starts is unknown\n"));
  for (const pb::VerdictCode code : {pb::V_CAPACITY, pb::V_PLACEMENT}) {
    why->set_code(code);
    EXPECT_THAT(RenderExplain(explained, Screen()), HasSubstr("unknown: nobody's end is known"));
  }
  why->clear_holders();
  EXPECT_THAT(RenderExplain(explained, Screen()), HasSubstr("starts is unknown\n"))
      << "no host can take it";
}

TEST(ExplainTest, SaysWhenNothingHelpsAndWhenTimeRanOut) {
  pb::ExplainResponse explained;
  explained.set_now_ns(kNow);
  explained.set_complete(true);
  *explained.mutable_job() = Job318();
  explained.mutable_job()->mutable_tasks(0)->set_state(pb::TASK_WAITING);
  explained.add_why()->set_code(pb::V_SHARE);
  explained.set_tried(4);
  EXPECT_THAT(RenderExplain(explained, Screen()), HasSubstr("None of the 4 changes"));
  explained.set_complete(false);
  EXPECT_THAT(RenderExplain(explained, Screen()), HasSubstr("--budget 20s looks longer"));
}

// musterd leaves out their numbers.
TEST(RenderTest, WhatIsNotTheReadersToSeeIsCalledAnothers) {
  pb::PreviewResponse preview;
  pb::PreviewResponse::Taken* taken = preview.add_candidates()->add_takes_from();
  preview.mutable_candidates(0)->set_chosen(true);
  taken->set_gpus_milli(2000);
  taken->set_lost_gpu_ms(3'600'000);
  EXPECT_EQ(TakenText(preview.candidates(0).takes_from()), "another's job: 2");
  EXPECT_THAT(RenderPreview(preview, Screen(), kNow),
              HasSubstr("Another's job loses about 1.0 GPU-h."));
  pb::Host host;
  host.add_blames()->set_attempt(1);
  EXPECT_THAT(HostNotes(host, 0), HasSubstr("another's job (by its log)"));
  host.mutable_blames(0)->set_attempt(0);
  EXPECT_THAT(HostNotes(host, 0), HasSubstr("its host (by its log)"));
}

TEST(SimulateTest, ShowsStartsQueuesAndEffects) {
  pb::SimulateResponse simulated;
  simulated.set_now_ns(kNow);
  simulated.set_until_ns(kNow + 2 * kHour);
  simulated.set_complete(true);
  auto* job = simulated.add_submitted();
  job->set_name("big");
  job->set_queue("prod");
  job->set_workers(2);
  job->set_gpus_milli_per_worker(8000);
  job->set_flavour("h100-80g");
  job->set_within("1 rack");
  job->set_start_ns(kNow + 10 * kSecond);
  job->set_place("phx/r4");
  auto* queue = simulated.add_queues();
  queue->set_path("prod");
  queue->set_flavour("h100-80g");
  queue->set_guarantee_before_milli(32000);
  queue->set_guarantee_after_milli(40000);
  auto* effect = simulated.add_effects();
  effect->set_job(305);
  effect->set_name("vit");
  effect->set_queue("research");
  effect->set_stopped_ns(kNow);
  effect->set_cause(pb::PREEMPTION);
  effect->set_gpus_milli(8000);
  effect->set_outcome("goes on with 1 worker");
  effect->set_end_before_ns(kNow + 10 * kMinute);
  effect->set_end_after_ns(kNow + 20 * kMinute);
  EXPECT_EQ(RenderSimulation(simulated, Screen()),
            "JOB  QUEUE  WORKERS         WITHIN  STARTS  ENDS     WHERE   TAKES FROM\n"
            "big  prod   2 x 8 h100-80g  1 rack  ~10 s   unknown  phx/r4  nobody\n\n"
            "QUEUE  FLAVOUR   GUARANTEE  ENTITLED  IN USE\n"
            "prod   h100-80g  32 -> 40   0         0\n\n"
            "JOB  NAME  QUEUE     STOPPED          GIVES UP  THEN                   STARTS  ENDS\n"
            "305  vit   research  now, preemption         8  goes on with 1 worker  -       14:10 "
            "-> 14:20\n"
            "Looked ahead until 16:00. Nothing was changed.\n");
}

TEST(TopTest, HeadAndRowsByQueueAndByJob) {
  pb::TopResponse top;
  top.set_now_ns(kNow);
  top.set_hosts_up(2);
  top.set_hosts_known(3);
  top.set_running_jobs(1);
  auto* total = top.add_totals();
  total->set_flavour("h100-80g");
  total->set_total_milli(40000);
  total->set_used_milli(20000);
  total->set_down_milli(4000);
  total->set_waiting_milli(16000);
  EXPECT_EQ(TopHead(top, Screen()),
            "14:00:00  2 of 3 hosts up, 1 jobs run, 0 wait\n h100-80g  ##########........xx  20 of "
            "40 in use, 50 %; 4 drained or down; 16 waited for\n");
  auto* row = top.add_rows();
  row->set_name("research");
  row->set_flavour("h100-80g");
  row->set_used_milli(20000);
  row->set_guarantee_milli(16000);
  row->set_entitled_milli(20000);
  row->set_running_jobs(1);
  row->set_tokens_per_s(106000);
  EXPECT_EQ(TopTable(top, pb::TopRequest::QUEUE).Render(Screen()),
            "QUEUE     FLAVOUR   GUARANTEE  ENTITLED  IN USE  WAITS FOR  RUN HERE  WAIT HERE  "
            "LONGEST WAIT  TOKENS/S\n"
            "research  h100-80g         16        20      20          -         1          0  "
            "           -      106k\n");
  top.mutable_totals(0)->set_declared(true);  // nobody may take a stand-in for a GPU
  for (const auto by : {pb::TopRequest::QUEUE, pb::TopRequest::CLUSTER, pb::TopRequest::USER,
                        pb::TopRequest::JOB}) {
    EXPECT_THAT(TopTable(top, by).Render(Screen()), HasSubstr("h100-80g (declared)")) << by;
  }
  row->set_job(318);
  row->set_name("sft-8b");
  row->set_place("phx/r4/h07");
  row->mutable_progress()->set_step(246);
  row->mutable_progress()->set_total_steps(600);
  EXPECT_THAT(TopTable(top, pb::TopRequest::JOB).Render(Screen()), HasSubstr("318  sft-8b"));
  EXPECT_THAT(TopTable(top, pb::TopRequest::JOB).Render(Screen()), HasSubstr("41% 246/600"));
}

TEST(JobTest, ListShowsPlaceProgressAndEnd) {
  EXPECT_EQ(JobsTable({Job318()}, kNow).Render(Screen()),
            "JOB  NAME    QUEUE         STATE    TASK  DEVICES         WHERE        PROGRESS      "
            "AGE  WHY\n"
            "318  sft-8b  research/nlp  running  main  2 x 8 h100-80g  phx/h07,h08  41% 246/600  "
            "93 s  ends 15:40\n");
}

pb::Job Array318() {
  pb::Job job = Job318();
  job.mutable_array()->set_members(1000);
  job.mutable_array()->set_succeeded(120);
  job.mutable_array()->set_failed(2);
  job.mutable_array()->set_running(64);
  job.mutable_array()->set_waiting(814);
  return job;
}

TEST(ArrayTest, IsOneRowWithItsCounts) {
  const std::string list = JobsTable({Array318()}, kNow).Render(Screen());
  EXPECT_THAT(list, HasSubstr("318"));
  EXPECT_THAT(list, HasSubstr("122/1000 ended, 64 run, 2 failed"));
  EXPECT_THAT(list, Not(HasSubstr("h07"))) << "where one of many runs says nothing";
  const std::string page = RenderJob(Array318(), Screen(), kNow);
  EXPECT_THAT(page, HasSubstr("120 succeeded, 2 failed, 64 running, 814 waiting"));
  EXPECT_THAT(page, HasSubstr("muster jobs 318 --tasks"));
  EXPECT_TRUE(EventLines(nullptr, Array318(), kNow).empty());
  EXPECT_EQ(LiveLines(Array318(), Terminal(100), kNow),
            std::vector<std::string>{"120 succeeded, 2 failed, 64 running, 814 waiting"});
  pb::Job ended = Array318();
  ended.set_state(pb::FAILED);
  ended.set_detail("job 318_7: rank 0: exit 1");
  EXPECT_THAT(OutcomeLine(ended), HasSubstr("2 of 1000 failed; job 318_7: rank 0: exit 1"));
}

TEST(ArrayTest, OneMemberIsNotSeveral) {
  pb::Job job = Array318();
  EXPECT_THAT(HeadLine(job, kNow), HasSubstr(" a member, 1000 members: "));
  job.mutable_array()->set_members(1);
  EXPECT_THAT(HeadLine(job, kNow), HasSubstr(" a member, 1 member: "));
}

TEST(ArrayTest, MembersAreNamedByTheArrayAndTheirIndexAndTellTheirValues) {
  pb::Job job = Job318();
  job.set_number(325);
  job.mutable_member()->set_array(318);
  job.mutable_member()->set_index(7);
  job.mutable_member()->set_id("318_7");
  pb::SweepValues* values = job.mutable_member()->add_values();
  values->set_name("lr");
  values->add_values("3e-4");
  EXPECT_EQ(JobId(job), "318_7");
  const std::string list = MembersTable({job}, kNow).Render(Screen());
  EXPECT_THAT(list, HasSubstr("318_7"));
  EXPECT_THAT(list, HasSubstr("lr=3e-4"));
  EXPECT_THAT(list, HasSubstr("h07"));
  job.mutable_member()->clear_values();
  EXPECT_THAT(MembersTable({job}, kNow).Render(Screen()), Not(HasSubstr("VALUES")));
  EXPECT_THAT(HeadLine(job, kNow), HasSubstr("Job 318_7 sft-8b"));
}

TEST(JobTest, AJobThatStartedAgainRunsSinceThen) {
  pb::Job job = Job318();
  job.set_start_ns(kNow - kMinute);
  EXPECT_THAT(HeadLine(job, kNow), ::testing::EndsWith("running since 13:59"));
  job.set_start_ns(kNow - 30 * kMinute);
  EXPECT_THAT(HeadLine(job, kNow), ::testing::EndsWith("running since 13:59, first started 13:30"));
  job.mutable_tasks(0)->mutable_attempts(0)->set_start_ns(0);
  EXPECT_THAT(HeadLine(job, kNow), ::testing::EndsWith("running since 13:30"))
      << "the new attempt has not started yet";
}

TEST(JobTest, ProgressIsNeverOlderThanTheCheckpointBesideIt) {
  pb::Job job = Job318();
  pb::Checkpoint* newest = job.mutable_tasks(0)->add_checkpoints();
  newest->set_attempt(1);
  newest->set_step(300);
  EXPECT_THAT(PlainProgress(job.tasks(0), kNow), HasSubstr("50%  300/600"));
  EXPECT_EQ(ShortProgress(job.tasks(0)), "50% 300/600");
  newest->set_attempt(2);
  EXPECT_EQ(ShortProgress(job.tasks(0)), "41% 246/600") << "of another attempt";
}

TEST(JobTest, EventsTellEachTransitionOnceWithItsOwnTime) {
  pb::Job placed = Job318();
  placed.mutable_tasks(0)->mutable_attempts(0)->set_start_ns(0);
  placed.mutable_tasks(0)->mutable_attempts(0)->set_place_ns(kNow - 61 * kSecond);
  pb::Job waiting = placed;
  waiting.mutable_tasks(0)->clear_attempts();
  EXPECT_THAT(EventLines(&waiting, placed, kNow),
              ::testing::ElementsAre("13:58:59  main  attempt 1 placed on phx/h07,h08"));
  EXPECT_THAT(EventLines(&placed, Job318(), kNow),
              ::testing::ElementsAre(
                  "13:59:00  main  attempt 1 runs on phx/h07,h08, 2 workers  (waited 33 s)"));
  EXPECT_THAT(EventLines(nullptr, Job318(), kNow),
              ::testing::ElementsAre("13:59:00  main  attempt 1 runs on phx/h07,h08, 2 workers"));
  pb::Job killed = Job318();
  pb::Attempt* attempt = killed.mutable_tasks(0)->mutable_attempts(0);
  attempt->set_state(pb::TASK_FAILED);
  attempt->set_cause(pb::KILLED);
  attempt->set_detail("rank 3 by SIGKILL");
  attempt->set_end_ns(kNow);
  pb::Job before = Job318();
  EXPECT_THAT(
      EventLines(&before, killed, kNow),
      ::testing::ElementsAre("14:00:00  main  attempt 1 ended: failed, killed: rank 3 by SIGKILL"));
  EXPECT_THAT(EventLines(&killed, killed, kNow), ::testing::IsEmpty());
}

TEST(JobTest, AJobOfAScheduleLeadsToTheOneBeforeAndTheNextOne) {
  pb::Job job = Job318();
  job.mutable_spec()->mutable_schedule()->set_cron("0 3 * * *");
  job.mutable_spec()->mutable_schedule()->set_zone("Europe/Berlin");
  job.mutable_occurrence()->set_previous(300);
  job.mutable_occurrence()->set_next(319);
  job.mutable_occurrence()->set_next_ns(kNow + kHour);
  job.mutable_occurrence()->set_skipped(2);
  EXPECT_THAT(
      RenderJob(job, Screen(), kNow),
      HasSubstr(" schedule    0 3 * * * (Europe/Berlin); before it job 300; after it job 319, "
                "at 15:00; 2 times left out, as the job before had not ended\n"));
  job.mutable_occurrence()->set_no_right(true);
  EXPECT_THAT(
      RenderJob(job, Screen(), kNow),
      HasSubstr("; 2 times left out, the newest as the owner may not submit to the queue\n"));
  EXPECT_EQ(WaitsForText(job, kNow), "");
  job.mutable_occurrence()->clear_next();
  job.set_not_before_ns(kNow + 2 * kHour);
  EXPECT_EQ(WaitsForText(job, kNow),
            " It starts at 16:00, and then again by 0 3 * * * (Europe/Berlin).");
  EXPECT_EQ(GoesOnText(job, kNow),
            "Job 318 of its schedule starts at 16:00; to end that, too: muster cancel 318\n");
  EXPECT_THAT(RenderJob(job, Screen(), kNow), Not(HasSubstr(", after ")))
      << "what it waited says nothing";
}

TEST(JobTest, AJobThatComesAfterOthersSaysSoOnce) {
  pb::Job job;
  job.mutable_spec()->add_after("17");
  job.mutable_spec()->add_tasks()->set_name("main");
  pb::Task* task = job.add_tasks();
  task->set_name("main");
  task->set_state(pb::TASK_BLOCKED);
  task->mutable_verdict()->set_code(pb::V_AFTER);
  task->mutable_verdict()->set_text("waits for job 17 to succeed");
  EXPECT_THAT(EventLines(nullptr, job, kNow),
              ::testing::ElementsAre(HasSubstr("main  waits for job 17 to succeed")));
  EXPECT_THAT(EventLines(&job, job, kNow), ::testing::IsEmpty());
  EXPECT_THAT(JobsTable({job}, kNow).Render(Screen()), HasSubstr("waits for job 17 to succeed"));
  EXPECT_THAT(RenderJob(job, Screen(), kNow), HasSubstr("waits for job 17 to succeed"));
}

TEST(JobTest, WaitsSinceItWasStoppedAndSaysWhatTheStopWas) {
  pb::Job job = Job318();
  job.set_state(pb::WAITING);
  job.set_submit_ns(kNow - 2 * kHour);
  pb::Task* task = job.mutable_tasks(0);
  task->set_state(pb::TASK_WAITING);
  pb::Attempt* attempt = task->mutable_attempts(0);
  attempt->set_state(pb::TASK_CANCELLED);
  attempt->set_end_ns(kNow - kMinute);
  EXPECT_THAT(HeadLine(job, kNow), HasSubstr("waiting since 13:59"));
  const std::pair<pb::Cause, const char*> kStops[] = {{pb::PREEMPTION, "preempted: why"},
                                                      {pb::RESIZE, "resized: why"},
                                                      {pb::DRAIN, "moved for a drain: why"},
                                                      {pb::CANCEL, "cancelled: why"}};
  attempt->set_detail("why");
  for (const auto& [cause, says] : kStops) {
    attempt->set_cause(cause);
    EXPECT_THAT(RenderJob(job, Screen(), kNow), HasSubstr(says));
  }
  pb::Job before = job;
  before.mutable_tasks(0)->set_state(pb::TASK_RUNNING);
  task->mutable_verdict()->set_text("waits for 2 more h100-80g");
  task->mutable_verdict()->set_expected_start_ns(kNow + kHour);
  task->mutable_verdict()->set_forecast(true);
  EXPECT_THAT(
      EventLines(&before, job, kNow),
      ::testing::ElementsAre("14:00:00  main  waits for 2 more h100-80g; starts 15:00 (forecast)"));
  task->mutable_verdict()->set_text("its turn has come");
  EXPECT_THAT(
      EventLines(&before, job, kNow),
      ::testing::ElementsAre("14:00:00  main  waits: its turn has come; starts 15:00 (forecast)"));
}

TEST(TableTest, OnANarrowScreenWideColumnsGiveWayToTheLast) {
  Table table({{"JOB", Table::kRight}, {"DEVICES"}, {"WHERE"}, {"WHY"}});
  table.AddRow({"318", "32 x 8 h100-80g (declared)", "phx, 32 hosts in 4 racks",
                "waits for 16 more h100-80g in phx"});
  EXPECT_EQ(table.Render(Terminal(60)),
            "JOB  DEVICES        WHERE           WHY\n"
            "318  32 x 8 h100-…  phx, 32 hosts…  waits for 16 more h100-…\n");
  EXPECT_EQ(table.Render(Terminal(100)), table.Render(Screen())) << "wide enough";
}

TEST(TableTest, ALastColumnThatWrapsIsNeverCut) {
  Table table({{"JOB", Table::kRight}, {.title = "HELD BY", .wrap = true}});
  table.AddRow({"7", "prod 290: 32 until 18:20; prod 291: 16; research 12: 8"});
  EXPECT_EQ(table.Render(Terminal(30)),
            "JOB  HELD BY\n"
            "  7  prod 290: 32 until 18:20;\n"
            "       prod 291: 16; research\n"
            "       12: 8\n");
  EXPECT_EQ(table.Render(Terminal(100)), table.Render(Screen()));
}

TEST(JobsTest, OnANarrowScreenTheNameStays) {
  for (const int width : {60, 80, 110}) {
    const std::string shown = JobsTable({Job318()}, kNow).Render(Terminal(width));
    EXPECT_THAT(shown, HasSubstr("NAME")) << width;
    EXPECT_THAT(shown, HasSubstr("sft-8b")) << width;
    EXPECT_THAT(shown, HasSubstr("WHY")) << width;
  }
}

TEST(JobsTest, ShowsWhereItIsTrackedAndWhomItTells) {
  pb::Job job = Job318();
  EXPECT_THAT(RenderJob(job, Screen(), kNow), Not(HasSubstr("muster-exporter")));
  pb::JobSpec* spec = job.mutable_spec();
  spec->mutable_track()->set_tensorboard("true");
  spec->mutable_track()->set_mlflow("https://mlflow.example.org");
  spec->mutable_notify()->set_webhook("team-room");
  spec->mutable_notify()->add_on("failed");
  const std::string shown = RenderJob(job, Screen(), kNow);
  EXPECT_THAT(shown, HasSubstr(" tracked     TensorBoard, MLflow at https://mlflow.example.org, by "
                               "muster-exporter, as sft-8b-318\n"));
  EXPECT_THAT(shown, HasSubstr(" notifies    team-room, by muster-exporter, when it has failed\n"));
}

TEST(JobsTest, ACheckpointThatAJobBeganFromHasNoStepOfItsOwn) {
  pb::Job job = Job318();
  pb::Checkpoint* given = job.mutable_tasks(0)->add_checkpoints();
  given->set_path("/storage/jobs/2/step-000032");
  const std::string shown = RenderJob(job, Screen(), kNow);
  EXPECT_THAT(shown, HasSubstr("began from"));
  EXPECT_THAT(shown, Not(HasSubstr("step 0 ")));
}

TEST(JobsTest, WhoCancelledItIsSaidOnce) {
  pb::Job job = Job318();
  job.set_state(pb::CANCELLED);
  job.set_cause(pb::CANCEL);
  job.set_detail("cancelled by root");
  job.set_end_ns(kNow);
  pb::Attempt* attempt = job.mutable_tasks(0)->mutable_attempts(0);
  attempt->set_state(pb::TASK_CANCELLED);
  attempt->set_cause(pb::CANCEL);
  attempt->set_end_ns(kNow);
  EXPECT_EQ(OutcomeLine(job), "Job 318 sft-8b was cancelled by root.");
  const std::string shown = RenderJob(job, Screen(), kNow);
  EXPECT_THAT(shown, HasSubstr(" why         cancelled by root\n"));
  EXPECT_THAT(shown, Not(HasSubstr("cancel:")));
  EXPECT_THAT(shown, Not(HasSubstr("cancelled, cancel")));
  job.clear_detail();
  EXPECT_EQ(OutcomeLine(job), "Job 318 sft-8b was cancelled.");
}

TEST(FleetTest, JobsOfAQueueAndJobsOfAFlavourHaveTheirOwnColumns) {
  pb::TopResponse top;
  top.add_rows()->set_name("research");
  const std::string by_flavour = TopTable(top, pb::TopRequest::QUEUE).Render(Screen());
  EXPECT_THAT(by_flavour, HasSubstr("RUN HERE"));
  EXPECT_THAT(by_flavour, Not(HasSubstr("RUNNING")));
  EXPECT_THAT(QueuesTable({}).Render(Screen()), HasSubstr("JOBS RUN"));
  EXPECT_THAT(QueuesTable({}).Render(Screen()), Not(HasSubstr("RUNNING")));
}

TEST(TableTest, OnANarrowScreenSpareColumnsAreLeftOutForTheLast) {
  Table table({{"JOB", Table::kRight},
               {"NAME", Table::kLeft, false, 1},
               {"STATE"},
               {"TASK", Table::kLeft, false, 2},
               {"WHY"}});
  table.AddRow({"318", "sft-8b-long", "waiting", "main", "waits for 16 more h100-80g in phx"});
  EXPECT_EQ(
      table.Render(Terminal(56)),
      "JOB  NAME         STATE    WHY\n318  sft-8b-long  waiting  waits for 16 more h100-80g i…\n");
  EXPECT_EQ(table.Render(Terminal(44)),
            "JOB  STATE    WHY\n318  waiting  waits for 16 more h100-80g in…\n");
  EXPECT_EQ(table.Render(Terminal(100)), table.Render(Screen())) << "wide enough";
}

TEST(JobTest, OnEightyColumnsAllTablesSayWhy) {
  pb::Job job = Job318();
  job.set_state(pb::WAITING);
  job.mutable_tasks(0)->set_state(pb::TASK_WAITING);
  job.mutable_tasks(0)->mutable_verdict()->set_text(
      "waits for 16 more h100-80g in phx to become free");
  EXPECT_THAT(JobsTable({job}, kNow).Render(Terminal(80)), HasSubstr("waits for 16 more h100-"));
  pb::TopResponse top;
  auto* row = top.add_rows();
  row->set_name("research/vision");
  row->set_flavour("h100-80g");
  row->set_oldest_wait_ns(23 * kMinute);
  EXPECT_THAT(TopTable(top, pb::TopRequest::QUEUE).Render(Terminal(80)),
              HasSubstr("LONGEST WAIT\n"));
}

TEST(JobTest, OutcomeNamesTheTaskThatFailed) {
  pb::Job job = Job318();
  job.set_state(pb::SUCCEEDED);
  job.set_end_ns(kNow + 11 * kMinute);
  EXPECT_EQ(OutcomeLine(job), "Job 318 sft-8b succeeded after 12 m.");
  job.set_state(pb::FAILED);
  job.set_cause(pb::KILLED);
  job.mutable_tasks(0)->set_state(pb::TASK_FAILED);
  job.mutable_tasks(0)->mutable_attempts(0)->set_detail("rank 3 by SIGKILL");
  EXPECT_EQ(OutcomeLine(job), "Job 318 sft-8b failed: main, killed: rank 3 by SIGKILL.");
}

TEST(FleetTest, QueuesClustersAndHosts) {
  pb::Queue queue;
  queue.set_path("research");
  queue.set_running_jobs(1);
  pb::QueueUse* use = queue.add_use();
  use->set_flavour("cpu-slot");
  use->set_guarantee_milli(2000);
  use->set_entitled_milli(4000);
  use->set_used_milli(3500);
  use->set_limit_milli(-1);
  use->set_weight(1);
  EXPECT_EQ(QueuesTable({queue}).Render(Screen()),
            "QUEUE     FLAVOUR              GUARANTEE  ENTITLED  IN USE  LIMIT  WEIGHT  JOBS RUN  "
            "JOBS WAIT\n"
            "research  cpu-slot (declared)          2         4     3.5   none       1         1  "
            "        0\n");
  use->set_flavour("h100-80g");
  use->set_declared(true);
  EXPECT_THAT(QueuesTable({queue}).Render(Screen()), HasSubstr("h100-80g (declared)"));
  pb::Host host;
  host.set_name("lab/h1");
  host.set_state(pb::HOST_UP);
  host.set_drained(true);
  host.set_drain_reason("new disk");
  host.mutable_inventory()->set_flavour("cpu-slot");
  host.mutable_inventory()->set_declared(true);
  host.mutable_inventory()->add_devices();
  host.add_use()->add_jobs(3);
  host.mutable_use(0)->set_used_milli(1000);
  host.set_last_heard_ns(kNow - kSecond);
  EXPECT_EQ(HostsTable({host}, kNow).Render(Screen()),
            "HOST    STATE        DEVICES                  IN USE  CPUS FREE  MEMORY FREE  JOBS    "
            "  HEARD  WHY\n"
            "lab/h1  up, drained  1 x cpu-slot (declared)       1          0           0B  3     "
            "1.0 s ago  new disk\n");
  host.set_differs("1 device instead of 2");
  EXPECT_THAT(HostsTable({host}, kNow).Render(Screen()),
              HasSubstr("new disk; not as its SKU: 1 device instead of 2\n"));
  host.clear_drain_reason();
  EXPECT_THAT(HostsTable({host}, kNow).Render(Screen()),
              HasSubstr("ago  not as its SKU: 1 device instead of 2\n"));
  EXPECT_THAT(HostNotes(host, kNow), Not(HasSubstr("Takes jobs of")));
  host.set_only_user("ann");
  EXPECT_THAT(HostNotes(host, kNow), HasSubstr("Takes jobs of ann alone\n"));
}

TEST(FleetTest, WhatHostsAndJobsSayOfAHostSteersNoTerminal) {
  const std::string wild = "wild\x1b[2J\nword";
  pb::Host host;
  host.set_only_user(wild);
  host.set_confirmed_off_by(wild);
  host.set_fence_detail(wild);
  host.mutable_inventory()->set_low_disk(wild);
  host.mutable_inventory()->set_isolation(wild);
  pb::Quarantine* row = host.add_quarantines();
  row->set_device(-1);
  row->set_reason(wild);
  row->set_check_detail(wild);
  for (pb::Blame* blame : {row->add_evidence(), host.add_blames()}) {
    blame->set_job(7);
    blame->set_task(wild);
    blame->set_detail(wild);
  }
  const std::string notes = HostNotes(host, kNow);
  EXPECT_EQ(notes.find('\x1b'), std::string::npos) << notes;
  EXPECT_THAT(notes, Not(HasSubstr("\nword")));
  size_t told = 0;
  for (size_t at = notes.find("wild?[2J word"); at != std::string::npos;
       at = notes.find("wild?[2J word", at + 1))
    ++told;
  EXPECT_EQ(told, 11u) << notes;
}

TEST(FleetTest, NothingOfADrainedClusterIsFree) {
  pb::Cluster cluster;
  cluster.set_name("fra");
  pb::Capacity* capacity = cluster.add_capacity();
  capacity->set_flavour("h100-80g");
  capacity->set_total_milli(768'000);
  capacity->set_used_milli(8'000);
  EXPECT_THAT(ClustersTable({cluster}).Render(Screen()), HasSubstr("768       8   760        -"));
  capacity->set_drained_milli(40'000);  // of hosts that are drained by themselves
  EXPECT_THAT(ClustersTable({cluster}).Render(Screen()), HasSubstr("768       8   720       40"));
  cluster.set_drained(true);
  EXPECT_THAT(ClustersTable({cluster}).Render(Screen()), HasSubstr("768       8     0      760"));
}

TEST(FleetTest, LedgerSharesAreOfTheCapacity) {
  pb::LedgerResponse ledger;
  for (auto [name, share] : {std::pair{"productive", 51}, std::pair{"idle", 49}}) {
    auto* entry = ledger.add_entries();
    entry->set_class_(name);
    entry->set_device_us(share * 36'000'000LL);
  }
  ledger.set_capacity_device_us(3'600'000'000);
  EXPECT_EQ(LedgerTable(ledger).Render(Screen()),
            "CLASS       DEVICE-HOURS    SHARE\nproductive         0.510   51.0 %\nidle            "
            "   0.490   49.0 %\nall                1.000  100.0 %\n");
}

TEST(FleetTest, TheLedgersUnitFitsWhatItSays) {
  pb::LedgerResponse ledger;
  ledger.add_entries()->set_class_("productive");
  ledger.mutable_entries(0)->set_device_us(1'500'000);
  ledger.set_capacity_device_us(3'000'000);
  EXPECT_EQ(LedgerTable(ledger).Render(Screen()),
            "CLASS       DEVICE-SECONDS    SHARE\nproductive           1.500   50.0 %\nall         "
            "         3.000  100.0 %\n");
  ledger.set_capacity_device_us(1'200'000'000);
  EXPECT_THAT(LedgerTable(ledger).Render(Screen()), HasSubstr("DEVICE-MINUTES"));
  auto* row = ledger.add_rows();
  row->set_name("research");
  row->add_device_us(1'500'000);
  EXPECT_EQ(LedgerRowsTable(ledger, pb::GetLedgerRequest::QUEUE).Render(Screen()),
            "QUEUE     PRODUCTIVE      ALL\nresearch     1.500 s  1.500 s\n");
}

TEST(FleetTest, LedgerRowsGiveEachClassAndTheirSum) {
  pb::LedgerResponse ledger;
  for (const char* name :
       {"productive", "restart", "preemption", "reserved", "fragmented", "idle", "down"})
    ledger.add_entries()->set_class_(name);
  auto* row = ledger.add_rows();
  row->set_name("research");
  for (int64_t hours : {3, 1, 0, 0, 2, 0, 0}) row->add_device_us(hours * 3'600'000'000);
  EXPECT_EQ(LedgerRowsTable(ledger, pb::GetLedgerRequest::QUEUE).Render(Screen()),
            "QUEUE     PRODUCTIVE  RESTART  PREEMPTION  RESERVED  FRAGMENTED      ALL\n"
            "research     3.000 h  1.000 h     0.000 h   0.000 h     2.000 h  6.000 h\n");
  row->set_device_us(4, 0);
  EXPECT_EQ(LedgerRowsTable(ledger, pb::GetLedgerRequest::USER).Render(Screen()),
            "USER      PRODUCTIVE  RESTART  PREEMPTION      ALL\nresearch     3.000 h  1.000 h     "
            "0.000 h  4.000 h\n");
}

TEST(JsonTest, ProtoNamesWithDefaultsAndYamlOfTheSameTree) {
  pb::Job job = Job318();
  std::string json = ToJson(job, false);
  EXPECT_THAT(json, HasSubstr("\"number\":318,"));
  EXPECT_THAT(json, HasSubstr("\"gpus_milli\":8000,"));
  EXPECT_THAT(json, HasSubstr("\"state\":\"RUNNING\""));
  EXPECT_THAT(json, HasSubstr("\"end_ns\":0,"));
  EXPECT_EQ(json.find('\n'), json.size() - 1);
  pb::JobSpec spec;
  spec.set_name("a \"b\"\n");
  (*spec.mutable_labels())["k"] = "v";
  spec.add_clusters("phx");
  spec.add_tasks()->mutable_workers()->set_min(2);
  spec.mutable_tasks(0)->add_after("x");
  spec.mutable_tasks(0)->mutable_topology();
  EXPECT_EQ(ToYaml(spec),
            "name: \"a \\\"b\\\"\\n\"\nclusters: [\"phx\"]\nlabels:\n  \"k\": \"v\"\ntasks:\n- "
            "after: [\"x\"]\n  workers:\n    min: 2\n  topology: {}\n");
}

TEST(JsonTest, AnyProtoJsonParserReadsItBack) {
  pb::Job job = Job318();
  (*job.mutable_spec()->mutable_labels())["quote \" and \\ and\x01"] = "ü\n";
  (*job.mutable_spec()->mutable_labels())["a"] = "";
  job.mutable_spec()->add_tasks()->mutable_topology();
  job.set_submit_ns(std::numeric_limits<int64_t>::max());
  job.mutable_tasks(0)->mutable_progress()->set_loss(0.1);
  job.mutable_tasks(0)->mutable_progress()->set_grad_norm(std::numeric_limits<double>::infinity());
  pb::LogsResponse logs;
  logs.set_data(std::string("\0\xff bytes", 8));
  for (const google::protobuf::Message* message :
       {static_cast<const google::protobuf::Message*>(&job),
        static_cast<const google::protobuf::Message*>(&logs)}) {
    for (const bool pretty : {false, true}) {
      const std::string json = ToJson(*message, pretty);
      std::unique_ptr<google::protobuf::Message> back(message->New());
      ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(json, back.get()).ok()) << json;
      EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(*back, *message)) << json;
    }
  }
  EXPECT_THAT(ToJson(job, false), HasSubstr("\"submit_ns\":9223372036854775807,"));
  EXPECT_THAT(ToJson(job, false), HasSubstr("\"loss\":0.1,"));
  pb::ByteRange range;
  EXPECT_EQ(ToJson(range, true), "{\n \"begin\": 0,\n \"end\": 0\n}\n");
  pb::ByteRange other;
  other.set_end(7);
  EXPECT_EQ(
      ListToJson({&range, &other}),
      "[\n {\n  \"begin\": 0,\n  \"end\": 0\n },\n {\n  \"begin\": 0,\n  \"end\": 7\n }\n]\n");
  EXPECT_EQ(ListToYaml({&range, &other, &other}), "- {}\n- end: 7\n- end: 7\n");
  EXPECT_EQ(ListToJson({}) + ListToYaml({}), "[]\n[]\n");
  pb::QueueTree tree;
  tree.add_queues()->set_name("a");
  EXPECT_THAT(ToJson(tree, true), HasSubstr("{\n \"queues\": [\n  {\n   \"name\": \"a\",\n"));
}

TEST(Preview, TellsOfTheTasksThatComeLaterAndOfWhatIsFilledIn) {
  pb::PreviewResponse preview;
  preview.set_task("prepare");
  pb::JobSpec* spec = preview.mutable_resolved();
  pb::TaskSpec* prepare = spec->add_tasks();
  prepare->set_name("prepare");
  EXPECT_EQ(OtherTasksText(preview), "");
  pb::TaskSpec* train = spec->add_tasks();
  train->set_name("train");
  train->add_after("prepare");
  train->set_trainer_json(R"({"parallel":{"tp":8}})");
  train->mutable_workers()->set_min(2);
  train->mutable_workers()->set_max(4);
  train->mutable_resources()->set_gpus_milli(8'000);
  train->mutable_resources()->add_gpu_types("h100-80g");
  pb::TaskSpec* watch = spec->add_tasks();
  watch->set_name("watch");
  watch->add_with("prepare");
  EXPECT_EQ(OtherTasksText(preview),
            "Task train: 2 to 4 workers with 8 h100-80g, after prepare: its place is looked for "
            "then.\n"
            "Task watch: 1 worker without GPUs, together with prepare.\n");
  const pb::JobSpec asked = *spec;
  EXPECT_EQ(FilledInText(asked, *spec), "");
  train->mutable_workers()->set_multiple_of(2);
  pb::RankBlock* block = train->mutable_topology()->add_blocks();
  block->set_gpus(8);
  block->set_preferred(pb::HOST);
  EXPECT_EQ(FilledInText(asked, *spec),
            "Filled in for task train by the trainer's layout: workers.multiple_of: 2; "
            "topology.blocks: [{gpus: 8, preferred: host}]\n");
  EXPECT_EQ(FilledInText(*spec, *spec), "") << "the file says it";
}

}  // namespace
}  // namespace muster
