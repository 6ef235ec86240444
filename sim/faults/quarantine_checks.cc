#include "sim/faults/quarantine_checks.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"

namespace muster::sim::faults {
namespace {

static_assert(kReleaseAfterNs == kMinute && kHostCheckTimeoutNs == 20 * kSecond);

constexpr int64_t kCheckAgainNs = 10 * kMinute;  // decision 065
// Of what a scheduler does once a second, while it commits without a gap.
constexpr int64_t kTickSlackNs = 5 * kSecond;

const pb::Quarantine* Find(const pb::HostRecord& host, int32_t device) {
  for (const pb::Quarantine& row : host.quarantines()) {
    if (row.device() == device) return &row;
  }
  return nullptr;
}

bool IsOver(const pb::Quarantine& row, int64_t now_ns) {
  return row.release_ns() != 0 && row.release_ns() <= now_ns;
}

}  // namespace

void QuarantineChecks::OnHostChecked(int64_t true_ns, const std::string& host, int32_t device,
                                     bool passed) {
  ++counters_[passed ? Counter("checks of hosts that passed")
                     : Counter("checks of hosts that failed")];
  if (passed) {
    passed_[{host, device}] = true_ns;
  } else {
    passed_.erase({host, device});
  }
}

void QuarantineChecks::OnEpoch() {
  asked_.clear();
  answers_.clear();
}

void QuarantineChecks::OnAsked(int64_t true_ns, const std::string& host,
                               const pb::SchedulerMessage& message) {
  asked_[host] = {message.check_host().request(), message.session().session(),
                  message.check_host().device(), true_ns, false};
  overdue_.erase(host);
}

// What was asked in the session before, nobody answers; and an answer that a scheduler which stood
// still heard only after this Welcome is of that session, and counts for nothing.
void QuarantineChecks::OnWelcome(const std::string& host) {
  asked_.erase(host);
  std::erase_if(answers_, [&](const auto& entry) { return entry.first.first == host; });
  overdue_.erase(host);
}

// Only the answer to the newest question of the present session counts, once.
void QuarantineChecks::OnAnswer(int64_t true_ns, const std::string& host,
                                const pb::AgentMessage& message) {
  const auto asked = asked_.find(host);
  if (asked == asked_.end() || asked->second.answered ||
      asked->second.request != message.checked().request() ||
      asked->second.session != message.session().session())
    return;
  asked->second.answered = true;
  answers_[{host, asked->second.device}] = {true_ns, message.checked().passed()};
}

void QuarantineChecks::OnHost(int64_t now_ns, int64_t true_ns, const std::string& name,
                              const pb::HostRecord& after) {
  const auto known = hosts_.find(name);
  static const pb::HostRecord kNone;
  const pb::HostRecord& before = known == hosts_.end() ? kNone : known->second;
  for (const pb::Quarantine& row : before.quarantines()) {
    const pb::Quarantine* is = Find(after, row.device());
    if (is != nullptr && is->since_ns() == row.since_ns()) continue;
    CheckLifted(now_ns, name, row);
    began_.erase({name, row.device()});
  }
  for (const pb::Quarantine& row : after.quarantines()) {
    const pb::Quarantine* was = Find(before, row.device());
    if (was != nullptr && was->since_ns() == row.since_ns()) continue;
    began_[{name, row.device()}] = true_ns;
    if (row.withheld()) continue;
    ++counters_[row.device() < 0 ? Counter("hosts taken out by quarantine")
                                 : Counter("devices taken out by quarantine")];
  }
}

// Nobody here releases one by hand.
void QuarantineChecks::CheckLifted(int64_t now_ns, const std::string& name,
                                   const pb::Quarantine& row) {
  if (!row.withheld()) ++counters_["quarantines lifted"];
  const std::string where = absl::StrCat(name, " device ", row.device());
  if (!IsOver(row, now_ns)) violate_("a quarantine is lifted before its time: " + where);
  if (!checks_[name]) return;
  const int64_t began_ns = began_[{name, row.device()}];
  const auto passed = [&](int32_t device) {
    const auto found = passed_.find({name, device});
    return found != passed_.end() && found->second >= began_ns;
  };
  if (!passed(row.device()) && !passed(-1))
    violate_("a quarantine is lifted whose host has passed no check: " + where);
}

void QuarantineChecks::Committed(int64_t now_ns, int64_t true_ns) {
  // Nothing is done while the scheduler stands still.
  const bool gap = true_ns - committed_ns_ > kTickSlackNs / 2;
  committed_ns_ = true_ns;
  if (gap) {
    overdue_.clear();
    for (auto& [device, answer] : answers_) answer.true_ns = true_ns;
  }
  CheckAnswers(now_ns, true_ns);
  for (const auto& [name, host] : hosts_) CheckOver(now_ns, true_ns, name, host);
}

// It is lifted, or lasts on.
void QuarantineChecks::CheckAnswers(int64_t now_ns, int64_t true_ns) {
  std::erase_if(answers_, [&](const auto& entry) {
    const auto& [where, answer] = entry;
    const auto host = hosts_.find(where.first);
    const pb::Quarantine* row = host == hosts_.end() ? nullptr : Find(host->second, where.second);
    if (row == nullptr || !IsOver(*row, now_ns)) return true;
    if (true_ns - answer.true_ns <= kTickSlackNs) return false;
    violate_(absl::StrCat("a check has ", answer.passed ? "passed" : "failed",
                          ", and the quarantine doesn't ", answer.passed ? "end" : "last on", ": ",
                          where.first, " device ", where.second));
    return true;
  });
}

// Whoever looks once a second lifts it, or asks for a check, while its host has a session; one
// without is silent within a lease. What isn't answered in time is asked again a lease later.
void QuarantineChecks::CheckOver(int64_t now_ns, int64_t true_ns, const std::string& name,
                                 const pb::HostRecord& host) {
  const bool over = std::any_of(host.quarantines().begin(), host.quarantines().end(),
                                [&](const pb::Quarantine& row) { return IsOver(row, now_ns); });
  if (!over || clock_was_set_ || host.state() != pb::HOST_UP) {
    overdue_.erase(name);
    return;
  }
  const bool asked = asked_.contains(name);
  const int64_t within_ns =
      lease_ns_ + kTickSlackNs + (asked ? kHostCheckTimeoutNs + lease_ns_ : 0);
  if (true_ns - overdue_.emplace(name, true_ns).first->second <= within_ns) return;
  violate_(absl::StrCat("a quarantine is over, and is neither lifted nor asked about: ", name));
}

void QuarantineChecks::OnRestored() {
  overdue_.clear();
  asked_.clear();
  answers_.clear();
  began_.clear();
  for (const auto& [name, host] : hosts_) {
    for (const pb::Quarantine& row : host.quarantines())
      began_[{name, row.device()}] = committed_ns_;
  }
}

bool QuarantineChecks::Any() const {
  return std::any_of(hosts_.begin(), hosts_.end(),
                     [](const auto& entry) { return entry.second.quarantines_size() > 0; });
}

void QuarantineChecks::CheckEnd(int64_t true_ns, int64_t calm_ns) const {
  // A check may have failed right before; and while a wall clock that was set back catches up, the
  // engine's time goes on half as fast (Engine::NowNs).
  const int64_t within_ns = (clock_was_set_ ? 2 : 1) * (kReleaseAfterNs + kCheckAgainNs) +
                            kHostCheckTimeoutNs + 4 * lease_ns_ + 2 * kTickSlackNs;
  for (const auto& [where, began_ns] : began_) {
    if (true_ns - std::max(began_ns, calm_ns) <= within_ns) continue;
    violate_(absl::StrCat("a quarantine lasts for ever: ", where.first, " device ", where.second));
  }
}

}  // namespace muster::sim::faults
