#include "sim/faults/checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "sim/faults/records.h"

namespace muster::sim::faults {

void Checker::Violate(int64_t now_ns, const std::string& what) {
  if (violations_.size() < 50)
    violations_.push_back(absl::StrCat(now_ns / 1'000'000, " ms: ", what));
}

std::string Checker::Text(const pb::AttemptKey& key) {
  return absl::StrCat(key.job_uid(), "/", key.task(), "/", key.attempt());
}

Checker::Known Checker::Find(const pb::AttemptKey& key, const std::string& host) const {
  Known known;
  const auto job = jobs_.find(key.job_uid());
  if (job == jobs_.end()) return known;
  known.job = &job->second;
  for (int t = 0; t < job->second.tasks_size(); ++t) {
    if (job->second.spec().tasks(t).name() != key.task()) continue;
    known.task = &job->second.tasks(t);
    known.task_index = t;
    for (const pb::AttemptRecord& attempt : known.task->attempts()) {
      if (attempt.number() != key.attempt()) continue;
      known.attempt = &attempt;
      for (int p = 0; p < attempt.placements_size(); ++p) {
        if (absl::StrCat(attempt.cluster(), "/", attempt.placements(p).host()) == host)
          known.part = p;
      }
    }
  }
  return known;
}

bool Checker::Replaceable(const pb::JobRecord& job, int task, const pb::AttemptRecord& attempt) {
  const pb::TaskSpec& spec = job.spec().tasks(task);
  if (spec.when_unreachable() != pb::WHEN_UNREACHABLE_UNSPECIFIED)
    return spec.when_unreachable() == pb::REPLACE;
  return attempt.placements_size() > 1;
}

void Checker::OnRestored(const Rows& rows, uint64_t commit, bool newest) {
  std::set<std::string> before;
  const auto add_attempts = [](const pb::JobRecord& job, std::set<std::string>* names) {
    ForEachAttempt(job, [&](const pb::AttemptKey& key) { names->insert(Text(key)); });
  };
  for (const auto& [uid, job] : jobs_) add_attempts(job, &before);
  jobs_.clear();
  hosts_.clear();
  uid_of_row_.clear();
  committed_key_.clear();
  answered_.clear();
  forgot_.clear();
  // What that time had ordered may still arrive, and nobody waited for these hosts then.
  for (const auto& [where, live] : live_) {
    if (abandoned_.count(where.first) > 0 && unheard_.count(where.second) > 0)
      unheard_before_.insert(where);
  }
  unheard_.clear();
  std::set<std::string> known;
  for (const auto& [name, bytes] : rows) {
    if (name.first == "job") {
      pb::JobRecord job;
      MUSTER_CHECK(job.ParseFromString(bytes));
      add_attempts(job, &known);
      uid_of_row_[name.second] = job.uid();
      if (!job.idempotency_key().empty())
        committed_key_[KeyOfUser(job.owner(), job.idempotency_key())] = job.number();
      jobs_[job.uid()] = std::move(job);
    } else if (name.first == "host") {
      MUSTER_CHECK(hosts_[name.second].ParseFromString(bytes));
    } else if (name.first == "configuration") {
      OnConfiguration(bytes);
    }
  }
  for (const std::string& name : before) {
    if (known.count(name) == 0) abandoned_.insert(name);
  }
  of_backup_ = std::move(known);
  ++restores_;
  RestoreHistories();
  rows_.OnRestored();
  schedules_.OnRestored();
  quarantines_.OnRestored();
  // Their ends may have been told and acknowledged since; nobody keeps them any more.
  for (auto end = ends_.begin(); end != ends_.end() && !newest; ++end)
    records_lost_.insert(end->first);
  std::set<uint64_t> cancelled;
  for (const auto& [uid, job] : jobs_) {
    if (job.cancel_requested() && cancelled_.count(job.number()) > 0)
      cancelled.insert(job.number());
  }
  cancelled_ = std::move(cancelled);
  std::erase_if(number_of_key_, [&](const auto& acknowledged) {
    const auto stored = committed_key_.find(acknowledged.first);
    return stored == committed_key_.end() || stored->second != acknowledged.second;
  });
  commit_ = commit;
  restoring_ = true;
}

// As far as the store tells.
void Checker::RestoreHistories() {
  published_for_.clear();
  records_.clear();
  struck_.clear();
  checkpoints_.clear();
  for (const auto& [uid, job] : jobs_) {
    for (int t = 0; t < job.tasks_size(); ++t) {
      const pb::TaskRecord& task = job.tasks(t);
      const std::string name = absl::StrCat(uid, "/", job.spec().tasks(t).name());
      records_[name].assign(task.checkpoints().begin(), task.checkpoints().end());
      for (const pb::Checkpoint& checkpoint : task.checkpoints())
        checkpoints_.insert(checkpoint.path());
      for (const pb::AttemptRecord& attempt : task.attempts()) {
        if (task.export_state() == "published" && !attempt.export_staged().empty())
          published_for_[name] = Text(KeyOf(job, t, attempt));
      }
    }
  }
}

void Checker::OnRecovered(int64_t now_ns) {
  std::map<uint64_t, const pb::JobRecord*> by_number;
  for (const auto& [uid, job] : jobs_) by_number[job.number()] = &job;
  for (const auto& [key, number] : number_of_key_) {
    if (by_number.count(number) == 0)
      Violate(now_ns, absl::StrCat("S4 an acknowledged job is lost: ", number));
  }
  for (const uint64_t number : cancelled_) {
    const auto job = by_number.find(number);
    if (job == by_number.end() ||
        (job->second->end_ns() == 0 && !job->second->cancel_requested())) {
      Violate(now_ns, absl::StrCat("S4 an acknowledged cancel is lost: job ", number));
    }
  }
}

std::vector<std::string> Checker::Leaks() const {
  std::vector<std::string> leaks = rows_.Leaks();
  for (const auto& [where, live] : live_)
    leaks.push_back(absl::StrCat("processes of ", where.first, " run on ", where.second));
  return leaks;
}

int64_t Checker::unfinished_jobs() const {
  return std::count_if(jobs_.begin(), jobs_.end(),
                       [](const auto& job) { return job.second.end_ns() == 0; });
}

}  // namespace muster::sim::faults
