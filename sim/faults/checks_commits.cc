// What is committed.
#include "sim/faults/checks.h"

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/spec/when.h"
#include "sim/faults/records.h"

namespace muster::sim::faults {

void Checker::OnEpoch(int64_t now_ns, uint64_t epoch) {
  if (epoch <= epoch_)
    Violate(now_ns,
            absl::StrCat("contract 1: a scheduler starts with epoch ", epoch, " after ", epoch_));
  epoch_ = std::max(epoch_, epoch);
  epoch_ns_ = now_ns;
  quarantines_.OnEpoch();
}

void Checker::OnConfiguration(const std::string& bytes) {
  pb::ConfigurationRecord configuration;
  MUSTER_CHECK(configuration.ParseFromString(bytes));
  rows_.OnConfiguration(configuration);
  only_user_.clear();
  for (const pb::ClusterSpec& cluster : configuration.clusters().clusters()) {
    if (!cluster.only_user().empty()) only_user_[cluster.name()] = cluster.only_user();
  }
}

bool Checker::TakesJobsOf(const std::string& cluster, const std::string& owner) const {
  const auto only = only_user_.find(cluster);
  return only == only_user_.end() || only->second == owner;
}

void Checker::OnCommit(const Transaction& transaction, int64_t now_ns) {
  if (transaction.commit != commit_ + 1)
    Violate(now_ns, absl::StrCat("contract 23: commit ", transaction.commit, " follows ", commit_));
  commit_ = transaction.commit;
  now_ns_ = now_ns;
  ++counters_["commits"];
  for (const RowChange& row :
       transaction.rows) {  // hosts first: what is decided of jobs rests on them
    if (row.kind == "configuration" && row.bytes.has_value()) OnConfiguration(*row.bytes);
    if (row.kind != "host" || !row.bytes.has_value()) continue;
    pb::HostRecord host;
    MUSTER_CHECK(host.ParseFromString(*row.bytes));
    rows_.OnHost(transaction.now_ns, row.id, host);
    quarantines_.OnHost(transaction.now_ns, now_ns, row.id, host);
    hosts_[row.id] = std::move(host);
  }
  placed_.clear();
  std::set<uint64_t> arrays;
  for (const RowChange& row : transaction.rows) {
    if (row.kind == "job") {
      if (!row.bytes.has_value()) {
        const auto uid = uid_of_row_.find(row.id);
        if (uid != uid_of_row_.end() && jobs_.at(uid->second).end_ns() == 0)
          Violate(now_ns, "S4 an unfinished job is forgotten");
        continue;
      }
      pb::JobRecord job;
      MUSTER_CHECK(job.ParseFromString(*row.bytes));
      const auto known = jobs_.find(job.uid());
      const pb::JobRecord* before = known == jobs_.end() ? nullptr : &known->second;
      if (before == nullptr) CheckUid(now_ns, job.uid());
      engine_now_ns_ = transaction.now_ns;
      CheckJob(now_ns, before, job);
      rows_.OnJob(transaction.now_ns, before, job);
      schedules_.OnJob(before, job);
      uid_of_row_[row.id] = job.uid();
      if (!job.idempotency_key().empty())
        committed_key_[KeyOfUser(job.owner(), job.idempotency_key())] = job.number();
      if (job.array() != 0) arrays.insert(job.array());
      jobs_[job.uid()] = std::move(job);
    } else if (row.kind == "meta" && row.bytes.has_value()) {
      pb::MetaRecord meta;
      MUSTER_CHECK(meta.ParseFromString(*row.bytes));
      CheckLedger(now_ns, meta);
      if (restoring_ && !meta.restoring()) {
        for (const auto& [name, host] : hosts_) {
          // It did not answer in time, or was cut off before it could stop what it was told to.
          if (answered_.count(name) == 0 && host.state() != pb::HOST_NEVER_SEEN &&
              now_ns - epoch_ns_ < lease_ns_) {
            Violate(now_ns, absl::StrCat("contract 19: what was restored is settled before a lease "
                                         "has passed, and nothing was heard of ",
                                         name));
          }
          if (answered_.count(name) == 0 || host.state() == pb::HOST_UNREACHABLE)
            unheard_.insert(name);
        }
      }
      restoring_ = meta.restoring();
    }
  }
  for (const uint64_t array : arrays) CheckTurns(now_ns, array);
  if (restoring_ && !placed_.empty())
    Violate(now_ns, absl::StrCat("contract 19: placed before what was restored is settled: ",
                                 Text(placed_[0])));
  std::set<std::pair<std::string, std::string>> placed;
  for (const pb::AttemptKey& key : placed_) RememberHolder(key);
  for (const pb::AttemptKey& key : placed_) {
    CheckDevices(now_ns, key);
    CheckHosted(now_ns, key);
    placed.emplace(key.job_uid(), key.task());
  }
  rows_.Committed(transaction.now_ns, restoring_, placed);
  schedules_.Committed();
  quarantines_.Committed(transaction.now_ns, now_ns);
}

// Contract 16. Whoever submits once more what a restored store doesn't know any more gets another
// job: what a host still has of the one before isn't its.
void Checker::CheckUid(int64_t now_ns, const std::string& uid) {
  if (!uids_.insert(uid).second)
    Violate(now_ns, absl::StrCat("contract 16: a second job is given the uid ", uid));
}

// S3, contract 14, of an attempt that this commit has placed: nobody holds its devices, and no Lost
// attempt whose host hasn't answered Gone.
void Checker::CheckDevices(int64_t now_ns, const pb::AttemptKey& placed) {
  const Known known = Find(placed, "");
  for (const pb::Placement& mine : known.attempt->placements()) {
    const std::string host = absl::StrCat(known.attempt->cluster(), "/", mine.host());
    std::map<int32_t, int64_t> used;  // in thousandths
    const auto take = [&](const pb::Placement& placement) {
      for (int d = 0; d < placement.devices_size(); ++d)
        used[placement.devices(d)] +=
            d < placement.device_milli_size() ? placement.device_milli(d) : 1000;
    };
    const auto row = hosts_.find(host);
    MUSTER_CHECK(row != hosts_.end());
    for (const pb::LostAttempt& lost : row->second.lost()) {
      if (IsOnHolder(lost.key(), host)) continue;
      take(lost.placement());
      if (lost.placement().devices_size() > 0)
        ++counters_["placed beside a Lost attempt that its host has not answered Gone for"];
    }
    for (const auto& [uid, job] : jobs_) {
      for (int t = 0; t < job.tasks_size(); ++t) {
        for (const pb::AttemptRecord& attempt : job.tasks(t).attempts()) {
          if (attempt.end_ns() != 0 || attempt.cluster() != known.attempt->cluster()) continue;
          pb::AttemptKey key;
          key.set_job_uid(uid);
          key.set_task(job.spec().tasks(t).name());
          key.set_attempt(attempt.number());
          if (IsOnHolder(key, host)) continue;
          for (int p = 0; p < attempt.placements_size(); ++p) {
            if (attempt.placements(p).host() == mine.host() && !Over(attempt.parts(p)))
              take(attempt.placements(p));
          }
        }
      }
    }
    for (const pb::Quarantine& quarantine : row->second.quarantines()) {
      const auto& devices = mine.devices();
      const bool uses = quarantine.device() < 0 || std::find(devices.begin(), devices.end(),
                                                             quarantine.device()) != devices.end();
      if (!uses || quarantine.withheld()) continue;
      Violate(now_ns, absl::StrCat("placed on what is in quarantine, ", host, " device ",
                                   quarantine.device(), ": ", Text(placed)));
    }
    for (const int32_t device : mine.devices()) {
      if (used[device] > 1000)
        Violate(now_ns, absl::StrCat("S3 device ", device, " of ", host, " is given to ",
                                     Text(placed), " while another holds it"));
    }
  }
}

void Checker::CheckLedger(int64_t now_ns, const pb::MetaRecord& meta) {
  int64_t sum = 0;
  for (const pb::LedgerRow& row : meta.ledger()) sum += row.device_us();
  if (sum != meta.ledger_capacity_device_us())
    Violate(now_ns, absl::StrCat("the ledger's classes sum to ", sum, " of ",
                                 meta.ledger_capacity_device_us()));
}

// Nobody stops a member, or ends it, for what became of another.
void Checker::CheckMember(int64_t now_ns, const pb::JobRecord* before, const pb::JobRecord& after) {
  const auto violate = [&](const std::string& what) {
    Violate(now_ns, absl::StrCat(what, ": job ", after.number(), " of array ", after.array()));
  };
  if (before == nullptr) ++counters_["members of arrays"];
  const bool own_end =
      after.cancel_requested() ||
      std::any_of(after.tasks().begin(), after.tasks().end(),
                  [](const pb::TaskRecord& task) { return task.state() == pb::TASK_FAILED; });
  for (const pb::TaskRecord& task : after.tasks()) {
    if (task.attempts().empty()) continue;
    const pb::AttemptRecord& newest = task.attempts(task.attempts_size() - 1);
    const bool exited = std::any_of(newest.parts().begin(), newest.parts().end(),
                                    [](const pb::HostPart& part) { return part.exits_size() > 0; });
    const bool failed = newest.cause() == pb::PROGRAM_ERROR || newest.cause() == pb::KILLED;
    if (newest.cause() == pb::CANCEL && !own_end)
      violate("a member is stopped, and nobody cancelled it");
    if (failed && !exited) violate("a member is stopped for a failure that isn't its own");
    if (after.later() && newest.end_ns() == 0) violate("a member runs before its turn");
  }
  if (after.end_ns() != 0 && after.cause() == pb::DONE &&
      std::any_of(after.tasks().begin(), after.tasks().end(),
                  [](const pb::TaskRecord& task) { return task.attempts_size() > 0; })) {
    violate("a member that has run is called not needed");
  }
}

// By what its spec names and the rows say, not by what the scheduler keeps of it.
void Checker::CheckPredecessors(int64_t now_ns, const pb::JobRecord* before,
                                const pb::JobRecord& after) {
  const auto started = [](const pb::JobRecord& job) {
    return std::any_of(job.tasks().begin(), job.tasks().end(),
                       [](const pb::TaskRecord& task) { return task.attempts_size() > 0; });
  };
  if (before == nullptr && after.awaits_size() > 0) ++counters_["jobs that waited for others"];
  if (after.cause() == pb::PREDECESSOR && after.end_ns() != 0 &&
      (before == nullptr || before->end_ns() == 0))
    ++counters_["jobs that others' ends kept from starting"];
  if (!started(after) || (before != nullptr && started(*before))) return;
  const auto check = [&](const std::string& id, bool any) {
    uint64_t number = 0;
    const size_t bar = id.find('_');
    if (!absl::SimpleAtoi(id.substr(0, bar), &number)) return;
    for (const auto& [uid, job] : jobs_) {
      const bool member = bar != std::string::npos;  // the first, as users here name no other
      if (job.number() != number && (member || job.array() != number)) continue;
      const bool unneeded = job.cause() == pb::DONE && !member;
      if (job.end_ns() == 0 || !(any || job.state() == pb::SUCCEEDED || unneeded))
        Violate(now_ns, absl::StrCat("job ", after.number(), " starts before job ", job.number(),
                                     any ? " has ended" : " has succeeded"));
    }
  };
  for (const std::string& id : after.spec().after()) check(id, false);
  for (const std::string& id : after.spec().after_any()) check(id, true);
}

// By the time that its spec names, as the scheduler's clock went.
void Checker::CheckTime(int64_t now_ns, const pb::JobRecord* before, const pb::JobRecord& after) {
  if (after.spec().not_before().empty()) return;
  const int64_t time_ns = ParseInstantNs(after.spec().not_before()).value_or(0);
  if (before == nullptr && after.not_before_ns() != 0) ++counters_["jobs that waited for a time"];
  for (const pb::TaskRecord& task : after.tasks()) {
    for (const pb::AttemptRecord& attempt : task.attempts()) {
      if (attempt.place_ns() < time_ns)
        Violate(now_ns, absl::StrCat("job ", after.number(), " is placed before its time"));
    }
  }
}

// With %N no more than N members are at their turn.
void Checker::CheckTurns(int64_t now_ns, uint64_t array) {
  int32_t most = 0, turns = 0;
  for (const auto& [uid, job] : jobs_) {
    if (job.array() != array || job.end_ns() != 0) continue;
    const std::string& text = job.spec().array();
    const size_t percent = text.find('%');
    if (percent == std::string::npos || !absl::SimpleAtoi(text.substr(percent + 1), &most)) return;
    turns += job.later() ? 0 : 1;
  }
  if (turns > most)
    Violate(now_ns,
            absl::StrCat(turns, " members of array ", array, " are at their turn, of ", most));
}

void Checker::CheckJob(int64_t now_ns, const pb::JobRecord* before, const pb::JobRecord& after) {
  const auto violate = [&](const std::string& what) {
    Violate(now_ns, absl::StrCat(what, ": job ", after.number()));
  };
  const auto key = committed_key_.find(KeyOfUser(after.owner(), after.idempotency_key()));
  if (key != committed_key_.end() && key->second != after.number())
    violate("contract 18: a second job of one idempotency key");
  if (before != nullptr && before->end_ns() != 0 && before->state() != after.state())
    violate("an ended job changes its state");
  if (after.array() != 0) CheckMember(now_ns, before, after);
  CheckPredecessors(now_ns, before, after);
  CheckTime(now_ns, before, after);
  CheckTogether(now_ns, before, after);
  if (before != nullptr && before->cancel_requested() && !after.cancel_requested())
    violate("S4 a cancel is forgotten");
  for (int t = 0; t < after.tasks_size(); ++t) {
    const pb::TaskRecord& task = after.tasks(t);
    const pb::TaskRecord* old = before != nullptr ? &before->tasks(t) : nullptr;
    if (old != nullptr && old->state() == pb::TASK_SUCCEEDED && task.state() != pb::TASK_SUCCEEDED)
      violate("a task that has succeeded runs again");
    if (old != nullptr && task.next_attempt() < old->next_attempt())
      violate("S0 numbers of attempts go back");
    for (const pb::AttemptRecord& attempt : task.attempts()) {
      const pb::AttemptRecord* known = nullptr;
      if (old != nullptr) {
        for (const pb::AttemptRecord& a : old->attempts()) {
          if (a.number() == attempt.number()) known = &a;
        }
      }
      CheckAttempt(now_ns, after, t, known, attempt);
    }
    CheckExport(now_ns, after, t, old);
    // R1: what a later attempt may resume from is one history, of attempts whose records counted
    // when they were made.
    if (old != nullptr) {
      for (const pb::Checkpoint& checkpoint : task.checkpoints()) {
        const bool known =
            std::any_of(old->checkpoints().begin(), old->checkpoints().end(),
                        [&](const pb::Checkpoint& c) { return c.path() == checkpoint.path(); });
        if (known) continue;
        ++counters_["checkpoints recorded"];
        checkpoints_.insert(checkpoint.path());
        pb::AttemptKey by;
        by.set_job_uid(after.uid());
        by.set_task(after.spec().tasks(t).name());
        by.set_attempt(checkpoint.attempt());
        Record(by, checkpoint);
        if (!old->attempts().empty() && checkpoint.attempt() < old->attempts().rbegin()->number())
          violate("contract 12: a checkpoint of an older attempt is recorded");
        for (const pb::AttemptRecord& attempt : old->attempts()) {
          if (attempt.number() != checkpoint.attempt()) continue;
          for (const pb::HostPart& part : attempt.parts()) {
            if (part.lost()) violate("contract 9: a checkpoint of a Lost attempt is recorded");
          }
        }
      }
    }
  }
}

// A storage that answers nobody for a time is waited for.
void Checker::CheckExport(int64_t now_ns, const pb::JobRecord& job, int t,
                          const pb::TaskRecord* before) {
  const pb::TaskRecord& task = job.tasks(t);
  const std::string& is = task.export_state();
  if (before != nullptr && before->export_state() == is) return;
  const auto any = [&](const auto& of) {
    return std::any_of(task.attempts().begin(), task.attempts().end(),
                       [&](const pb::AttemptRecord& attempt) {
                         return !attempt.export_staged().empty() && of(attempt);
                       });
  };
  if (is == "published" && !any([&](const pb::AttemptRecord& attempt) {
        return published_.contains(Text(KeyOf(job, t, attempt)));
      })) {
    Violate(now_ns,
            absl::StrCat("R1 an export is taken as published, and isn't: job ", job.number()));
  }
  if (is == "failed" && !any([&](const pb::AttemptRecord& attempt) {
        const std::string name = Text(KeyOf(job, t, attempt));
        return refused_.contains(name) ||
               std::any_of(attempt.placements().begin(), attempt.placements().end(),
                           [&](const pb::Placement& placement) {
                             return records_lost_.contains(
                                 {name, absl::StrCat(attempt.cluster(), "/", placement.host())});
                           });
      })) {
    Violate(now_ns,
            absl::StrCat("an export is taken as failed that nothing refused: job ", job.number()));
  }
}

void Checker::Record(const pb::AttemptKey& key, const pb::Checkpoint& checkpoint) {
  std::vector<pb::Checkpoint>& records = records_[absl::StrCat(key.job_uid(), "/", key.task())];
  if (!records.empty() && records.back().attempt() != key.attempt()) {
    const auto loaded = std::find_if(
        records.begin(), records.end(),
        [path = loaded_by(key)](const pb::Checkpoint& record) { return record.path() == path; });
    const int64_t step = loaded == records.end() ? -1 : loaded->step();  // else of before a restore
    const size_t struck = std::erase_if(records, [&](const pb::Checkpoint& record) {
      if (record.step() > step) struck_.insert(record.path());
      return record.step() > step;
    });
    if (struck > 0) ++counters_["branches of checkpoints abandoned"];
  }
  records.push_back(checkpoint);
}

void Checker::CheckAttempt(int64_t now_ns, const pb::JobRecord& job, int t,
                           const pb::AttemptRecord* before, const pb::AttemptRecord& after) {
  const pb::AttemptKey key = KeyOf(job, t, after);
  const std::string name = Text(key);
  const auto violate = [&](const std::string& what) {
    Violate(now_ns, absl::StrCat(what, ": ", name));
  };
  if (before == nullptr && after.end_ns() == 0) placed_.push_back(key);
  if (before == nullptr && only_user_.contains(after.cluster())) {
    ++counters_["placed in a cluster of one user's"];
    if (!TakesJobsOf(after.cluster(), job.owner()))
      violate(absl::StrCat("a job of ", job.owner(), "'s is placed in another one's cluster ",
                           after.cluster()));
  }
  bool ends_with_loss = false;
  for (int p = 0; p < after.parts_size(); ++p) {
    const pb::HostPart& part = after.parts(p);
    const pb::HostPart* old = before != nullptr ? &before->parts(p) : nullptr;
    const std::string host = absl::StrCat(after.cluster(), "/", after.placements(p).host());
    if (part.phase() == pb::GONE && !part.lost() && (old == nullptr || old->phase() != pb::GONE) &&
        Lives(name, host)) {
      violate(absl::StrCat("S2 taken as gone while its processes run on ", host));
    }
    if (part.lost() && (old == nullptr || !old->lost())) {
      ends_with_loss = true;
      ++counters_["lost"];
      const auto row = hosts_.find(host);
      const bool confirmed = row != hosts_.end() && !row->second.confirmed_off_by().empty();
      if (confirmed) ++counters_["lost by an operator's word"];
      if (!confirmed && job.spec().tasks(t).when_unreachable() == pb::FENCE) {
        ++counters_["lost by a fence"];
        if (Executes(name, host) && renewed_alone_.contains({name, host})) {
          ++counters_["fences put off by a scheduler whose store was cloned"];
        } else if (Executes(name, host)) {
          violate(absl::StrCat("S1 lost before its fence has ended it on ", host));
        }
      } else if (!confirmed && !Replaceable(job, t, after)) {
        violate("S1 lost although its task waits for its host");
      }
      if (!confirmed) rows_.OnLost(engine_now_ns_, after.cluster(), name);
      const auto heard = heard_ns_.find(host);
      if (heard != heard_ns_.end() && now_ns - heard->second < lease_ns_)
        violate(absl::StrCat("contract 9: lost within a lease of a word of ", host));
    }
    if (old != nullptr && old->lost() && !part.lost()) violate("contract 9: Lost is not final");
    if (part.has_usage() && part.usage().cpu_us() != CpuUsOf(host, key))
      violate(absl::StrCat("what was used on ", host, " is doubled or another's"));
    if (part.has_usage() && (old == nullptr || !old->has_usage()))
      ++counters_["hosts that told what an attempt used"];
    if (old != nullptr && old->has_usage() && !part.has_usage())
      violate(absl::StrCat("what was used on ", host, " is forgotten"));
  }
  if (ends_with_loss) {
    const bool job_ends =
        job.cancel_requested() ||
        std::any_of(job.tasks().begin(), job.tasks().end(),
                    [](const pb::TaskRecord& task) { return task.state() == pb::TASK_FAILED; }) ||
        after.cause() == pb::TIME_LIMIT ||
        job.tasks(t).state() == pb::TASK_SUCCEEDED;  // as nobody needs it any more
    if (!job_ends && job.tasks(t).attempts().rbegin()->number() <= after.number())
      violate("contract 9: lost without the next attempt's placement");
  }
  if (after.end_ns() != 0 && (before == nullptr || before->end_ns() == 0))
    CheckEnd(now_ns, job, t, after);
}

void Checker::CheckEnd(int64_t now_ns, const pb::JobRecord& job, int t,
                       const pb::AttemptRecord& attempt) {
  const std::string name =
      absl::StrCat(job.uid(), "/", job.spec().tasks(t).name(), "/", attempt.number());
  const auto violate = [&](const std::string& what) {
    Violate(now_ns, absl::StrCat(what, ": ", name));
  };
  bool exited_0 = true, recorded = true, known = true, lost = false;
  for (int p = 0; p < attempt.parts_size(); ++p) {
    const std::string host = absl::StrCat(attempt.cluster(), "/", attempt.placements(p).host());
    if (!Over(attempt.parts(p))) violate("contract 7: ends before all its hosts are Gone or Lost");
    lost = lost || attempt.parts(p).lost();
    if (!attempt.parts(p).lost() && Lives(name, host))
      violate(absl::StrCat("S2 ends while its processes run on ", host));
    const auto end = ends_.find({name, host});
    known = known && records_lost_.count({name, host}) == 0;
    exited_0 = exited_0 && end != ends_.end() && end->second.all_exited_0 && !end->second.stop_sent;
    recorded = recorded && end != ends_.end() && end->second.recorded;
    if (known && !attempt.parts(p).lost() && end != ends_.end() && end->second.recorded &&
        !attempt.parts(p).has_usage())
      violate(absl::StrCat("what was used on ", host, " was not told"));
  }
  ++counters_["attempts ended"];
  if (attempt.state() == pb::TASK_SUCCEEDED && !exited_0)
    violate("contract 13: succeeds, but not all its workers exited 0 without a stop");
  const std::string& its_export = job.tasks(t).export_state();
  const bool lacks_export =
      its_export == "failed" || (its_export == "staged" && job.cancel_requested());
  if (its_export == "failed") ++counters_["ends with an export that could not be published"];
  if (attempt.state() != pb::TASK_SUCCEEDED && exited_0 && recorded && known && !lost &&
      !lacks_export) {
    violate(absl::StrCat("S4 all its workers exited 0, and that had no effect (",
                         pb::Cause_Name(attempt.cause()), " ", attempt.detail(), ")"));
  }
  if (attempt.state() == pb::TASK_SUCCEEDED) ++counters_["attempts succeeded"];
  if (attempt.cause() == pb::PREEMPTION) ++counters_["attempts preempted"];
  if (attempt.cause() == pb::HANG) {
    ++counters_["attempts that hung"];
    const bool muted = std::any_of(
        attempt.placements().begin(), attempt.placements().end(), [&](const pb::Placement& p) {
          return muted_.contains(absl::StrCat(attempt.cluster(), "/", p.host()));
        });
    if (!muted && !hangs(KeyOf(job, t, attempt), job.spec().tasks(t)))
      violate("is taken for hung, and worked");
  }
}

}  // namespace muster::sim::faults
