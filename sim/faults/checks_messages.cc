// What the scheduler decides, sends and acknowledges.
#include "sim/faults/checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "sim/faults/records.h"

namespace muster::sim::faults {

void Checker::OnPlan(int64_t now_ns, const Plan& plan) {
  for (const auto& [uid, job] : jobs_) {
    if (job.end_ns() != 0) continue;
    for (int t = 0; t < job.tasks_size(); ++t) {
      const pb::TaskState state = job.tasks(t).state();
      if (state != pb::TASK_WAITING && state != pb::TASK_BLOCKED) continue;
      const Verdict* verdict = plan.verdicts.Find({job.number(), t});
      if (verdict == nullptr || verdict->code == pb::VERDICT_UNSPECIFIED) {
        Violate(now_ns, absl::StrCat("job ", job.number(), " waits without a verdict"));
      } else if (verdict->code == pb::V_REFUSED) {
        Violate(now_ns, absl::StrCat("contract 20: a plan for job ", job.number(), " was refused"));
      }
    }
  }
}

bool Checker::AnyTaskWaits() const {
  return std::any_of(jobs_.begin(), jobs_.end(), [](const auto& job) {
    return std::any_of(job.second.tasks().begin(), job.second.tasks().end(),
                       [](const pb::TaskRecord& task) { return task.state() == pb::TASK_WAITING; });
  });
}

void Checker::ViolateDispatch(int64_t now_ns, const std::string& host, const std::string& what,
                              const pb::AttemptKey& key) {
  Violate(now_ns,
          absl::StrCat("dispatched is not committed: ", what, ": ", Text(key), " on ", host));
}

void Checker::CheckPrepare(int64_t now_ns, const std::string& host, const pb::Prepare& prepare) {
  const Known known = Find(prepare.key(), host);
  for (const std::string& path : prepare.resume_from()) {
    if (struck_.contains(path))
      ViolateDispatch(now_ns, host, absl::StrCat("R1 may resume from an abandoned branch, ", path),
                      prepare.key());
  }
  if (known.part < 0 || known.attempt->end_ns() != 0) {
    ViolateDispatch(now_ns, host, "Prepare", prepare.key());
  } else if (prepare.owner() != known.job->owner()) {
    ViolateDispatch(now_ns, host,
                    absl::StrCat("a job of ", known.job->owner(), "'s as ", prepare.owner()),
                    prepare.key());
  } else if (prepare.start_at_once() && known.attempt->placements_size() > 1) {
    ViolateDispatch(now_ns, host, "contract 6: a gang starts at once", prepare.key());
  }
}

// The scheduler serves the host: what another one had put off there is over.
void Checker::OnWelcome(const std::string& host) {
  quarantines_.OnWelcome(host);
  std::erase_if(publishes_sent_alone_, [&](const auto& sent) { return sent.second == host; });
  std::erase_if(renewed_alone_, [&](const auto& renewed) {
    if (renewed.second != host) return false;
    const auto live = live_.find(renewed);
    const Known known = live == live_.end() ? Known() : Find(live->second.prepare.key(), host);
    return known.part < 0 || !known.attempt->parts(known.part).lost();
  });
}

void Checker::CheckStop(int64_t now_ns, const std::string& host, const pb::AttemptKey& key) {
  const auto row = hosts_.find(host);
  if (row != hosts_.end() &&
      std::any_of(row->second.lost().begin(), row->second.lost().end(),
                  [&](const pb::LostAttempt& lost) { return Text(lost.key()) == Text(key); })) {
    if (Lives(Text(key), host) && AnyTaskWaits())
      ++counters_["stops of a Lost attempt that runs, while others wait for devices"];
    return;
  }
  const Known known = Find(key, host);
  if (known.part < 0 ||
      (known.attempt->end_ns() == 0 && known.attempt->state() != pb::TASK_STOPPING &&
       !known.attempt->parts(known.part).lost())) {
    ViolateDispatch(now_ns, host, "Stop", key);
  }
}

void Checker::OnDispatch(int64_t now_ns, const std::string& host,
                         const pb::SchedulerMessage& message) {
  const auto violate = [&](const std::string& what, const pb::AttemptKey& key) {
    ViolateDispatch(now_ns, host, what, key);
  };
  switch (message.body_case()) {
    case pb::SchedulerMessage::kPrepare:
      return CheckPrepare(now_ns, host, message.prepare());
    case pb::SchedulerMessage::kStart: {
      const Known known = Find(message.start().key(), host);
      if (known.part < 0 || known.attempt->end_ns() != 0 ||
          known.attempt->state() == pb::TASK_PREPARING) {
        violate("Start", message.start().key());
      } else {
        starts_sent_.insert({Text(message.start().key()), host});
      }
      return;
    }
    case pb::SchedulerMessage::kWelcome:
      return OnWelcome(host);
    case pb::SchedulerMessage::kCheckHost:
      return quarantines_.OnAsked(now_ns, host, message);
    case pb::SchedulerMessage::kStop:
      return CheckStop(now_ns, host, message.stop().key());
    case pb::SchedulerMessage::kPublish: {
      const Known known = Find(message.publish().key(), host);
      if (known.part < 0 || known.attempt->export_staged().empty() ||
          known.task->export_state() != "staged")
        violate("Publish", message.publish().key());
      publishes_sent_[Text(message.publish().key())] = restores_;
      return;
    }
    case pb::SchedulerMessage::kForget: {
      const Known known = Find(message.forget().key(), host);
      if (known.part >= 0 && known.attempt->end_ns() == 0 &&
          !Over(known.attempt->parts(known.part)))
        violate("Forget", message.forget().key());
      return;
    }
    case pb::SchedulerMessage::kCheckpointAck:
      return CheckCheckpointAck(now_ns, host, message.checkpoint_ack());
    case pb::SchedulerMessage::kHeartbeatAck:
      for (const pb::AttemptKey& key : message.heartbeat_ack().renews()) {
        const Known known = Find(key, host);
        if (known.part >= 0 && known.attempt->parts(known.part).lost())
          violate("contract 9: a Lost attempt is renewed", key);
      }
      return;
    default:
      return;
  }
}

// S4. Of an attempt that isn't its task's newest, or is Lost, or whose job has ended, a checkpoint
// is acknowledged without effect.
void Checker::CheckCheckpointAck(int64_t now_ns, const std::string& host,
                                 const pb::CheckpointAck& ack) {
  const Known known = Find(ack.key(), host);
  const auto reported = reported_.find({Text(ack.key()), ack.sequence()});
  if (known.part < 0 || reported == reported_.end() || known.job->end_ns() != 0) return;
  if (known.task->attempts().rbegin()->number() != known.attempt->number()) return;
  const auto& parts = known.attempt->parts();
  if (std::any_of(parts.begin(), parts.end(), [](const pb::HostPart& part) { return part.lost(); }))
    return;
  ++counters_["checkpoints acknowledged that count"];
  if (!checkpoints_.contains(reported->second))
    Violate(now_ns, absl::StrCat("S4 a checkpoint is acknowledged and not in the store: ",
                                 reported->second));
}

// What it decides from now on, the store that counts doesn't know.
void Checker::OnCommitAlone(const Transaction& transaction, const Rows& rows) {
  for (const RowChange& row : transaction.rows) {
    if (row.kind != "job" || !row.bytes.has_value()) continue;
    pb::JobRecord job;
    MUSTER_CHECK(job.ParseFromString(*row.bytes));
    if (!jobs_.contains(job.uid()) && uids_alone_.insert(job.uid()).second)
      CheckUid(now_ns_, job.uid());
    ForEachAttempt(job, [&](const pb::AttemptKey& key) {
      if (Find(key, "").attempt == nullptr) abandoned_.insert(Text(key));
    });
    RememberHoldersAlone(job, rows);
  }
}

void Checker::OnStaleDispatch(int64_t now_ns, const std::string& host,
                              const pb::SchedulerMessage& message, bool alone) {
  if (alone) {
    ++counters_["messages of a scheduler whose store was cloned"];
    if (message.has_start()) starts_sent_.insert({Text(message.start().key()), host});
    if (message.has_forget()) records_lost_.insert({Text(message.forget().key()), host});
    if (message.has_publish()) publishes_sent_alone_.insert({Text(message.publish().key()), host});
  } else if (message.has_publish()) {
    const Known known = Find(message.publish().key(), host);
    if (known.part >= 0 && !known.attempt->export_staged().empty())
      publishes_sent_[Text(message.publish().key())] = restores_;
  }
  for (const pb::AttemptKey& key : message.heartbeat_ack().renews()) {
    const Known known = Find(key, host);
    if (known.part < 0 || known.job->spec().tasks(known.task_index).when_unreachable() != pb::FENCE)
      continue;
    if (alone) {
      renewed_alone_.insert({Text(key), host});
    } else {
      Violate(now_ns, absl::StrCat("contract 17: a replaced scheduler puts off a fence: ",
                                   Text(key), " on ", host));
    }
  }
}

void Checker::OnAcknowledgedSubmission(int64_t now_ns, const std::string& key, uint64_t number) {
  const auto stored = committed_key_.find(key);
  if (stored == committed_key_.end() || stored->second != number)
    Violate(now_ns, absl::StrCat("S4 acknowledged and not in the store: job ", number));
  const auto [known, first] = number_of_key_.emplace(key, number);
  if (!first) ++counters_["submissions repeated"];
  if (known->second != number)
    Violate(now_ns,
            absl::StrCat("contract 18: one key gives jobs ", known->second, " and ", number));
}

void Checker::OnAcknowledgedCancel(int64_t now_ns, uint64_t number) { cancelled_.insert(number); }

}  // namespace muster::sim::faults
