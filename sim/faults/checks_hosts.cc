// What really happens on hosts.
#include "sim/faults/checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "sim/faults/records.h"

namespace muster::sim::faults {
namespace {

constexpr int64_t kDrift = 500;  // more than any host's clock drifts: one part of so many

}  // namespace

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
  if (abandoned_.count(name) > 0) {
    ++counters_["started after a restore that doesn't know it"];
  } else {
    CheckStartIsCommitted(now_ns, host, key);
  }
  const Known known = Find(key, host);
  if (known.job != nullptr && known.job->owner() != prepare.owner())
    violate(absl::StrCat("processes of ", known.job->owner(), "'s job start as ", prepare.owner()));
  if (!TakesJobsOf(host.substr(0, host.find('/')), prepare.owner()))
    violate(absl::StrCat("processes of ", prepare.owner(), "'s start in another one's cluster"));
  const int32_t step = prepare.task().workers().multiple_of();
  if (step > 1 && prepare.gang_workers() % step != 0)
    violate(absl::StrCat("a gang of ", prepare.gang_workers(), " workers, no multiple of ", step,
                         ", starts"));
  CheckStartsAlone(now_ns, host, prepare.key());
  CheckDevicesAreFree(now_ns, host, prepare);
  live_[{name, host}] = {prepare, host};
}

void Checker::CheckStartIsCommitted(int64_t now_ns, const std::string& host,
                                    const pb::AttemptKey& key) {
  const std::string name = Text(key);
  const auto violate = [&](const std::string& what) {
    Violate(now_ns, absl::StrCat(what, ": ", name, " on ", host));
  };
  const Known known = Find(key, host);
  if (known.attempt == nullptr || known.part < 0)
    return violate("S4 processes of an attempt that the store doesn't hold are started");
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

// S1: against everything that runs.
void Checker::CheckStartsAlone(int64_t now_ns, const std::string& host, const pb::AttemptKey& key) {
  const std::string name = Text(key);
  const auto violate = [&](const std::string& what) {
    Violate(now_ns, absl::StrCat(what, ": ", name, " on ", host));
  };
  const bool abandoned = abandoned_.count(name) > 0;
  for (const auto& [where, live] : live_) {
    const pb::AttemptKey& other = live.prepare.key();
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
}

// S3: against everything that runs on the host. What runs on a holder's devices has a part of what
// that one has, as long as that one is there; others' it is no longer then.
void Checker::CheckDevicesAreFree(int64_t now_ns, const std::string& host,
                                  const pb::Prepare& prepare) {
  const std::string name = Text(prepare.key());
  std::map<std::string, std::map<int32_t, int64_t>> has, used;  // by attempt; used: "" of the host
  const auto take = [&](const pb::Prepare& taker) {
    const std::string holder = Text(HolderKeyOf(taker.key()));
    const bool on_holder = live_.contains({holder, host}) || holder == name;
    const int64_t wants = taker.task().resources().gpus_milli();
    const int64_t milli = wants % 1000 == 0 ? 1000 : wants;
    for (const int32_t device : taker.here().devices()) {
      has[Text(taker.key())][device] = milli;
      used[on_holder ? holder : ""][device] += milli;
    }
  };
  take(prepare);
  for (const auto& [where, live] : live_) {
    if (live.host == host) take(live.prepare);
  }
  for (const auto& [holder, devices] : used) {
    for (const auto& [device, milli] : devices) {
      if (milli <= (holder.empty() ? 1000 : has[holder][device])) continue;
      const std::string of = holder.empty() ? "" : absl::StrCat(" of what ", holder, " has");
      Violate(now_ns,
              absl::StrCat("S3 device ", device, of, " is held twice: ", name, " on ", host));
    }
  }
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

void Checker::OnHello(int64_t now_ns, const std::string& host, const pb::Hello& hello) {
  quarantines_.OnHello(host, hello.checks_host());
  const uint64_t epoch = hello.epoch_seen(), commit = hello.commit_seen();
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

}  // namespace muster::sim::faults
