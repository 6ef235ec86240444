#include "scheduler/decide/decider.h"

#include <algorithm>

#include "scheduler/decide/decide.h"
#include "scheduler/decide/model/inputs.h"
#include "scheduler/decide/model/precedence.h"

namespace muster {

void Decider::Follow(const State& state, const SchedulingOptions& options) {
  const Touched touched = seen_.has_value() ? state.Since(*seen_) : Touched{};
  if (seen_.has_value()) {
    for (const uint64_t job : touched.jobs) mix_.Refresh(state, job);
  } else {
    mix_.Rebuild(state);
  }
  if (!seen_.has_value() || policy_ != options.placement) {
    policy_ = options.placement;
    now_.emplace(state, policy_, &mix_);
    later_.emplace(state, policy_, &mix_);
  } else if (touched.clusters || touched.host_order) {  // a cluster's drain, too
    now_->Rebuild(state);
    later_->Rebuild(state);
  } else {
    for (const HostId host : touched.hosts) {
      now_->Refresh(state, host);
      later_->RefreshAs(*now_, state, host);
    }
  }
  seen_ = state;
}

std::string Decider::Difference(const State& state) {
  Follow(state, SchedulingOptions{.placement = policy_});
  const std::string difference = now_->Difference(state);
  return difference.empty() ? later_->Difference(state) : difference;
}

std::optional<Standing> Decider::StandingOf(const State& state, int64_t now_ns,
                                            const SchedulingOptions& options, const TaskRef& task) {
  const Model& model = model_.Update(state, now_ns, options);
  const auto found = model.gang_of.find(task);
  if (found == model.gang_of.end()) return std::nullopt;
  const Inputs in(state, now_ns, options, model);
  const Gang& gang = in.gang(found->second);
  if (gang.hosted) return std::nullopt;  // it stops with its holder alone
  const bool worked = HasIntervalsWork(gang, gang.start_ns != 0 ? now_ns - gang.start_ns : 0);
  // Of a claim that has waited for the fleet's own min_runtime it is left alone no longer.
  return Standing{gang.entitled && gang.guaranteed,
                  worked ? std::min(MinRuntimeNs(in, gang.leaf), options.min_runtime_ns) : 0};
}

Plan Decider::Decide(const State& state, int64_t now_ns, const SchedulingOptions& options) {
  const Model& model = model_.Update(state, now_ns, options);
  Follow(state, options);
  return RunPasses(Inputs(state, now_ns, options, model), &*now_, &*later_);
}

}  // namespace muster
