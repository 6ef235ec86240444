#include "scheduler/ask/words/narrate.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/spec/members.h"
#include "scheduler/ask/words/failure_text.h"

namespace muster {
namespace {

// "lab/h1,h2 and cloud/h1" in rank order; more than four hosts as "lab/h1 and 7 more hosts".
std::string Places(const State& state, const AttemptRow& attempt) {
  std::vector<std::string> names;
  for (const PartRow& part : attempt.parts) {
    const std::string name = state.HostName(part.host);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  if (names.size() > 4) return absl::StrCat(names[0], " and ", names.size() - 1, " more hosts");
  for (size_t i = names.size(); i-- > 1;) {
    const size_t slash = names[i].find('/');
    if (names[i].compare(0, slash + 1, names[i - 1], 0, slash + 1) == 0)
      names[i].erase(0, slash + 1);
  }
  return absl::StrJoin(names, ",");
}

std::string Workers(int32_t workers) {
  return workers == 1 ? "1 worker" : absl::StrCat(workers, " workers");
}

std::string With(const std::string& text, const std::string& detail) {
  if (detail.empty() || detail == text) return text;
  return text.empty() ? detail : absl::StrCat(text, ": ", detail);
}

std::string Stopping(const State& state, const AttemptRow& attempt) {
  std::string who;
  const JobRow* claimant = state.FindJobByUid(attempt.claimant.job_uid());
  if (claimant != nullptr)
    who = absl::StrCat(claimant->spec->queue(), " needs its share (job ", claimant->number, ")");
  if (attempt.next_workers > 0 && attempt.next_workers == attempt.workers) {
    return With("goes on with other devices", With(who, attempt.detail));
  }
  if (attempt.next_workers > 0) {
    return With(absl::StrCat(attempt.next_workers < attempt.workers ? "shrinks " : "grows ",
                             attempt.workers, " → ", Workers(attempt.next_workers)),
                who.empty() ? attempt.detail : who);
  }
  if (attempt.cause == pb::CANCEL)
    return absl::StrCat("attempt ", attempt.number, " is being stopped: cancelled");
  return With(absl::StrCat("attempt ", attempt.number, " is being stopped"),
              With(who.empty() ? CauseText(attempt.cause) : who, attempt.detail));
}

class Narrator {
 public:
  Narrator(const State& state, const JobRow& job) : state_(state), job_(job) {}

  void Task(const TaskRow* before, const TaskRow& task, int32_t index,
            const std::vector<pb::Event>& events) {
    prefix_ = job_.tasks.size() > 1 ? absl::StrCat(job_.task_spec(index).name(), ": ") : "";
    for (const AttemptRow& attempt : task.attempts) {
      const AttemptRow* was = nullptr;
      if (before != nullptr) {
        for (const AttemptRow& candidate : before->attempts) {
          if (candidate.number == attempt.number) was = &candidate;
        }
      }
      Attempt(was, attempt, index, events);
    }
    if (before == nullptr || before->opened.size() < task.opened.size()) {
      for (size_t i = before == nullptr ? 0 : before->opened.size(); i < task.opened.size(); ++i) {
        Say(With(absl::StrCat("may also start in ", task.opened[i]), task.spill_reason));
      }
    }
    for (const pb::Checkpoint& checkpoint : task.checkpoints) {
      if (checkpoint.attempt() == 0) continue;  // an earlier job's
      // By path, as State tells them apart: their times are by the clocks of several hosts.
      const auto same = [&](const pb::Checkpoint& other) {
        return other.path() == checkpoint.path();
      };
      if (before == nullptr ||
          std::none_of(before->checkpoints.begin(), before->checkpoints.end(), same)) {
        Say(absl::StrCat("checkpoint at step ", checkpoint.step()));
      }
    }
    if (task.export_failures > (before == nullptr ? 0 : before->export_failures)) {
      Say(absl::StrCat("the export could not be published (try ", task.export_failures, " of ",
                       kExportTries, "): ", task.export_detail));
    }
    if (task.export_state == "published" &&
        (before == nullptr || before->export_state != "published"))
      Published(task);
    if (before != nullptr && task.restarts_used > before->restarts_used && !task.finished()) {
      Say(absl::StrCat("restarts: failure ", task.restarts_used, " of ",
                       MaxRestartsOf(*job_.spec, index, job_.member), " allowed"));
    }
    if (task.finished() && (before == nullptr || !before->finished()) && job_.tasks.size() > 1) {
      if (task.state == pb::TASK_SUCCEEDED) Say("succeeded");
      if (task.state == pb::TASK_FAILED)
        Say(With("failed", With(CauseText(task.cause),
                                FailureText(job_.task_spec(index), task.cause, task.detail))));
    }
  }

  void Say(const std::string& sentence) { said_.push_back(prefix_ + sentence); }
  std::vector<std::string> Done() { return std::move(said_); }

 private:
  void Published(const TaskRow& task) {
    for (const AttemptRow& attempt : task.attempts) {
      if (!attempt.export_staged.empty())
        Say(absl::StrCat("the export is at ", attempt.export_target));
    }
  }

  void Attempt(const AttemptRow* was, const AttemptRow& attempt, int32_t task,
               const std::vector<pb::Event>& events) {
    if (was == nullptr) {
      Say(absl::StrCat("attempt ", attempt.number, " is placed on ", Places(state_, attempt),
                       " with ", Workers(attempt.workers)));
    }
    if (attempt.start_ns != 0 && (was == nullptr || was->start_ns == 0)) {
      Say(absl::StrCat("attempt ", attempt.number, " runs on ", Places(state_, attempt), " with ",
                       Workers(attempt.workers)));
    }
    for (const pb::Event& event : events) {
      if (!event.has_loaded_seen() || event.loaded_seen().key().job_uid() != job_.uid ||
          event.loaded_seen().key().task() != job_.task_spec(task).name() ||
          event.loaded_seen().key().attempt() != attempt.number) {
        continue;
      }
      for (const std::string& refused : event.loaded_seen().refused())
        Say(absl::StrCat("a checkpoint was refused: ", refused));
    }
    if (attempt.resumed_step >= 0 &&
        (was == nullptr || was->resumed_step != attempt.resumed_step)) {
      Say(absl::StrCat("attempt ", attempt.number, " goes on from step ", attempt.resumed_step));
    }
    if (const std::optional<Failure> failure = FirstFailure(attempt);
        failure.has_value() && (was == nullptr || !FirstFailure(*was).has_value())) {
      Say(With(failure->detail.empty() ? CauseText(failure->cause) : "",
               FailureText(job_.task_spec(task), failure->cause, failure->detail)));
    }
    const bool stopping = attempt.stop_ns != 0 && (was == nullptr || was->stop_ns == 0);
    const bool by_failure = attempt.cause == pb::PROGRAM_ERROR || attempt.cause == pb::KILLED ||
                            attempt.cause == pb::OUT_OF_MEMORY;
    if (stopping && !by_failure) Say(Stopping(state_, attempt));
    if (attempt.ended() && (was == nullptr || !was->ended())) {
      const std::string why =
          attempt.cause == pb::DONE ? "every worker is done" : CauseText(attempt.cause);
      Say(With(absl::StrCat("attempt ", attempt.number, " ended"), why));
    }
  }

  const State& state_;
  const JobRow& job_;
  std::string prefix_;
  std::vector<std::string> said_;
};

}  // namespace

std::vector<std::string> Narrate(const State& before_state, const JobRow* before,
                                 const State& state, const JobRow& job,
                                 const std::vector<pb::Event>& events) {
  Narrator narrator(state, job);
  if (before == nullptr)
    narrator.Say(absl::StrCat("submitted by ", job.owner, " to queue ", job.spec->queue()));
  if (job.cancel_requested && (before == nullptr || !before->cancel_requested))
    narrator.Say("its cancellation was asked for");
  for (size_t i = 0; i < job.tasks.size(); ++i) {
    narrator.Task(before == nullptr ? nullptr : &before->tasks[i], job.tasks[i],
                  static_cast<int32_t>(i), events);
  }
  std::vector<std::string> said = narrator.Done();
  for (const pb::Event& event : events) {
    if (!event.has_host_state() || event.host_state().state() != pb::HOST_UNREACHABLE) continue;
    const HostId host = state.FindHost(event.host_state().cluster(), event.host_state().host());
    if (host == kNoHost) continue;
    for (const AttemptRef& ref : state.host(host).attempts) {
      if (ref.job == job.number)
        said.push_back(
            absl::StrCat(state.HostName(host), " can't be reached; what runs there may go on"));
    }
  }
  if (job.finished() && (before == nullptr || !before->finished())) {
    if (job.state == pb::SUCCEEDED) said.emplace_back("succeeded");
    if (job.state == pb::FAILED)
      said.push_back(With("failed", With(CauseText(job.cause), job.detail)));
    if (job.state == pb::CANCELLED)
      said.push_back(job.cause == pb::PREDECESSOR ? job.detail : "cancelled");
  }
  return said;
}

}  // namespace muster
