// Apply: what speaks against a device or host, and when that takes it out of placement
// (docs/decisions/033-quarantine.md).
//
// An end that was classified as the device's or host's, a fault that the driver told, a rank that
// is slower than its gang: each is a blame. Enough of them within a window are a quarantine;
// placement then sees a device that isn't healthy, or a host that isn't usable, and what runs there
// goes on. Three things keep one broken program from emptying a fleet: what its log says counts
// once a job (an array is one); a task whose ends blame several hosts blames itself; and never is
// more than a part of a cluster taken out.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "common/base/utf8.h"
#include "scheduler/state/applier.h"

namespace muster {
namespace {

constexpr int64_t kSameFaultNs =
    kHour;  // a fault that nothing ran under, and what else is said of the device: one incident
constexpr size_t kMaxBlameBytes = 300;
constexpr int64_t kCheckAgainNs = 10 * kMinute;  // after a check that failed

int Points(const pb::Blame& blame) { return blame.kind() == pb::BLAME_SLOW ? 1 : 2; }

// Members of an array run one program: it speaks for all of them.
uint64_t WholeOf(const State& state, uint64_t job) {
  const JobRow* row = state.FindJob(job);
  return row == nullptr || row->array == 0 ? job : row->array;
}

// Both say the same of the same device: they count once.
bool SameIncident(const State& state, const pb::Blame& known, const pb::Blame& now) {
  const bool device = known.device() == now.device() || known.device() < 0 || now.device() < 0;
  if (!device) return false;
  if (known.job() == 0 || now.job() == 0) return now.at_ns() - known.at_ns() <= kSameFaultNs;
  if (WholeOf(state, known.job()) != WholeOf(state, now.job())) return false;
  const bool attempt =
      known.job() == now.job() && known.task() == now.task() && known.attempt() == now.attempt();
  return attempt || (known.kind() != pb::BLAME_CERTAIN && now.kind() != pb::BLAME_CERTAIN);
}

bool OfTask(const pb::Blame& blame, uint64_t job, const std::string& task) {
  return blame.job() == job && blame.task() == task;
}

}  // namespace

void Applier::Blame(HostId id, pb::Blame blame) {
  blame.set_at_ns(s_.now_ns_);
  blame.mutable_detail()->resize(CutUtf8(blame.detail(), kMaxBlameBytes).size());
  const pb::QuarantineRule rule = QuarantineRuleOf(s_, s_.host(id).cluster);
  if (blame.kind() == pb::BLAME_TOLD) {
    // A program that fails wherever it runs would blame one host after the other.
    const uint64_t whole = WholeOf(s_, blame.job());
    JobRow* job = Job(whole);
    TaskRow& task = job->tasks[TaskIndex(*job->spec, blame.task())];
    const bool recent =
        task.blamed_host != kNoHost && s_.now_ns_ - task.blamed_ns <= rule.window_ns();
    if (!recent) task.blames_itself = false;
    if (recent && !task.blames_itself && task.blamed_host != id) {
      task.blames_itself = true;
      std::erase_if(Host(task.blamed_host)->blames, [&](const pb::Blame& known) {
        return known.kind() == pb::BLAME_TOLD && WholeOf(s_, known.job()) == whole &&
               known.task() == blame.task();
      });
    }
    task.blamed_host = id;
    task.blamed_ns = s_.now_ns_;
    if (task.blames_itself) return;
  }
  HostRow* host = Host(id);
  std::erase_if(host->blames, [&](const pb::Blame& known) {
    return s_.now_ns_ - known.at_ns() > rule.window_ns();
  });
  const auto same =
      std::find_if(host->blames.begin(), host->blames.end(),
                   [&](const pb::Blame& known) { return SameIncident(s_, known, blame); });
  if (same != host->blames.end()) {
    // The stronger word stays, with whatever it leaves open from the other.
    pb::Blame merged = blame.kind() >= same->kind() ? blame : *same;
    const pb::Blame& other = blame.kind() >= same->kind() ? *same : blame;
    if (merged.device() < 0) merged.set_device(other.device());
    if (merged.job() == 0) {
      merged.set_job(other.job());
      merged.set_task(other.task());
      merged.set_attempt(other.attempt());
    }
    merged.set_at_ns(s_.now_ns_);
    host->blames.erase(same);
    blame = std::move(merged);
  }
  host->blames.push_back(std::move(blame));
  if (host->blames.size() > static_cast<size_t>(kBlamesKept))
    host->blames.erase(host->blames.begin());
  Judge(id);
}

// Of what ended by a failure of its host or of a device there. A peer that vanished and a file
// system that is full name no host.
void Applier::BlameEnd(const Found& found) {
  const AttemptRow& attempt = *found.attempt;
  if (attempt.cause != pb::DEVICE_FAILURE && attempt.cause != pb::HOST_FAILURE &&
      attempt.cause != pb::LAUNCH_FAILED)
    return;
  std::optional<Failure> failure = FirstFailure(attempt);
  const auto lags = std::find_if(attempt.parts.begin(), attempt.parts.end(),
                                 [](const PartRow& part) { return part.lags; });
  if (!failure.has_value() && lags != attempt.parts.end())
    failure = Failure{pb::LAUNCH_FAILED, attempt.detail, lags->host};
  if (!failure.has_value() || failure->cause != attempt.cause || failure->host == kNoHost) return;
  const auto part = std::find_if(attempt.parts.begin(), attempt.parts.end(),
                                 [&](const PartRow& p) { return p.host == failure->host; });
  // What a program says of devices counts where it had some.
  const bool held_devices = !part->devices.empty() && !s_.host(failure->host).inventory.declared();
  if (attempt.cause == pb::DEVICE_FAILURE && !held_devices) return;
  pb::Blame blame;
  blame.set_device(-1);
  if (attempt.cause == pb::DEVICE_FAILURE) {
    const std::vector<int32_t> devices =
        DevicesOfRank(found.job->task_spec(found.index), *part, failure->rank);
    if (devices.size() == 1) blame.set_device(devices.front());
  }
  blame.set_kind(pb::BLAME_TOLD);
  blame.set_cause(attempt.cause);
  blame.set_detail(failure->detail);
  blame.set_job(found.job->number);
  blame.set_task(found.job->task_spec(found.index).name());
  blame.set_attempt(attempt.number);
  Blame(failure->host, std::move(blame));
}

// The host's own word, for the attempt that it hits: the first, where several share the device.
void Applier::BlameHolder(HostId id, int32_t device, const std::string& detail) {
  pb::Blame blame;
  blame.set_device(device);
  blame.set_kind(pb::BLAME_CERTAIN);
  blame.set_cause(device < 0 ? pb::HOST_FAILURE : pb::DEVICE_FAILURE);
  blame.set_detail(detail);
  for (const AttemptRef& ref : s_.host(id).attempts) {
    const AttemptRow* attempt = s_.FindAttempt(ref);
    const bool holds =
        std::any_of(attempt->parts.begin(), attempt->parts.end(), [&](const PartRow& part) {
          return part.host == id && !part.over() &&
                 (device < 0 || std::find(part.devices.begin(), part.devices.end(), device) !=
                                    part.devices.end());
        });
    if (!holds) continue;
    blame.set_job(ref.job);
    blame.set_task(s_.FindJob(ref.job)->task_spec(ref.task).name());
    blame.set_attempt(ref.number);
    break;
  }
  Blame(id, std::move(blame));
}

void Applier::Judge(HostId id) {
  const pb::QuarantineRule rule = QuarantineRuleOf(s_, s_.host(id).cluster);
  if (rule.off()) return;
  const auto out = [&](int32_t device) {
    const auto& rows = s_.host(id).quarantines;
    return std::any_of(rows.begin(), rows.end(),
                       [&](const pb::Quarantine& row) { return row.device() == device; });
  };
  const auto gather = [&](int32_t device) {
    std::vector<pb::Blame> evidence;
    for (const pb::Blame& blame : s_.host(id).blames) {
      if (device < 0 ? blame.device() < 0 || !out(blame.device()) : blame.device() == device)
        evidence.push_back(blame);
    }
    return evidence;
  };
  const auto judge = [&](int32_t device, int32_t blames) {
    if (out(device)) return;
    std::vector<pb::Blame> evidence = gather(device);
    int points = 0;
    for (const pb::Blame& blame : evidence) points += Points(blame);
    if (points < 2 * blames) return;
    std::string reason =
        absl::StrCat("blamed ", evidence.size(), " times in ", FormatDuration(rule.window_ns()),
                     ", last: ", evidence.back().detail());
    TakeOut(id, device, std::move(reason), std::move(evidence));
  };
  for (int32_t d = 0; d < s_.host(id).inventory.devices_size(); ++d) judge(d, rule.device_blames());
  judge(-1, rule.host_blames());
}

void Applier::TakeOut(HostId id, int32_t device, std::string reason,
                      std::vector<pb::Blame> evidence) {
  const pb::QuarantineRule rule = QuarantineRuleOf(s_, s_.host(id).cluster);
  HostRow* host = Host(id);
  pb::Quarantine row;
  row.set_device(device);
  if (device >= 0) row.set_uuid(host->inventory.devices(device).uuid());
  row.set_reason(std::move(reason));
  row.set_since_ns(s_.now_ns_);
  row.set_withheld(!MayTakeOut(id, device));
  if (rule.release_after_ns() > 0) row.set_release_ns(s_.now_ns_ + rule.release_after_ns());
  for (const pb::Blame& blame : evidence) *row.add_evidence() = blame;
  std::erase_if(host->blames, [&](const pb::Blame& blame) {
    return std::any_of(evidence.begin(), evidence.end(), [&](const pb::Blame& used) {
      return used.at_ns() == blame.at_ns() && used.device() == blame.device() &&
             OfTask(used, blame.job(), blame.task()) && used.attempt() == blame.attempt();
    });
  });
  if (host->quarantines.empty()) {
    for (int32_t d = 0; d < host->inventory.devices_size(); ++d) {
      if (!host->inventory.devices(d).healthy()) host->unhealthy.push_back(d);
    }
  }
  const auto at =
      std::lower_bound(host->quarantines.begin(), host->quarantines.end(), device,
                       [](const pb::Quarantine& known, int32_t d) { return known.device() < d; });
  host->quarantines.insert(at, std::move(row));
  NewRound();
  ShowQuarantines(host);
  RefreshHost(id);
}

// Of the cluster's devices; a host without any weighs like one.
bool Applier::MayTakeOut(HostId id, int32_t device) const {
  const auto weight = [](const HostRow& host) {
    return std::max(1, host.inventory.devices_size());
  };
  int64_t all = 0, out = 0;
  for (const HostId other : *s_.host_order_) {
    const HostRow& host = s_.host(other);
    if (host.cluster != s_.host(id).cluster) continue;
    all += weight(host);
    const bool whole = host.quarantined() || (other == id && device < 0);
    if (whole) {
      out += weight(host);
      continue;
    }
    for (const pb::Quarantine& row : host.quarantines)
      out += row.device() >= 0 && !row.withheld() ? 1 : 0;
    out += other == id ? 1 : 0;
  }
  return out * 100 <= all * QuarantineRuleOf(s_, s_.host(id).cluster).max_percent();
}

// Placement's view: a device in quarantine isn't healthy, nor is any of a host in quarantine.
void Applier::ShowQuarantines(HostRow* host) {
  for (int32_t d = 0; d < host->inventory.devices_size(); ++d) {
    const bool sick = std::binary_search(host->unhealthy.begin(), host->unhealthy.end(), d);
    const bool out =
        host->quarantined() || std::any_of(host->quarantines.begin(), host->quarantines.end(),
                                           [&](const pb::Quarantine& row) {
                                             return row.device() == d && !row.withheld();
                                           });
    host->inventory.mutable_devices(d)->set_healthy(!sick && !out);
  }
  if (host->quarantines.empty()) host->unhealthy.clear();
}

// A host tells anew what it has: what is in quarantine stays so, unless it was replaced by another
// device.
void Applier::KeepQuarantines(HostId id, const pb::Inventory& told) {
  HostRow* host = Host(id);
  // A device that doesn't answer has no name: it is the one that was there.
  pb::Inventory said = told;
  for (int32_t d = 0; d < said.devices_size() && d < host->inventory.devices_size(); ++d) {
    if (said.devices(d).uuid().empty())
      said.mutable_devices(d)->set_uuid(host->inventory.devices(d).uuid());
  }
  std::vector<std::pair<int32_t, std::string>> fell;  // that were healthy by its own word
  for (int32_t d = 0; d < said.devices_size() && d < host->inventory.devices_size(); ++d) {
    const pb::Device& before = host->inventory.devices(d);
    const bool sick = host->quarantines.empty()
                          ? !before.healthy()
                          : std::binary_search(host->unhealthy.begin(), host->unhealthy.end(), d);
    if (sick || said.devices(d).healthy() || said.devices(d).uuid() != before.uuid()) continue;
    fell.emplace_back(d, said.devices(d).fault().empty() ? "its host calls it unhealthy"
                                                         : said.devices(d).fault());
  }
  host->inventory = said;
  size_t gone = 0;
  if (!host->quarantines.empty()) {
    gone = std::erase_if(host->quarantines, [&](pb::Quarantine& row) {
      if (row.device() < 0) return false;
      if (row.device() < said.devices_size() &&
          (row.uuid().empty() || said.devices(row.device()).uuid() == row.uuid()))
        return false;
      for (int32_t d = 0; d < said.devices_size() && !row.uuid().empty(); ++d) {
        if (said.devices(d).uuid() != row.uuid()) continue;
        row.set_device(d);
        return false;
      }
      return true;
    });
    std::sort(
        host->quarantines.begin(), host->quarantines.end(),
        [](const pb::Quarantine& a, const pb::Quarantine& b) { return a.device() < b.device(); });
    host->unhealthy.clear();
    for (int32_t d = 0; d < said.devices_size(); ++d) {
      if (!said.devices(d).healthy()) host->unhealthy.push_back(d);
    }
    ShowQuarantines(host);
  }
  for (const auto& [device, why] : fell) BlameHolder(id, device, why);
  if (gone > 0) Reconsider(s_.host(id).cluster);
}

// What would have been too much may not be any more; and where quarantine is off there is none.
void Applier::Reconsider(int32_t cluster) {
  const bool off = QuarantineRuleOf(s_, cluster).off();
  for (const HostId id : *s_.host_order_) {
    if (s_.host(id).cluster != cluster || s_.host(id).quarantines.empty()) continue;
    bool changed = off;
    if (off) Host(id)->quarantines.clear();
    for (size_t i = 0; i < s_.host(id).quarantines.size(); ++i) {
      if (!s_.host(id).quarantines[i].withheld() ||
          !MayTakeOut(id, s_.host(id).quarantines[i].device()))
        continue;
      Host(id)->quarantines[i].set_withheld(false);
      changed = true;
    }
    if (!changed) continue;
    ShowQuarantines(Host(id));
    NewRound();
    RefreshHost(id);
  }
}

void Applier::On(const pb::HostFaultSeen& e) {
  const HostId id = s_.FindHost(e.cluster(), e.host());
  if (id == kNoHost) return;
  // Repetitions are not counted again. A clock that was set back by more than they last begins
  // anew.
  const int64_t newest_ns = s_.host(id).fault_ns;
  if (e.fault().at_ns() <= newest_ns && e.fault().at_ns() > newest_ns - kDay) return;
  if (e.fault().device() < -1 || e.fault().device() >= s_.host(id).inventory.devices_size()) return;
  Host(id)->fault_ns = e.fault().at_ns();
  BlameHolder(id, e.fault().device(), e.fault().detail());
}

void Applier::On(const pb::StragglerSeen& e) {
  const AttemptRow* seen = s_.FindAttempt(e.key());
  if (seen == nullptr || seen->ended()) return;
  const Found found = FindNewest(e.key());
  if (!found) return;
  std::vector<pb::Straggler>& rows = found.attempt->stragglers;
  const auto at =
      std::lower_bound(rows.begin(), rows.end(), e.rank(),
                       [](const pb::Straggler& row, int32_t rank) { return row.rank() < rank; });
  const bool known = at != rows.end() && at->rank() == e.rank();
  if (e.permille() == 0) {
    if (known) rows.erase(at);
    return;
  }
  if (known) {
    at->set_permille(e.permille());
    return;
  }
  const pb::TaskSpec& spec = found.job->task_spec(found.index);
  const int32_t worker = e.rank() / std::max(1, spec.processes_per_worker());
  const auto part =
      std::find_if(found.attempt->parts.begin(), found.attempt->parts.end(), [&](const PartRow& p) {
        return e.rank() >= 0 && worker >= p.first_group_rank &&
               worker < p.first_group_rank + p.workers;
      });
  if (part == found.attempt->parts.end()) return;
  const std::vector<int32_t> devices = DevicesOfRank(spec, *part, e.rank());
  pb::Straggler row;
  row.set_rank(e.rank());
  row.set_host(s_.host(part->host).name);
  row.set_device(devices.size() == 1 ? devices.front() : -1);
  row.set_permille(e.permille());
  row.set_since_ns(s_.now_ns_);
  pb::Blame blame;
  blame.set_device(row.device());
  blame.set_kind(pb::BLAME_SLOW);
  blame.set_detail(absl::StrCat("rank ", e.rank(), " takes ", e.permille() / 1000, ".",
                                e.permille() % 1000 / 100, " times as long a step as its gang"));
  blame.set_job(found.job->number);
  blame.set_task(spec.name());
  blame.set_attempt(found.attempt->number);
  const HostId host = part->host;
  rows.insert(at, std::move(row));
  Blame(host, std::move(blame));
}

void Applier::On(const pb::HostCheckFailed& e) {
  const HostId id = s_.FindHost(e.cluster(), e.host());
  if (id == kNoHost) return;
  const auto due = [&](const pb::Quarantine& row) {
    return row.device() == e.device() && row.release_ns() != 0 && row.release_ns() <= s_.now_ns_;
  };
  const auto& rows = s_.host(id).quarantines;
  if (std::none_of(rows.begin(), rows.end(), due)) return;
  for (pb::Quarantine& row : Host(id)->quarantines) {
    if (!due(row)) continue;
    row.set_check_detail(std::string(CutUtf8(e.detail(), kMaxBlameBytes)));
    row.set_release_ns(s_.now_ns_ + kCheckAgainNs);
  }
}

void Applier::On(const pb::QuarantineReleased& e) {
  const HostId id = s_.FindHost(e.cluster(), e.host());
  if (id == kNoHost) return;
  // Time ends only what is due.
  const auto named = [&](const pb::Quarantine& row) {
    const bool due = row.release_ns() != 0 && row.release_ns() <= s_.now_ns_;
    return (e.device() < 0 || row.device() == e.device()) && (e.by() != "time" || due);
  };
  const auto& rows = s_.host(id).quarantines;
  if (std::none_of(rows.begin(), rows.end(), named)) return;
  HostRow* host = Host(id);
  std::erase_if(host->quarantines, named);
  std::erase_if(host->blames, [&](const pb::Blame& blame) {
    return e.device() < 0 || blame.device() == e.device();
  });
  ShowQuarantines(host);
  NewRound();
  RefreshHost(id);
  Reconsider(s_.host(id).cluster);
}

}  // namespace muster
