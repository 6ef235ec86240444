// Sessions: what is in quarantine is told in the log; once its time is over its host is checked,
// and then it ends (docs/decisions/065-a-quarantine-ends-with-a-check.md).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "scheduler/agents/sessions.h"

namespace muster {
namespace {

constexpr int64_t kCheckTimeoutNs = kMinute;

int64_t TimeoutNs(const pb::ClusterSpec& cluster) {
  return cluster.host_check_timeout_ns() > 0 ? cluster.host_check_timeout_ns() : kCheckTimeoutNs;
}

pb::Event Released(const std::string& cluster, const std::string& host, int32_t device) {
  pb::Event event;
  event.mutable_quarantine_released()->set_cluster(cluster);
  event.mutable_quarantine_released()->set_host(host);
  event.mutable_quarantine_released()->set_device(device);
  event.mutable_quarantine_released()->set_by("time");
  return event;
}

}  // namespace

// Says each once, and ends those whose time is over.
void Sessions::LookAtQuarantines(const State& state, HostId id) {
  const HostRow& row = state.host(id);
  const pb::ClusterSpec& cluster = state.clusters()[row.cluster].spec;
  std::set<std::string> now;
  bool due = false;
  for (const pb::Quarantine& q : row.quarantines) {
    const std::string key =
        absl::StrCat(q.device(), q.withheld() ? " withheld " : " ", q.since_ns());
    now.insert(key);
    if (!told_quarantines_[id].contains(key)) {
      (q.withheld() ? LogError : LogWarn)(
          q.withheld() ? "too much of the cluster is in quarantine: an operator has to look"
                       : "taken out of placement",
          {{"cluster", cluster.name()},
           {"host", row.name},
           {"device", q.device()},
           {"why", q.reason()}});
    }
    // A wall clock that was set back doesn't make it longer: State's time goes on.
    if (q.release_ns() == 0 || q.release_ns() > std::max(clock_->WallNs(), state.now_ns()))
      continue;
    due = true;
    EndQuarantine(cluster, row, q);
  }
  HostEntry& entry = hosts_[Name(cluster.name(), row.name)];
  if (!due) entry.check = {};
  if (now.empty()) {
    told_quarantines_.erase(id);
  } else {
    told_quarantines_[id] = std::move(now);
  }
}

// Of a quarantine whose time is over. One check of a host at a time; without an answer it is asked
// again.
void Sessions::EndQuarantine(const pb::ClusterSpec& cluster, const HostRow& row,
                             const pb::Quarantine& q) {
  HostEntry& entry = hosts_[Name(cluster.name(), row.name)];
  Session* session = entry.session.get();
  if (session == nullptr || !session->welcomed) return;  // it gets no work before it speaks
  if (!session->checks_host) {
    LogInfo("released from quarantine",
            {{"cluster", cluster.name()}, {"host", row.name}, {"device", q.device()}});
    engine_->Post(Released(cluster.name(), row.name, q.device()));
    return;
  }
  const int64_t now_ns = clock_->BootNs();
  HostEntry::Check& check = entry.check;
  if (check.session == session->id && now_ns < check.again_ns) return;
  check = {next_check_++, q.device(), session->id, now_ns + TimeoutNs(cluster) + options_.lease_ns,
           false};
  pb::SchedulerMessage message;
  pb::CheckHost* ask = message.mutable_check_host();
  ask->set_request(check.request);
  ask->set_device(q.device());
  ask->set_timeout_ns(TimeoutNs(cluster));
  const std::string device = q.device() < 0 ? "all" : absl::StrCat(q.device());
  for (const std::string& word : cluster.host_check())
    ask->add_command(absl::StrReplaceAll(word, {{"{device}", device}}));
  LogInfo("checking a host before its quarantine ends",
          {{"cluster", cluster.name()}, {"host", row.name}, {"device", q.device()}});
  SendOn(session, std::move(message));
}

void Sessions::Checked(const std::shared_ptr<Session>& session, const pb::HostChecked& checked) {
  std::lock_guard lock(mutex_);
  HostEntry& entry = hosts_[Name(session->cluster, session->host)];
  HostEntry::Check& check = entry.check;
  if (entry.session != session || check.session != session->id || check.answered ||
      check.request != checked.request())
    return;
  check.answered = true;
  check.again_ns = clock_->BootNs() + options_.lease_ns;  // the event is applied long before
  (checked.passed() ? LogInfo : LogWarn)(
      checked.passed() ? "released from quarantine" : "a host failed its check",
      {{"cluster", session->cluster},
       {"host", session->host},
       {"device", check.device},
       {"why", checked.detail()}});
  if (checked.passed()) {
    engine_->Post(Released(session->cluster, session->host, check.device));
    return;
  }
  pb::Event event;
  event.mutable_host_check_failed()->set_cluster(session->cluster);
  event.mutable_host_check_failed()->set_host(session->host);
  event.mutable_host_check_failed()->set_device(check.device);
  event.mutable_host_check_failed()->set_detail(checked.detail());
  engine_->Post(std::move(event));
}

}  // namespace muster
