#include "scheduler/decide/decider.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "scheduler/decide/decide.h"
#include "scheduler/decide/round.h"

namespace muster {

Plan Decide(const State& state, int64_t now_ns, const SchedulingOptions& options) { return Decider().Decide(state, now_ns, options); }

void Decider::Follow(const State& state, const SchedulingOptions& options) {
  if (!seen_.has_value() || policy_ != options.placement) {
    policy_ = options.placement;
    now_.emplace(state, policy_);
    future_.emplace(state, policy_);
  } else {
    const Touched touched = state.Since(*seen_);
    for (FreeMap* map : {&*now_, &*future_}) {
      if (touched.clusters || touched.host_order) {      // a cluster's drain, too
        map->Rebuild(state);
        continue;
      }
      for (const HostId host : touched.hosts) map->Refresh(state, host);
    }
  }
  seen_ = state;
}

std::string Decider::Difference(const State& state) {
  Follow(state, SchedulingOptions{.placement = policy_});
  const std::string difference = now_->Difference(state);
  return difference.empty() ? future_->Difference(state) : difference;
}

Plan Decider::Decide(const State& state, int64_t now_ns, const SchedulingOptions& options) {
  const Model& model = model_.Update(state, now_ns, options);
  Follow(state, options);
  Plan plan = Round(state, now_ns, options, model, &*now_, &*future_).Run();
  // Opening a cluster is an outside event for the entitled set: what it changes is decided on a copy that knows it.
  const bool opened = std::any_of(plan.events.begin(), plan.events.end(), [](const pb::Event& e) { return e.has_cluster_opened(); });
  if (!opened) return plan;
  std::vector<pb::Event> events;
  State copy = state;
  for (pb::Event& event : plan.events) {
    if (!event.has_cluster_opened()) continue;
    Apply(&copy, event);
    events.push_back(std::move(event));
  }
  Plan second = Decide(copy, now_ns, options);
  events.insert(events.end(), std::make_move_iterator(second.events.begin()), std::make_move_iterator(second.events.end()));
  second.events = std::move(events);
  return second;
}

}  // namespace muster
