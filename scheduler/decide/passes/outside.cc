#include "scheduler/decide/passes/outside.h"

#include <algorithm>

#include "common/base/units.h"
#include "scheduler/decide/model/precedence.h"

namespace muster {
namespace {

// Who waits for so long is passed over no more by what has run less.
constexpr int64_t kPassedOverNs = 14 * kDay;

}  // namespace

InLine PlaceInLine(const Inputs& in, const Gang& gang) {
  const bool long_enough = gang.waiting_since_ns <= in.now_ns - kPassedOverNs;
  return {gang.leaf,      -gang.priority,  gang.band, long_enough ? 0 : gang.ran_ns,
          gang.submit_ns, in.IndexOf(gang)};
}

WaitingClaims::WaitingClaims(const Inputs& in, const Draft& draft)
    : in_(in), draft_(draft), use_(draft.use_now()) {
  const auto counted = [](const Gang& gang, int32_t pool) {  // there already
    return gang.current != nullptr && !gang.may_be_lost && gang.bound_pool == pool
               ? gang.current->workers
               : 0;
  };
  for (const int32_t g : draft.unserved()) {
    const Gang& gang = in.gang(g);
    use_.Add(gang, gang.charge, std::max(0, gang.min_workers - counted(gang, gang.charge)));
  }
  for (const PlannedPlace& hold : draft.holds()) {
    const Gang& gang = in.gang(hold.gang);
    use_.Add(gang, hold.pool, hold.workers - counted(gang, hold.pool));
  }
}

bool WaitingClaims::HinderedBy(const Gang& gang, int32_t pool, int64_t end_ns) const {
  return HinderedBy(gang, in_.model.pools[pool].flavour, gang.worker_milli * gang.min_workers,
                    end_ns) ||
         (gang.worker_cpus_milli > 0 &&
          HinderedBy(gang, in_.model.cpu, gang.worker_cpus_milli * gang.min_workers, end_ns));
}

bool WaitingClaims::HinderedBy(const Gang& gang, int32_t flavour, int64_t takes_milli,
                               int64_t end_ns) const {
  const Model& model = in_.model;
  for (int32_t n = gang.leaf; n >= 0; n = model.parent[n]) {
    if (use_.At(n, flavour) + takes_milli <= model.QuotaOf(n, flavour).limit_milli) continue;
    for (const int32_t g : draft_.unserved()) {
      const Gang& claimant = in_.gang(g);
      const bool wants_it = model.pools[claimant.charge].flavour == flavour ||
                            (flavour == model.cpu && claimant.worker_cpus_milli > 0);
      if (!wants_it) continue;
      int32_t up = claimant.leaf;
      while (up > n) up = model.parent[up];
      if (up == n && !MakesWay(gang, end_ns, claimant)) return true;
    }
  }
  return false;
}

// The gang has gone before the claimant's reservation begins, or the claimant may stop it.
bool WaitingClaims::MakesWay(const Gang& gang, int64_t end_ns, const Gang& claimant) const {
  const PlannedReservation* reservation =
      draft_.reservations().Of(in_.IndexOf(claimant), claimant.charge);
  if (reservation != nullptr && reservation->start_ns != 0 && end_ns != 0 &&
      end_ns <= reservation->start_ns)
    return true;
  return MayTake(in_, claimant, gang) &&
         LevelAllows(in_, claimant, claimant.charge, claimant.worker_milli * claimant.min_workers,
                     gang, draft_.use_now(), gang.worker_milli * gang.min_workers);
}

bool SiblingsReach(const Inputs& in, const Gang& gang, int32_t pool) {
  if (!gang.job->cluster.empty() || gang.job->tasks.size() == 1) return true;
  const ClusterRow& cluster = in.state.clusters()[in.model.pools[pool].cluster];
  for (size_t t = 0; t < gang.job->tasks.size(); ++t) {
    const auto found = in.model.gang_of.find({gang.ref.job, static_cast<int32_t>(t)});
    if (found == in.model.gang_of.end() || !in.gang(found->second).entitled) continue;
    const int32_t theirs = in.gang(found->second).charge;
    if (in.model.pools[theirs].cluster != in.model.pools[pool].cluster &&
        !Reaches(in.state.cluster_file(), cluster.spec.job_storage(), in.ClusterOf(theirs)))
      return false;
  }
  return true;
}

}  // namespace muster
