#include "scheduler/agents/fencer.h"

#include <algorithm>

#include "absl/strings/str_replace.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "scheduler/state/mass_loss.h"
#include "scheduler/state/strays.h"

namespace muster {
namespace {

constexpr int kMostAtOnce = 8;
constexpr int64_t kFenceTimeoutNs = kMinute;
constexpr int64_t kFirstRetryNs = 5 * kSecond;
constexpr int64_t kLastRetryNs = 10 * kMinute;

bool MostAreSilentIn(const State& state, int32_t cluster, int64_t lease_ns) {
  return MostAreSilent(state.now_ns(), lease_ns, [&](const auto& look) {
    for (const HostId id : state.hosts()) {
      const HostRow& host = state.host(id);
      if (host.cluster == cluster && host.state != pb::HOST_NEVER_SEEN) look(host);
    }
  });
}

// It can't be reached, and nobody has said that it is off.
bool Fenceable(const HostRow& host) {
  return host.state == pb::HOST_UNREACHABLE && host.confirmed_off_by.empty();
}

// nullptr: it is not fenceable, or there is none of that name.
const HostRow* FindFenceable(const State& state, const std::string& cluster,
                             const std::string& host) {
  const HostId id = state.FindHost(cluster, host);
  return id == kNoHost || !Fenceable(state.host(id)) ? nullptr : &state.host(id);
}

}  // namespace

std::vector<std::string> FenceWords(const pb::ClusterSpec& cluster, const std::string& host) {
  std::vector<std::string> words;
  for (const std::string& word : cluster.fence_command())
    words.push_back(absl::StrReplaceAll(word, {{"{host}", host}, {"{cluster}", cluster.name()}}));
  return words;
}

bool AwaitsFence(const State& state, const HostRow& host) {
  for (const LostRow& lost : host.lost) {
    const JobRow* job = lost.stray() ? state.FindJobByUid(lost.key.job_uid()) : nullptr;
    if (job != nullptr && !job->finished() && HasStrayOf(state, host, *job)) return true;
  }
  return std::any_of(host.attempts.begin(), host.attempts.end(), [&](const AttemptRef& ref) {
    const AttemptRow& attempt = *state.FindAttempt(ref);
    if (UnreachableRule(state.FindJob(ref.job)->task_spec(ref.task), attempt) != pb::WAIT)
      return false;
    return std::any_of(attempt.parts.begin(), attempt.parts.end(),
                       [&](const PartRow& part) { return part.host == host.id && !part.over(); });
  });
}

Fencer::Fencer(Engine* engine, const Sessions* sessions, Clock* clock, int64_t lease_ns, Run run)
    : engine_(engine),
      sessions_(sessions),
      clock_(clock),
      lease_ns_(lease_ns),
      run_(std::move(run)) {}

void Fencer::Look() {
  if (stopped_) return;
  const std::shared_ptr<const View> view = engine_->Snapshot();
  const State& state = view->state;
  int busy = 0;
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = it->second;
    const size_t slash = it->first.find('/');
    const std::string cluster = it->first.substr(0, slash), host = it->first.substr(slash + 1);
    const HostRow* row = FindFenceable(state, cluster, host);
    // What was granted for another time of being unreachable is void.
    const bool granted =
        entry.permission != nullptr && entry.permission->answer == Permission::kYes;
    const bool holds = row != nullptr && !sessions_->Speaks(cluster, host) &&
                       (!granted || (row->state_since_ns == entry.permission->since_ns &&
                                     row->state_id == entry.permission->state_id));
    if (entry.running) {
      if (!holds) entry.cancel = true;
      ++busy;
      ++it;
      continue;
    }
    if (entry.thread.joinable()) {
      entry.thread.join();
      entry.permission = nullptr;
      // After a success, too: until it is committed, it is not run again.
      int64_t retry_ns = kFirstRetryNs;
      for (int i = 1; i < entry.failures && retry_ns < kLastRetryNs; ++i) retry_ns *= 2;
      entry.next_ns = clock_->BootNs() + std::min(retry_ns, kLastRetryNs);
    }
    it = holds ? std::next(it) : entries_.erase(it);
  }
  if (state.restoring()) return;
  std::map<int32_t, bool> most_silent;
  for (const HostId id : state.hosts()) {
    const HostRow& row = state.host(id);
    const pb::ClusterSpec& cluster = state.clusters()[row.cluster].spec;
    if (!Fenceable(row) || cluster.fence_command().empty() || !AwaitsFence(state, row)) continue;
    if (sessions_->Speaks(cluster.name(), row.name))
      continue;  // on its way back, whatever is committed
    const auto [silent, first] = most_silent.try_emplace(row.cluster, false);
    if (first) silent->second = MostAreSilentIn(state, row.cluster, lease_ns_);
    if (silent->second || busy >= kMostAtOnce) continue;
    Entry& entry = entries_[state.HostName(id)];
    if (entry.running || clock_->BootNs() < entry.next_ns) continue;
    if (entry.permission == nullptr) {
      Ask(cluster.name(), row.name, &entry);
    } else if (entry.permission->answer == Permission::kYes) {
      Begin(cluster, row.name, &entry);
      ++busy;
    } else if (entry.permission->answer == Permission::kNo) {
      entry.permission = nullptr;
      entry.next_ns = clock_->BootNs() + kFirstRetryNs;
    }
  }
}

void Fencer::Ask(const std::string& cluster, const std::string& host, Entry* entry) {
  auto permission = std::make_shared<Permission>();
  entry->permission = permission;
  engine_->Call(
      [cluster, host, permission](const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
        const HostRow* row = FindFenceable(state, cluster, host);
        if (row == nullptr || state.restoring() || !AwaitsFence(state, *row))
          return absl::FailedPreconditionError("nobody waits for it any more");
        permission->since_ns = row->state_since_ns;
        permission->state_id = row->state_id;
        return std::vector<pb::Event>();
      },
      [permission](const absl::Status& status) {
        permission->answer = status.ok() ? Permission::kYes : Permission::kNo;
      });
}

void Fencer::Begin(const pb::ClusterSpec& cluster, const std::string& host, Entry* entry) {
  ProgramOptions options;
  options.argv = FenceWords(cluster, host);
  options.time_limit_ns =
      cluster.fence_timeout_ns() > 0 ? cluster.fence_timeout_ns() : kFenceTimeoutNs;
  options.cancel = &entry->cancel;
  options.dies_with_us = true;  // nobody would hold it back from a host that is used again
  entry->cancel = false;
  entry->running = true;
  ++started_;
  LogWarn("running fence_command",
          {{"cluster", cluster.name()}, {"host", host}, {"try", entry->failures + 1}});
  entry->thread = std::thread([this, cluster = cluster.name(), host, options, entry] {
    Fence(cluster, host, options, entry);
    entry->running = false;
  });
}

void Fencer::Fence(const std::string& cluster, const std::string& host,
                   const ProgramOptions& options, Entry* entry) {
  const absl::StatusOr<ProgramEnd> end = run_(options);
  if (entry->cancel) {
    LogWarn("fence_command was given up", {{"cluster", cluster}, {"host", host}});
    return;
  }
  const std::string why = end.ok() ? end->why : std::string(end.status().message());
  if (why.empty()) {
    LogWarn("fence_command says that a host is off", {{"cluster", cluster}, {"host", host}});
  } else {
    LogError("fence_command failed", {{"cluster", cluster}, {"host", host}, {"why", why}});
    ++entry->failures;
  }
  engine_->Call(
      [cluster, host, why, permission = entry->permission](
          const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
        std::vector<pb::Event> events;
        const HostRow* row = FindFenceable(state, cluster, host);
        if (row == nullptr || row->state_since_ns != permission->since_ns ||
            row->state_id != permission->state_id)
          return events;  // it has spoken since
        if (why.empty()) {
          pb::HostConfirmedOff& off = *events.emplace_back().mutable_host_confirmed_off();
          off.set_cluster(cluster);
          off.set_host(host);
          off.set_by("fence_command");
        } else {
          pb::HostFenceFailed& failed = *events.emplace_back().mutable_host_fence_failed();
          failed.set_cluster(cluster);
          failed.set_host(host);
          failed.set_detail(why);
        }
        return events;
      },
      nullptr);
}

void Fencer::Stop() {
  stopped_ = true;
  for (auto& [name, entry] : entries_) entry.cancel = true;
  for (auto& [name, entry] : entries_) {
    if (entry.thread.joinable()) entry.thread.join();
  }
}

}  // namespace muster
