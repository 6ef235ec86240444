// State as a value: copies stand apart, rows bring it back, and the rows that changed are told.
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/state/state.h"
#include "scheduler/state/testing/random_events.h"

namespace muster {
namespace {

using testing::RandomEvents;

using RowMap = std::map<std::pair<std::string, std::string>, std::string>;

void Save(const std::vector<RowChange>& changes, RowMap* rows) {
  for (const RowChange& change : changes) {
    if (change.bytes.has_value()) {
      (*rows)[{change.kind, change.id}] = *change.bytes;
    } else {
      rows->erase({change.kind, change.id});
    }
  }
}

RowMap All(const State& state) {
  RowMap rows;
  Save(state.AllRows(), &rows);
  return rows;
}

std::vector<RowChange> Rows(const RowMap& map) {
  std::vector<RowChange> rows;
  for (const auto& [key, bytes] : map) rows.push_back({key.first, key.second, bytes});
  return rows;
}

std::string FirstDifference(const RowMap& saved, const RowMap& all) {
  for (const auto& [key, bytes] : all) {
    const auto it = saved.find(key);
    if (it == saved.end()) return "never saved: " + key.first + " " + key.second;
    if (it->second != bytes) return "saved before it changed: " + key.first + " " + key.second;
  }
  for (const auto& [key, bytes] : saved) {
    if (all.count(key) == 0) return "not deleted: " + key.first + " " + key.second;
  }
  return "";
}

class RandomHistory : public ::testing::TestWithParam<uint64_t> {};

TEST_P(RandomHistory, RowsBringBackFactsAndDerivedData) {
  RandomEvents events(GetParam());
  State state;
  for (int i = 0; i < 2500; ++i) {
    const pb::Event event = events.Next(state);
    Apply(&state, event);
    if (i % 50 != 0 && i < 2490) continue;
    const absl::StatusOr<State> loaded = State::Load(state.AllRows());
    ASSERT_TRUE(loaded.ok()) << "after event " << i << ": " << loaded.status() << "\n"
                             << event.DebugString();
    ASSERT_EQ(State::Difference(state, *loaded), "") << "after event " << i << "\n"
                                                     << event.DebugString();
  }
}

TEST_P(RandomHistory, ChangesAddUpToAllRows) {
  RandomEvents events(GetParam());
  State state;
  RowMap saved;
  for (int i = 0; i < 2500; ++i) {
    const pb::Event event = events.Next(state);
    Apply(&state, event);
    if (events.Below(4) == 0) continue;  // a step holds several events
    Save(state.RowsOf(state.TakeChanges()), &saved);
    if (i % 10 == 0) {
      ASSERT_EQ(FirstDifference(saved, All(state)), "") << "after event " << i << "\n"
                                                        << event.DebugString();
    }
  }
  // What was loaded goes on like what was saved.
  absl::StatusOr<State> loaded = State::Load(Rows(saved));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  Save(state.RowsOf(state.TakeChanges()), &saved);
  loaded = State::Load(Rows(saved));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_TRUE(loaded->TakeChanges().empty());
  for (int i = 0; i < 100; ++i) {
    const pb::Event event = events.Next(state);
    Apply(&state, event);
    Apply(&*loaded, event);
    ASSERT_EQ(State::Difference(state, *loaded), "") << "event " << i << " after Load\n"
                                                     << event.DebugString();
  }
}

TEST_P(RandomHistory, ApplyIsDeterministicAndCopiesStandApart) {
  RandomEvents events(GetParam());
  State state;
  std::vector<std::pair<State, RowMap>> snapshots;
  for (int i = 0; i < 1000; ++i) {
    if (i % 50 == 0) {
      snapshots.emplace_back(state, All(state));
      if (snapshots.size() > 6) snapshots.erase(snapshots.begin());
    }
    const pb::Event event = events.Next(state);
    const RowMap before = i % 10 == 0 ? All(state) : RowMap();
    State other = state;
    Apply(&other, event);
    if (i % 10 == 0) {
      ASSERT_EQ(FirstDifference(before, All(state)), "") << "the original followed its copy\n"
                                                         << event.DebugString();
    }
    Apply(&state, event);
    if (i % 10 == 0) {
      ASSERT_EQ(State::Difference(state, other), "") << "event " << i << "\n"
                                                     << event.DebugString();
    }
  }
  for (const auto& [snapshot, rows] : snapshots) {
    EXPECT_EQ(FirstDifference(rows, All(snapshot)), "");
    EXPECT_EQ(State::Difference(snapshot, snapshot.Rebuilt()), "");
  }
}

// What differs is among what Since names, for any two States; between copies nothing else is, but
// where it was written anew.
TEST_P(RandomHistory, SinceNamesWhatWasWritten) {
  RandomEvents events(GetParam());
  State state;
  for (int i = 0; i < 800; ++i) {
    const State before = state;
    for (int64_t n = events.Below(4); n >= 0; --n) Apply(&state, events.Next(state));
    const Touched touched = state.Since(before);
    std::set<std::pair<std::string, std::string>> named;
    for (const uint64_t job : touched.jobs)
      named.insert(
          {"job", std::string(20 - std::to_string(job).size(), '0') + std::to_string(job)});
    for (const HostId host : touched.hosts) named.insert({"host", state.HostName(host)});
    const RowMap was = All(before), is = All(state);
    for (const auto& [key, bytes] : is) {
      if (key.first == "meta" || key.first == "configuration" || named.contains(key)) continue;
      if (key.first == "trust" || key.first == "certificate") continue;  // nothing is decided by it
      const auto it = was.find(key);
      ASSERT_TRUE(it != was.end() && it->second == bytes)
          << key.first << " " << key.second << " changed, step " << i;
    }
    if (!touched.clusters) {
      ASSERT_LE(touched.jobs.size() + touched.hosts.size(), 60u);
    }
    if (touched.queues) continue;
    ASSERT_EQ(&before.queues(), &state.queues());
  }
  const State same = state;
  EXPECT_TRUE(state.Since(same).jobs.empty() && state.Since(same).hosts.empty() &&
              !state.Since(same).clusters);
  EXPECT_EQ(state.Since(state.Rebuilt()).jobs.size(), state.AllJobs().size());
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomHistory, ::testing::Range<uint64_t>(1, 5));

void CountOutcomes(const State& state, std::map<std::string, int>* counts) {
  std::map<std::string, int>& seen = *counts;
  for (const uint64_t number : state.AllJobs()) {
    const JobRow& job = *state.FindJob(number);
    ++seen["job " + pb::JobState_Name(job.state)];
    for (const TaskRow& task : job.tasks) {
      ++seen["task " + pb::TaskState_Name(task.state)];
      if (!task.export_state.empty()) ++seen["export " + task.export_state];
      for (const AttemptRow& attempt : task.attempts) {
        ++seen["attempt " + pb::TaskState_Name(attempt.state)];
        if (attempt.ended()) ++seen["cause " + pb::Cause_Name(attempt.cause)];
        if (!attempt.ended() && attempt.released()) ++seen["waits for its export"];
        if (!attempt.resume_from.empty()) ++seen["resumed"];
      }
    }
  }
  for (const HostId id : state.hosts()) {
    if (!state.host(id).lost.empty()) ++seen["lost on a host"];
    ++seen["host " + pb::HostState_Name(state.host(id).state)];
  }
}

// A generator that never gets anywhere would prove nothing.
TEST(RandomEvents, ReachEveryOutcome) {
  std::map<std::string, int> seen;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    RandomEvents events(seed);
    State state;
    for (int i = 0; i < 2500; ++i) {
      const size_t jobs = state.AllJobs().size();
      Apply(&state, events.Next(state));
      seen["jobs forgotten"] += state.AllJobs().size() < jobs;
      if (i % 100 == 99) CountOutcomes(state, &seen);
    }
  }
  for (const char* what : {"job WAITING",          "job RUNNING",
                           "job SUCCEEDED",        "job FAILED",
                           "job CANCELLED",        "jobs forgotten",
                           "task TASK_BLOCKED",    "task TASK_WAITING",
                           "task TASK_PREPARING",  "task TASK_STARTING",
                           "task TASK_RUNNING",    "task TASK_STOPPING",
                           "task TASK_SUCCEEDED",  "task TASK_FAILED",
                           "task TASK_CANCELLED",  "export staged",
                           "export published",     "cause DONE",
                           "cause PROGRAM_ERROR",  "cause KILLED",
                           "cause HOST_LOST",      "cause PREEMPTION",
                           "cause RESIZE",         "cause CANCEL",
                           "cause TIME_LIMIT",     "cause LAUNCH_FAILED",
                           "waits for its export", "resumed",
                           "lost on a host",       "host HOST_UP",
                           "host HOST_SILENT",     "host HOST_UNREACHABLE"}) {
    EXPECT_GT(seen[what], 0) << what;
  }
}

// What the API's threads do: each reads its own snapshot while the engine writes on.
TEST(Snapshots, AreReadByOtherThreadsWhileTheOriginalIsWritten) {
  RandomEvents events(99);
  State state;
  for (int i = 0; i < 400; ++i) Apply(&state, events.Next(state));
  for (int round = 0; round < 20; ++round) {
    const RowMap before = All(state);
    std::vector<RowMap> seen(2);
    std::vector<std::thread> readers;
    for (RowMap& rows : seen) {
      readers.emplace_back([snapshot = state, &rows] {
        State own = snapshot;
        for (int i = 0; i < 3; ++i) rows = All(snapshot);
        // A preview changes its copy of the snapshot.
        pb::Event cancel;
        for (const uint64_t job : snapshot.active_jobs()) {
          cancel.mutable_job_cancel()->set_number(job);
          Apply(&own, cancel);
        }
      });
    }
    for (int i = 0; i < 60; ++i) Apply(&state, events.Next(state));
    for (std::thread& reader : readers) reader.join();
    for (const RowMap& rows : seen) EXPECT_EQ(FirstDifference(before, rows), "");
  }
}

TEST(Load, NamesTheRowThatDoesNotFit) {
  RandomEvents events(5);
  State state;
  for (int i = 0; i < 600; ++i) Apply(&state, events.Next(state));
  pb::Event certificate;  // the random ones may all have ended
  certificate.mutable_certificate_issued()->mutable_certificate()->set_serial("last");
  certificate.mutable_certificate_issued()->mutable_certificate()->set_end_s(
      state.now_ns() / kSecond + 3600);
  Apply(&state, certificate);
  const std::vector<RowChange> good = state.AllRows();
  ASSERT_TRUE(State::Load(good).ok());
  const auto first = [&](const std::string& kind) {
    for (size_t i = 0; i < good.size(); ++i) {
      if (good[i].kind == kind) return i;
    }
    return good.size();
  };
  for (const char* kind : {"configuration", "meta", "host", "job", "trust", "certificate"}) {
    std::vector<RowChange> rows = good;
    ASSERT_LT(first(kind), rows.size());
    rows[first(kind)].bytes = "\xff\xff\xff";
    const absl::Status status = State::Load(rows).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << kind;
    EXPECT_NE(status.message().find(kind), std::string::npos) << status;
  }
  std::vector<RowChange> unknown = good;
  unknown.push_back({"dog", "1", "x"});
  EXPECT_EQ(State::Load(unknown).status().code(), absl::StatusCode::kDataLoss);
  // A host, or everything that names the clusters, went missing.
  for (const char* kind : {"host", "configuration"}) {
    std::vector<RowChange> rows;
    for (const RowChange& row : good) {
      if (row.kind != kind) rows.push_back(row);
    }
    EXPECT_EQ(State::Load(rows).status().code(), absl::StatusCode::kDataLoss) << "without " << kind;
  }
  EXPECT_TRUE(State::Load({}).ok());
}

}  // namespace
}  // namespace muster
