#include "sim/faults/checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster::sim::faults {
namespace {

constexpr int64_t kDrift = 500;  // more than any host's clock drifts: one part of so many

bool Over(const pb::HostPart& part) { return part.lost() || part.phase() == pb::GONE; }

pb::AttemptKey KeyOf(const pb::JobRecord& job, int t, const pb::AttemptRecord& attempt) {
  pb::AttemptKey key;
  key.set_job_uid(job.uid());
  key.set_task(job.spec().tasks(t).name());
  key.set_attempt(attempt.number());
  return key;
}

template <typename F>
void ForEachAttempt(const pb::JobRecord& job, F f) {
  for (int t = 0; t < job.tasks_size(); ++t) {
    for (const pb::AttemptRecord& attempt : job.tasks(t).attempts()) f(KeyOf(job, t, attempt));
  }
}

}  // namespace

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

// ---- hosts ----

void Checker::OnStart(int64_t now_ns, const std::string& host, const std::string& boot_id,
                      const std::string& prepared_boot_id, const pb::Prepare& prepare) {
  const pb::AttemptKey& key = prepare.key();
  const std::string name = Text(key);
  const auto violate = [&](const std::string& what) {
    Violate(now_ns, absl::StrCat(what, ": ", name, " on ", host));
  };
  ++counters_["processes started"];
  if (!started_.insert({name, host}).second)
    violate("S0 an attempt's processes are started a second time");
  if (boot_id != prepared_boot_id)
    violate("contract 4: what was prepared in an earlier boot is started");
  // Its fence counts from the sending of a heartbeat that was acknowledged, so at the latest from
  // the newest message that came.
  if (prepare.task().when_unreachable() == pb::FENCE) {
    const int64_t fence_ns = prepare.task().fence_after_ns(),
                  quiet_ns = now_ns - agent_heard_ns_[host];
    if (quiet_ns > fence_ns / 2) ++counters_["fenced tasks started after half of their fence"];
    if (quiet_ns > fence_ns + fence_ns / kDrift)
      violate("contract 9: a fenced task is started after its fence");
  }
  const Known known = Find(key, host);
  const bool abandoned = abandoned_.count(name) > 0;
  if (abandoned) {
    ++counters_["started after a restore that doesn't know it"];
  } else if (known.attempt == nullptr || known.part < 0) {
    violate("S4 processes of an attempt that the store doesn't hold are started");
  } else {
    const pb::HostPart& part = known.attempt->parts(known.part);
    // Cut off when it became Lost, it may start late; once its host has answered Gone, never.
    if (part.phase() == pb::GONE) violate("S2 processes start after their host has answered Gone");
    if (part.lost()) {
      ++counters_["started late after Lost"];
      const auto row = hosts_.find(host);
      if (row == hosts_.end() ||
          std::none_of(row->second.lost().begin(), row->second.lost().end(),
                       [&](const pb::LostAttempt& lost) { return Text(lost.key()) == name; })) {
        violate("S2 processes of a Lost attempt start after their host has answered Gone");
      }
    }
    if (known.attempt->end_ns() != 0 && !part.lost())
      violate("S2 processes start after the attempt has ended");
    if (known.attempt->placements_size() > 1 && known.attempt->state() == pb::TASK_PREPARING) {
      // By an order on its way since before a restore: that it is starting was committed, and is
      // what the backup doesn't hold.
      if (starts_sent_.count({name, host}) > 0) {
        ++counters_["gangs started by an order that a restored store doesn't know"];
      } else {
        violate("contract 6: a gang is started before Starting was committed");
      }
    }
  }
  // S1, S3: against everything that runs.
  std::map<int32_t, int64_t> used;
  const int64_t milli = prepare.task().resources().gpus_milli();
  const auto take = [&](const pb::Prepare& p) {
    const int64_t wants = p.task().resources().gpus_milli();
    for (const int32_t device : p.here().devices())
      used[device] += wants % 1000 == 0 ? 1000 : wants;
  };
  take(prepare);
  for (const auto& [where, live] : live_) {
    const pb::AttemptKey& other = live.prepare.key();
    if (live.host == host) take(live.prepare);
    if (other.job_uid() != key.job_uid() || other.task() != key.task() ||
        other.attempt() == key.attempt())
      continue;
    const bool older_lives = other.attempt() < key.attempt();
    const Known older = Find(older_lives ? other : key, older_lives ? live.host : host);
    const bool lost =
        older.attempt != nullptr && older.part >= 0 && older.attempt->parts(older.part).lost();
    const bool replaceable = lost && Replaceable(*older.job, older.task_index, *older.attempt);
    const bool allowed =
        replaceable ||
        (lost && renewed_alone_.contains(older_lives ? where : std::pair(name, host)));
    // A host that did not answer in time may run what a restored store doesn't know. So may one
    // that answered, lost its memory, and was then served by the original of a cloned store once
    // more.
    const auto beyond = [&](const std::string& at) {
      return unheard_.contains(at) || !answered_.contains(at) || forgot_.contains(at);
    };
    const bool unheard =
        (abandoned_.contains(where.first) && beyond(live.host)) || (abandoned && beyond(host)) ||
        ((abandoned || of_backup_.contains(name)) && unheard_before_.contains(where));
    if (lost && !replaceable && older_lives && asleep_.count(where) > 0) {
      ++counters_["a fenced task replaced while its machine sleeps"];
    } else if (unheard) {
      ++counters_["replaced what a restored store didn't know, unheard"];
    } else if (allowed) {
      ++counters_["replaced while it still runs"];
    } else {
      violate(absl::StrCat("S1 two attempts run at once, the other is ", Text(other), " on ",
                           live.host));
    }
  }
  if (milli > 0) {
    for (const auto& [device, all] : used) {
      if (all > 1000) violate(absl::StrCat("S3 device ", device, " is held twice"));
    }
  }
  live_[{name, host}] = {prepare, host};
}

void Checker::OnProcessesGone(const std::string& host, const pb::AttemptKey& key) {
  live_.erase({Text(key), host});
  asleep_.erase({Text(key), host});
  renewed_alone_.erase({Text(key), host});
}

void Checker::OnAsleep(const std::string& host) {
  for (const auto& [where, live] : live_) {
    if (live.host == host) asleep_.insert(where);
  }
}

void Checker::OnAwake(int64_t now_ns, const std::string& host,
                      const std::set<std::string>& killed) {
  for (auto it = asleep_.begin(); it != asleep_.end();) {
    const auto& [name, where] = *it;
    if (where != host || killed.count(name) > 0) {
      ++it;
      continue;
    }
    const Known known = Find(live_.at(*it).prepare.key(), host);
    if (known.part >= 0 && known.attempt->parts(known.part).lost() &&
        !Replaceable(*known.job, known.task_index, *known.attempt) &&
        !renewed_alone_.contains(*it)) {
      Violate(now_ns,
              absl::StrCat("S1 goes on when its machine wakes, and is Lost: ", name, " on ", host));
    }
    it = asleep_.erase(it);
  }
}

void Checker::OnEnd(const std::string& host, const pb::AttemptKey& key, const TrueEnd& end) {
  OnProcessesGone(host, key);
  ends_[{Text(key), host}] = end;
}

// R1. An order from before a restore may come late, and its session may last until its host hears
// of the other scheduler.
void Checker::OnPublished(int64_t now_ns, const std::string& host, const pb::AttemptKey& key,
                          const std::string& by) {
  const std::string name = Text(key);
  const auto violate = [&](const std::string& what) {
    Violate(now_ns, absl::StrCat("R1 ", what, ": ", name, " on ", host));
  };
  ++counters_["exports published"];
  if (by != name)
    violate(absl::StrCat("another attempt's export lies where its own is said to lie, ", by, "'s"));
  if (!published_.insert(name).second) ++counters_["exports published again"];
  const auto sent = publishes_sent_.find(name);
  if ((sent == publishes_sent_.end() || sent->second != restores_) &&
      publishes_sent_alone_.contains({name, host})) {
    ++counters_["exports published by order of a scheduler whose store was cloned"];
    return;
  }
  if (sent == publishes_sent_.end())
    return violate("its export is published, and is not committed as its task's");
  if (sent->second != restores_) {
    ++counters_["exports published by an order from before a restore"];
    return;
  }
  const auto [first, added] =
      published_for_.emplace(absl::StrCat(key.job_uid(), "/", key.task()), name);
  if (!added && first->second != name)
    violate(absl::StrCat("a second export of its task is published, after ", first->second, "'s"));
}

void Checker::OnHello(int64_t now_ns, const std::string& host, uint64_t epoch, uint64_t commit) {
  if (std::pair(epoch, commit) >= acted_[host]) return;
  Violate(now_ns,
          absl::StrCat("contract 2: ", host, " has seen epoch ", epoch, " and commit ", commit,
                       " and has acted on ", acted_[host].first, " and ", acted_[host].second));
}

void Checker::OnStateLost(const std::string& host) {
  acted_.erase(host);
  forgot_.insert(host);
  for (const auto& [uid, job] : jobs_)
    ForEachAttempt(job,
                   [&](const pb::AttemptKey& key) { records_lost_.insert({Text(key), host}); });
}

// ---- the scheduler ----

void Checker::OnEpoch(int64_t now_ns, uint64_t epoch) {
  if (epoch <= epoch_)
    Violate(now_ns,
            absl::StrCat("contract 1: a scheduler starts with epoch ", epoch, " after ", epoch_));
  epoch_ = std::max(epoch_, epoch);
  epoch_ns_ = now_ns;
}

void Checker::OnCommit(const Transaction& transaction, int64_t now_ns) {
  if (transaction.commit != commit_ + 1)
    Violate(now_ns, absl::StrCat("contract 23: commit ", transaction.commit, " follows ", commit_));
  commit_ = transaction.commit;
  now_ns_ = now_ns;
  ++counters_["commits"];
  for (const RowChange& row :
       transaction.rows) {  // hosts first: what is decided of jobs rests on them
    if (row.kind == "configuration" && row.bytes.has_value()) {
      pb::ConfigurationRecord configuration;
      MUSTER_CHECK(configuration.ParseFromString(*row.bytes));
      rows_.OnConfiguration(configuration);
    }
    if (row.kind != "host" || !row.bytes.has_value()) continue;
    pb::HostRecord host;
    MUSTER_CHECK(host.ParseFromString(*row.bytes));
    rows_.OnHost(transaction.now_ns, row.id, host);
    hosts_[row.id] = std::move(host);
  }
  placed_.clear();
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
      uid_of_row_[row.id] = job.uid();
      committed_key_[job.idempotency_key()] = job.number();
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
  if (restoring_ && !placed_.empty())
    Violate(now_ns, absl::StrCat("contract 19: placed before what was restored is settled: ",
                                 Text(placed_[0])));
  std::set<std::string> placed;
  for (const pb::AttemptKey& key : placed_) {
    CheckDevices(now_ns, key);
    placed.insert(key.job_uid());
  }
  rows_.Committed(transaction.now_ns, now_ns, restoring_, placed);
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
      take(lost.placement());
      if (lost.placement().devices_size() > 0)
        ++counters_["placed beside a Lost attempt that its host has not answered Gone for"];
    }
    for (const auto& [uid, job] : jobs_) {
      for (const pb::TaskRecord& task : job.tasks()) {
        for (const pb::AttemptRecord& attempt : task.attempts()) {
          if (attempt.end_ns() != 0 || attempt.cluster() != known.attempt->cluster()) continue;
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

void Checker::CheckJob(int64_t now_ns, const pb::JobRecord* before, const pb::JobRecord& after) {
  const auto violate = [&](const std::string& what) {
    Violate(now_ns, absl::StrCat(what, ": job ", after.number()));
  };
  const auto key = committed_key_.find(after.idempotency_key());
  if (key != committed_key_.end() && key->second != after.number())
    violate("contract 18: a second job of one idempotency key");
  if (before != nullptr && before->end_ns() != 0 && before->state() != after.state())
    violate("an ended job changes its state");
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
    if (task.export_state() == "published" &&
        (old == nullptr || old->export_state() != "published")) {
      const bool lies = std::any_of(task.attempts().begin(), task.attempts().end(),
                                    [&](const pb::AttemptRecord& attempt) {
                                      return !attempt.export_staged().empty() &&
                                             published_.contains(Text(KeyOf(after, t, attempt)));
                                    });
      if (!lies) violate("R1 an export is taken as published, and isn't");
    }
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
  }
  if (ends_with_loss) {
    const bool job_ends =
        job.cancel_requested() ||
        std::any_of(job.tasks().begin(), job.tasks().end(),
                    [](const pb::TaskRecord& task) { return task.state() == pb::TASK_FAILED; }) ||
        after.cause() == pb::TIME_LIMIT;
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

void Checker::OnDispatch(int64_t now_ns, const std::string& host,
                         const pb::SchedulerMessage& message) {
  const auto violate = [&](const std::string& what, const pb::AttemptKey& key) {
    Violate(now_ns,
            absl::StrCat("dispatched is not committed: ", what, ": ", Text(key), " on ", host));
  };
  switch (message.body_case()) {
    case pb::SchedulerMessage::kPrepare: {
      const Known known = Find(message.prepare().key(), host);
      for (const std::string& path : message.prepare().resume_from()) {
        if (struck_.contains(path))
          violate(absl::StrCat("R1 may resume from an abandoned branch, ", path),
                  message.prepare().key());
      }
      if (known.part < 0 || known.attempt->end_ns() != 0) {
        violate("Prepare", message.prepare().key());
      } else if (message.prepare().start_at_once() && known.attempt->placements_size() > 1) {
        violate("contract 6: a gang starts at once", message.prepare().key());
      }
      return;
    }
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
      std::erase_if(publishes_sent_alone_, [&](const auto& sent) { return sent.second == host; });
      std::erase_if(renewed_alone_, [&](const auto& renewed) {
        if (renewed.second != host) return false;
        const auto live = live_.find(renewed);
        const Known known = live == live_.end() ? Known() : Find(live->second.prepare.key(), host);
        return known.part < 0 || !known.attempt->parts(known.part).lost();
      });
      return;
    case pb::SchedulerMessage::kStop: {
      const auto row = hosts_.find(host);
      if (row != hosts_.end() && std::any_of(row->second.lost().begin(), row->second.lost().end(),
                                             [&](const pb::LostAttempt& lost) {
                                               return Text(lost.key()) ==
                                                      Text(message.stop().key());
                                             })) {
        if (Lives(Text(message.stop().key()), host) && AnyTaskWaits())
          ++counters_["stops of a Lost attempt that runs, while others wait for devices"];
        return;
      }
      const Known known = Find(message.stop().key(), host);
      if (known.part < 0 ||
          (known.attempt->end_ns() == 0 && known.attempt->state() != pb::TASK_STOPPING &&
           !known.attempt->parts(known.part).lost())) {
        violate("Stop", message.stop().key());
      }
      return;
    }
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
void Checker::OnCommitAlone(const Transaction& transaction) {
  for (const RowChange& row : transaction.rows) {
    if (row.kind != "job" || !row.bytes.has_value()) continue;
    pb::JobRecord job;
    MUSTER_CHECK(job.ParseFromString(*row.bytes));
    if (!jobs_.contains(job.uid()) && uids_alone_.insert(job.uid()).second)
      CheckUid(now_ns_, job.uid());
    ForEachAttempt(job, [&](const pb::AttemptKey& key) {
      if (Find(key, "").attempt == nullptr) abandoned_.insert(Text(key));
    });
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

void Checker::OnRestored(const std::map<std::pair<std::string, std::string>, std::string>& rows,
                         uint64_t commit, bool newest) {
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
      committed_key_[job.idempotency_key()] = job.number();
      jobs_[job.uid()] = std::move(job);
    } else if (name.first == "host") {
      MUSTER_CHECK(hosts_[name.second].ParseFromString(bytes));
    } else if (name.first == "configuration") {
      pb::ConfigurationRecord configuration;
      MUSTER_CHECK(configuration.ParseFromString(bytes));
      rows_.OnConfiguration(configuration);
    }
  }
  for (const std::string& name : before) {
    if (known.count(name) == 0) abandoned_.insert(name);
  }
  of_backup_ = std::move(known);
  ++restores_;
  RestoreHistories();
  rows_.OnRestored();
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
