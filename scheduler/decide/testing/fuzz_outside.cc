#include "scheduler/decide/testing/fuzz_outside.h"

#include <algorithm>
#include <optional>
#include <set>

#include "absl/strings/str_cat.h"
#include "common/base/units.h"
#include "scheduler/decide/testing/fuzz_rows.h"

namespace muster {

std::string CheckLimitsOutside(const State& after, const Plan& plan) {
  const bool acts = std::any_of(plan.events.begin(), plan.events.end(), [](const pb::Event& event) {
    return event.has_attempt_placed() || event.has_reservation();
  });
  if (!acts) return "";
  // Now; and when what is being stopped has gone and what devices are held for has started.
  const UseByFlavour now =
      UseOf(after, [](const AttemptRow& stopping) { return stopping.workers; });
  UseByFlavour later = UseOf(after, [](const AttemptRow&) { return 0; });
  EachTask(after, [&](const JobRow& job, int32_t, const TaskRow& row, const pb::TaskSpec& spec) {
    const Reservation* held = row.reservation.get();
    if (held == nullptr || !held->held || held->attempt != row.next_attempt) return;
    for (const int32_t n : PathOf(after, job.spec->queue()))
      later[{n, FlavourOf(spec, held->flavour)}] += held->workers * WorkerMilli(spec);
  });
  const auto check = [&](const pb::AttemptKey& key, const std::string& on, const UseByFlavour& use,
                         const char* how) -> std::string {
    const JobRow& job = *after.FindJobByUid(key.job_uid());
    const std::string flavour = FlavourOf(job.task_spec(TaskIndex(*job.spec, key.task())), on);
    for (const int32_t n : PathOf(after, job.spec->queue())) {
      const std::optional<int64_t> limit = LimitOf(after, n, flavour);
      const auto used = use.find({n, flavour});
      if (limit.has_value() && used != use.end() && used->second > *limit)
        return absl::StrCat("queue ", after.queues().nodes[n].path, how, used->second,
                            " of at most ", *limit, " ", flavour);
    }
    return "";
  };
  // Who shrinks may have held more than a limit that was lowered since. What is held for it is less
  // than it had, and is cut to its share of S before it starts.
  std::set<std::pair<std::string, std::string>> shrunk;
  for (const pb::Event& event : plan.events) {
    const pb::AttemptStopping& e = event.attempt_stopping();
    if (event.has_attempt_stopping() && e.next_workers() > 0 && e.cause() == pb::PREEMPTION)
      shrunk.emplace(e.key().job_uid(), e.key().task());
  }
  for (const pb::Event& event : plan.events) {
    std::string broken;
    if (event.has_attempt_placed()) {
      const pb::AttemptPlaced& e = event.attempt_placed();
      broken = check(e.key(), e.flavour(), now, " holds ");
      if (broken.empty()) broken = check(e.key(), e.flavour(), later, " will hold ");
    } else if (event.has_reservation() && event.reservation().held()) {
      const pb::ReservationChanged& e = event.reservation();
      if (shrunk.contains({e.key().job_uid(), e.key().task()})) continue;
      broken = check(e.key(), e.flavour(), later, " will hold ");
    }
    if (!broken.empty()) return broken;
  }
  return "";
}

std::string CheckCharges(const State& state, int64_t now_ns, const Charges& charges,
                         int64_t* stopping) {
  const auto gives_back = [&](const AttemptRow& attempt) {
    const int64_t asked_ns = std::max(attempt.stop_ns, state.listens_since_ns());
    return asked_ns + attempt.grace_ns + 2 * kMinute > now_ns;
  };
  const UseByFlavour held = UseOf(state, [](const AttemptRow& row) { return row.workers; });
  const UseByFlavour later =
      UseOf(state, [&](const AttemptRow& row) { return gives_back(row) ? 0 : row.workers; });
  // Of what is on hosts that can't be reached a part counts, and CPUs beside devices count where a
  // queue lists them.
  std::set<int32_t> unclear;
  bool lists_cpus = false;
  for (const auto& node : state.queues().nodes)
    lists_cpus = lists_cpus || node.spec.quota().contains("cpu");
  EachTask(state, [&](const JobRow& job, int32_t, const TaskRow& row, const pb::TaskSpec&) {
    const AttemptRow* current = row.current();
    if (current == nullptr || current->released()) return;
    *stopping += current->state == pb::TASK_STOPPING;
    if (!OnUnreachable(state, *current)) return;
    for (const int32_t n : PathOf(state, job.spec->queue())) unclear.insert(n);
  });
  for (int32_t n = 0; n < static_cast<int32_t>(state.queues().nodes.size()); ++n) {
    if (unclear.contains(n)) continue;
    for (const std::string& flavour : charges.flavours) {
      if (flavour == "cpu" && lists_cpus) continue;
      const auto check = [&](const UseByFlavour& use, int64_t charged,
                             const char* when) -> std::string {
        const auto found = use.find({n, flavour});
        const int64_t is = found == use.end() ? 0 : found->second;
        if (is == charged) return "";
        return absl::StrCat("queue ", state.queues().nodes[n].path, " is charged ", charged, " of ",
                            flavour, when, ", and holds ", is);
      };
      std::string broken = check(held, charges.now(n, flavour), "");
      if (broken.empty())
        broken = check(later, charges.later(n, flavour), " once what stops has gone");
      if (!broken.empty()) return broken;
    }
  }
  return "";
}

}  // namespace muster
