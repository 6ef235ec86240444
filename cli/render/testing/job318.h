// A screen and a job that tests of what is shown have in common.
#pragma once

#include <cstdint>

#include "cli/render/escapes.h"
#include "cli/render/job.h"
#include "common/base/units.h"

namespace muster {

// 2026-11-21 14:00:00 UTC
inline constexpr int64_t kNow = 1795269600 * kSecond;

inline Screen Terminal(int width) {
  Screen screen;
  screen.live = screen.utf8 = true;
  screen.width = width;
  return screen;
}

inline pb::Job Job318() {
  pb::Job job;
  job.set_number(318);
  job.set_owner("alice");
  job.set_state(pb::RUNNING);
  job.set_submit_ns(kNow - 93 * kSecond);
  job.set_start_ns(kNow - 60 * kSecond);
  job.mutable_spec()->set_name("sft-8b");
  job.mutable_spec()->set_queue("research/nlp");
  pb::TaskSpec* spec = job.mutable_spec()->add_tasks();
  spec->set_name("main");
  spec->mutable_workers()->set_min(2);
  spec->mutable_workers()->set_max(2);
  spec->mutable_resources()->set_gpus_milli(8000);
  spec->mutable_resources()->add_gpu_types("h100-80g");
  pb::Task* task = job.add_tasks();
  task->set_name("main");
  task->set_state(pb::TASK_RUNNING);
  pb::Attempt* attempt = task->add_attempts();
  attempt->set_number(1);
  attempt->set_state(pb::TASK_RUNNING);
  attempt->set_cluster("phx");
  attempt->set_flavour("h100-80g");
  attempt->set_workers(2);
  attempt->set_start_ns(kNow - 60 * kSecond);
  attempt->add_placements()->set_host("h07");
  attempt->add_placements()->set_host("phx/h08");
  pb::Progress* progress = task->mutable_progress();
  progress->set_attempt(1);
  progress->set_step(246);
  progress->set_total_steps(600);
  progress->set_loss(1.321);
  progress->set_tokens_per_s(106000);
  progress->set_mfu_causal(0.37);
  progress->set_at_ns(kNow);
  progress->set_expected_end_ns(kNow + 100 * kMinute);
  task->add_checkpoints()->set_step(120);
  task->add_checkpoints()->set_step(240);
  return job;
}

}  // namespace muster
