#include "scheduler/decide/decider.h"

#include "scheduler/decide/decide.h"
#include "scheduler/decide/round.h"

namespace muster {

Plan Decide(const State& state, int64_t now_ns, const SchedulingOptions& options) {
  return Decider().Decide(state, now_ns, options);
}

void Decider::Follow(const State& state, const SchedulingOptions& options) {
  if (!seen_.has_value() || policy_ != options.placement) {
    policy_ = options.placement;
    now_.emplace(state, policy_);
    future_.emplace(state, policy_);
  } else {
    const Touched touched = state.Since(*seen_);
    if (touched.clusters || touched.host_order) {  // a cluster's drain, too
      now_->Rebuild(state);
      future_->Rebuild(state);
    } else {
      for (const HostId host : touched.hosts) {
        now_->Refresh(state, host);
        future_->RefreshAs(*now_, state, host);
      }
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
  return Round(state, now_ns, options, model, &*now_, &*future_).Run();
}

}  // namespace muster
