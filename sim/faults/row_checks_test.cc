// What the checker says of rows that break a promise: gangs in multiples, final exit codes.
#include "sim/faults/row_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace muster::sim::faults {
namespace {

// One commit that holds one job with one task, as it is after `edit`; what is said of it.
std::vector<std::string> SaidOf(const std::function<void(pb::TaskRecord*)>& edit,
                                Counters* counters) {
  const std::map<std::string, pb::HostRecord> hosts;
  std::map<std::string, pb::JobRecord> jobs;
  std::vector<std::string> says;
  RowChecks checks(&jobs, &hosts, counters,
                   [&says](const std::string& what) { says.push_back(what); });
  pb::JobRecord job;
  job.set_number(1);
  job.set_uid("uid");
  pb::TaskSpec* spec = job.mutable_spec()->add_tasks();
  spec->set_name("main");
  spec->mutable_workers()->set_min(2);
  spec->mutable_workers()->set_max(6);
  spec->mutable_workers()->set_multiple_of(2);
  spec->add_final_exit_codes(3);
  edit(job.add_tasks());
  checks.OnJob(/*now_ns=*/1, nullptr, job);
  return says;
}

void AddAttempt(int32_t workers, pb::TaskRecord* task) {
  pb::AttemptRecord* attempt = task->add_attempts();
  attempt->set_number(task->attempts_size());
  attempt->set_workers(workers);
  attempt->add_placements()->set_workers(workers);
  attempt->add_parts();
}

// Its newest attempt, whose first process had this exit code.
void End(int32_t exit_code, pb::Cause cause, pb::TaskRecord* task) {
  pb::AttemptRecord* attempt = task->mutable_attempts(task->attempts_size() - 1);
  attempt->set_end_ns(1);
  attempt->set_cause(cause);
  attempt->mutable_parts(0)->set_phase(pb::GONE);
  attempt->mutable_parts(0)->add_exits()->set_exit_code(exit_code);
}

struct Case {
  const char* what;
  std::function<void(pb::TaskRecord*)> edit;
  std::string says;  // empty: nothing
};

void Check(const std::vector<Case>& cases, Counters* counters) {
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    const std::vector<std::string> said = SaidOf(c.edit, counters);
    if (c.says.empty()) {
      EXPECT_THAT(said, ::testing::IsEmpty());
    } else {
      EXPECT_THAT(said, ::testing::Contains(::testing::HasSubstr(c.says)));
    }
  }
}

TEST(RowChecks, WhateverHasWorkersHasAMultiple) {
  Counters counters;
  Check({{"a multiple", [](pb::TaskRecord* task) { AddAttempt(4, task); }, ""},
         {"one more", [](pb::TaskRecord* task) { AddAttempt(5, task); }, "it has 5 workers"},
         {"its places",
          [](pb::TaskRecord* task) {
            AddAttempt(4, task);
            task->mutable_attempts(0)->mutable_placements(0)->set_workers(3);
          },
          "it is placed with 3 workers"},
         {"what it goes on with",
          [](pb::TaskRecord* task) {
            AddAttempt(4, task);
            task->mutable_attempts(0)->set_next_workers(3);
          },
          "it is to go on with 3 workers"},
         {"what it comes back with", [](pb::TaskRecord* task) { task->set_wanted_workers(1); },
          "it is to come back with 1 workers"},
         {"what is kept for it",
          [](pb::TaskRecord* task) { task->mutable_reservation()->set_workers(5); },
          "it has devices kept for 5 workers"}},
        &counters);
  EXPECT_EQ(counters["gangs in multiples that were placed"], 4);
}

TEST(RowChecks, AFinalExitCodeIsTheLast) {
  Counters counters;
  const auto ended = [](int32_t exit_code, pb::Cause cause, pb::TaskState state) {
    return [=](pb::TaskRecord* task) {
      AddAttempt(2, task);
      End(exit_code, cause, task);
      task->set_state(state);
      if (state == pb::TASK_FAILED) task->set_cause(cause);
    };
  };
  Check({{"it fails", ended(3, pb::PROGRAM_ERROR, pb::TASK_FAILED), ""},
         {"it waits", ended(3, pb::PROGRAM_ERROR, pb::TASK_WAITING),
          "it is tried again after a final exit code"},
         {"it runs again",
          [&](pb::TaskRecord* task) {
            ended(3, pb::PROGRAM_ERROR, pb::TASK_RUNNING)(task);
            AddAttempt(2, task);
          },
          "it is tried again after a final exit code"},
         {"another's claim was the reason", ended(3, pb::PREEMPTION, pb::TASK_WAITING), ""},
         {"another code", ended(1, pb::PROGRAM_ERROR, pb::TASK_WAITING), ""},
         {"another code, and no second try", ended(1, pb::PROGRAM_ERROR, pb::TASK_FAILED),
          "it fails after 1 failures of its own"}},
        &counters);
  EXPECT_EQ(counters["tasks that ended for good by an exit code"], 1);
}

}  // namespace
}  // namespace muster::sim::faults
