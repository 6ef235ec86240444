#include "scheduler/agents/fencer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "scheduler/state/mass_loss.h"

namespace muster {
namespace {

constexpr int kMostAtOnce = 8;
constexpr int64_t kDefaultTimeoutNs = kMinute;
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

bool MayBeFenced(const State& state, const std::string& cluster, const std::string& host) {
  const HostId id = state.FindHost(cluster, host);
  return id != kNoHost && state.host(id).state == pb::HOST_UNREACHABLE && state.host(id).confirmed_off_by.empty();
}

}  // namespace

std::vector<std::string> FenceWords(const pb::ClusterSpec& cluster, const std::string& host) {
  std::vector<std::string> words;
  for (const std::string& word : cluster.fence_command()) words.push_back(absl::StrReplaceAll(word, {{"{host}", host}, {"{cluster}", cluster.name()}}));
  return words;
}

bool AwaitsFence(const State& state, const HostRow& host) {
  return std::any_of(host.attempts.begin(), host.attempts.end(), [&](const AttemptRef& ref) {
    return UnreachableRule(state.FindJob(ref.job)->task_spec(ref.task), *state.FindAttempt(ref)) == pb::WAIT;
  });
}

Fencer::Fencer(Engine* engine, const Sessions* sessions, Clock* clock, int64_t lease_ns, Run run)
    : engine_(engine), sessions_(sessions), clock_(clock), lease_ns_(lease_ns), run_(std::move(run)) {}

void Fencer::Look() {
  if (stopping_) return;
  const std::shared_ptr<const View> view = engine_->Snapshot();
  const State& state = view->state;
  int running = 0;
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = it->second;
    if (!entry.done) {
      ++running;
      ++it;
      continue;
    }
    if (entry.thread.joinable()) {
      entry.thread.join();
      // After a success, too: until it is committed, it is not run again.
      int64_t retry_ns = kFirstRetryNs;
      for (int i = 1; i < entry.failures && retry_ns < kLastRetryNs; ++i) retry_ns *= 2;
      entry.next_ns = clock_->BootNs() + std::min(retry_ns, kLastRetryNs);
    }
    const size_t slash = it->first.find('/');
    it = MayBeFenced(state, it->first.substr(0, slash), it->first.substr(slash + 1)) ? std::next(it) : entries_.erase(it);
  }
  if (state.restoring()) return;
  std::map<int32_t, bool> most_silent;
  for (const HostId id : state.hosts()) {
    const HostRow& row = state.host(id);
    const pb::ClusterSpec& cluster = state.clusters()[row.cluster].spec;
    if (row.state != pb::HOST_UNREACHABLE || !row.confirmed_off_by.empty() || cluster.fence_command().empty() || !AwaitsFence(state, row)) continue;
    if (sessions_->Speaks(cluster.name(), row.name)) continue;     // on its way back, whatever is committed
    const auto [silent, first] = most_silent.try_emplace(row.cluster, false);
    if (first) silent->second = MostAreSilentIn(state, row.cluster, lease_ns_);
    if (silent->second || running >= kMostAtOnce) continue;
    Entry& entry = entries_[state.HostName(id)];
    if (!entry.done || clock_->BootNs() < entry.next_ns) continue;
    ProgramOptions options;
    options.argv = FenceWords(cluster, row.name);
    options.time_limit_ns = cluster.fence_timeout_ns() > 0 ? cluster.fence_timeout_ns() : kDefaultTimeoutNs;
    options.cancel = &stopping_;
    entry.done = false;
    ++running;
    LogWarn("running fence_command", {{"cluster", cluster.name()}, {"host", row.name}, {"try", entry.failures + 1}});
    entry.thread = std::thread([this, cluster = cluster.name(), host = row.name, options, &entry] {
      Fence(cluster, host, options, &entry);
      entry.done = true;
    });
  }
}

void Fencer::Fence(const std::string& cluster, const std::string& host, const ProgramOptions& options, Entry* entry) {
  const absl::StatusOr<ProgramEnd> end = run_(options);
  if (stopping_) return;
  const std::string why = end.ok() ? end->why : std::string(end.status().message());
  if (why.empty()) {
    LogWarn("fence_command says that a host is off", {{"cluster", cluster}, {"host", host}});
    engine_->Call(
        [cluster, host](const State& state) -> absl::StatusOr<std::vector<pb::Event>> {
          std::vector<pb::Event> events;
          if (!MayBeFenced(state, cluster, host)) return events;   // it has spoken meanwhile
          pb::HostConfirmedOff& off = *events.emplace_back().mutable_host_confirmed_off();
          off.set_cluster(cluster);
          off.set_host(host);
          off.set_by("fence_command");
          return events;
        },
        nullptr);
  } else {
    LogError("fence_command failed", {{"cluster", cluster}, {"host", host}, {"why", why}});
    pb::Event event;
    event.mutable_host_fence_failed()->set_cluster(cluster);
    event.mutable_host_fence_failed()->set_host(host);
    event.mutable_host_fence_failed()->set_detail(why);
    engine_->Post(std::move(event));
    ++entry->failures;
  }
}

void Fencer::Stop() {
  stopping_ = true;
  for (auto& [name, entry] : entries_) {
    if (entry.thread.joinable()) entry.thread.join();
  }
}

}  // namespace muster
