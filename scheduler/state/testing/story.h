// Attempts' stories for tests of Apply: a small cluster, and sentences about what is placed, said,
// stopped and lost there.
#pragma once

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "scheduler/state/testing/builders.h"

namespace muster::testing {

// A job's whole row as text, its version apart: what an event without effect must leave as it was.
inline std::string Facts(const State& state) {
  std::string facts;
  for (const RowChange& row : state.AllRows()) {
    if (row.kind == "job") {
      pb::JobRecord record;
      record.ParseFromString(*row.bytes);
      record.clear_version();
      facts += record.DebugString();
    } else {
      facts += row.kind + row.id + *row.bytes + "\n";
    }
  }
  return facts;
}

// Cluster lab with four hosts h00..h03 of two GPUs each, queue research. Sentences are about the
// task's newest attempt.
class Story : public SystemBuilder {
 public:
  Story() {
    Cluster("lab", "disk").Hosts("lab", 4, 2).Queue("research", 8);
    Step(1);
  }

  uint64_t Job(int workers = 1) { return JobBuilder("research").Workers(workers).SubmitTo(this); }
  // A gang of two workers on h00 and h01; a task of one worker on h00.
  uint64_t Placed(int workers) {
    const uint64_t job = Job(workers);
    Place(job);
    return job;
  }
  uint64_t Running(int workers) {
    const uint64_t job = Placed(workers);
    StartAll(this, job);
    EXPECT_EQ(State(job), pb::TASK_RUNNING);
    return job;
  }
  void Place(uint64_t job, int task = 0) {
    const int workers = state.FindJob(job)->task_spec(task).workers().min();
    std::vector<On> parts;
    for (int w = 0; w < workers; ++w) parts.push_back({absl::StrCat("h0", w), {0}});
    PlaceOn(job, parts, task);
  }
  // With everything there is to resume from, as Decide does it.
  void PlaceOn(uint64_t job, const std::vector<On>& parts, int task = 0) {
    pb::Event event = testing::Placed(state, job, "lab", parts, task);
    for (const std::string& path : ResumeFrom(state, Task(job, task), "lab"))
      event.mutable_attempt_placed()->add_resume_from(path);
    Do(event);
  }
  void Again(uint64_t job) {
    Place(job);
    StartAll(this, job);
    ASSERT_EQ(State(job), pb::TASK_RUNNING);
  }
  void Says(uint64_t job, size_t part, pb::AttemptPhase phase, int exit_code = -1,
            bool stop_sent = false, int task = 0) {
    Do(Report(state, job, task, Newest(job, task).number, part, phase, exit_code, stop_sent));
  }
  void AllSay(uint64_t job, pb::AttemptPhase phase, int exit_code = -1, bool stop_sent = false,
              int task = 0) {
    ReportAll(this, job, phase, exit_code, stop_sent, task);
  }
  void Stop(uint64_t job, pb::Cause cause, int next_workers = 0) {
    Do(testing::Stopping(state, job, cause, next_workers));
  }
  pb::Event LostEvent(uint64_t job, int32_t attempt, const std::string& host) const {
    pb::Event event;
    *event.mutable_attempt_lost()->mutable_key() = KeyOf(*state.FindJob(job), 0, attempt);
    event.mutable_attempt_lost()->set_cluster("lab");
    event.mutable_attempt_lost()->set_host(host);
    event.mutable_attempt_lost()->set_detail(host + " is silent");
    return event;
  }
  void Lose(uint64_t job, const std::string& host) { Do(LostEvent(job, Newest(job).number, host)); }
  pb::Event CheckpointEvent(uint64_t job, int32_t attempt, int64_t step,
                            int64_t loaded = -1) const {
    pb::Event event;
    pb::CheckpointSeen* e = event.mutable_checkpoint_seen();
    *e->mutable_key() = KeyOf(*state.FindJob(job), 0, attempt);
    e->mutable_checkpoint()->set_step(step);
    e->mutable_checkpoint()->set_path(absl::StrCat("/disk/", attempt, "/", step));
    e->mutable_checkpoint()->set_storage("disk");
    e->set_loaded_step(loaded);
    return event;
  }
  void Checkpoint(uint64_t job, int64_t step, int64_t loaded = -1) {
    Do(CheckpointEvent(job, Newest(job).number, step, loaded));
  }
  pb::Event GangPreparedEvent(uint64_t job) const {
    pb::Event event;
    *event.mutable_gang_prepared()->mutable_key() =
        KeyOf(*state.FindJob(job), 0, Newest(job).number);
    event.mutable_gang_prepared()->set_master_address("10.0.0.1");
    event.mutable_gang_prepared()->set_master_port(20'000);
    return event;
  }
  pb::Event StagedEvent(uint64_t job, int32_t attempt) const {
    pb::Event event;
    *event.mutable_export_staged()->mutable_key() = KeyOf(*state.FindJob(job), 0, attempt);
    event.mutable_export_staged()->set_staged(absl::StrCat("/disk/staged-", attempt));
    event.mutable_export_staged()->set_target("/disk/model");
    return event;
  }
  pb::Event PublishedEvent(uint64_t job, int32_t attempt, const std::string& error = "") const {
    pb::Event event;
    event.mutable_export_published()->set_detail(error);
    *event.mutable_export_published()->mutable_key() = KeyOf(*state.FindJob(job), 0, attempt);
    return event;
  }

  const TaskRow& Task(uint64_t job, int task = 0) const { return TaskOf(state, job, task); }
  const AttemptRow& Newest(uint64_t job, int task = 0) const {
    return Task(job, task).attempts.back();
  }
  pb::TaskState State(uint64_t job, int task = 0) const { return Task(job, task).state; }
  int64_t UsedMilli(const std::string& host) const {
    int64_t used = 0;
    for (const int64_t milli : state.host(state.FindHost("lab", host)).device_used_milli)
      used += milli;
    return used;
  }
  std::vector<int64_t> Steps(uint64_t job) const {
    std::vector<int64_t> steps;
    for (const pb::Checkpoint& checkpoint : Task(job).checkpoints)
      steps.push_back(checkpoint.step());
    return steps;
  }
  // Devices' thousandths of a host that are booked to this class now.
  int64_t Booked(const std::string& host, LedgerClass ledger_class) const {
    int64_t milli = 0;
    for (const LedgerShare& share : state.host(state.FindHost("lab", host)).shares) {
      if (share.ledger_class == static_cast<int>(ledger_class)) milli += share.milli;
    }
    return milli;
  }
  void ExpectNoEffect(const pb::Event& event, const std::string& what) {
    const std::string before = Facts(state);
    Do(event);
    EXPECT_EQ(Facts(state), before) << what << "\n" << event.DebugString();
  }
};

}  // namespace muster::testing
