// The events that a finished draft stands for.
#include <algorithm>
#include <cstdlib>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/units.h"
#include "scheduler/decide/draft/draft.h"

namespace muster {
namespace {

// What a plan says is kept for a gang.
struct KeptPlace {
  const PlannedPlace* place = nullptr;
  bool held = false;
  int64_t start_ns = 0;
  bool draining = false;
};

template <typename Message>  // AttemptPlaced or ReservationChanged
void AddPlacements(const State& state, const HostSlices& slices, Message* message) {
  int32_t rank = 0;
  for (const HostSlice& part : slices) {
    pb::Placement* placement = message->add_placements();
    placement->set_host(state.host(part.host).name);
    placement->set_first_group_rank(rank);
    placement->set_workers(part.workers);
    placement->mutable_devices()->Assign(part.devices.begin(), part.devices.end());
    placement->mutable_device_milli()->Assign(part.device_milli.begin(), part.device_milli.end());
    rank += part.workers;
  }
}

// State knows it already. An expected start that moves a little is no news.
bool IsKnown(const Inputs& in, const KeptPlace& kept) {
  const Gang& gang = in.gang(kept.place->gang);
  const Reservation* known = gang.row->reservation.get();
  if (known == nullptr) return false;
  const int64_t left_ns = known->start_ns - in.now_ns;
  const bool same_start =
      kept.start_ns == known->start_ns ||
      (kept.start_ns != 0 && left_ns > 0 &&
       std::abs(kept.start_ns - known->start_ns) <= std::max<int64_t>(10 * kSecond, left_ns / 16));
  return same_start && known->held == kept.held && known->draining == kept.draining &&
         known->workers == kept.place->workers && known->attempt == gang.row->next_attempt &&
         known->cluster == in.model.pools[kept.place->pool].cluster &&
         known->parts == kept.place->slices;
}

}  // namespace

void Draft::Finish() {
  BindJobs();
  for (const PlannedPlace& start : starts_) SayStart(start);
  SayReservations();
  // Validate wants them in this order (state/plan.h).
  std::vector<pb::Event> events = std::move(stop_events_);
  for (std::vector<pb::Event>* more : {&lost_events_, &events_, &hosted_events_, &opened_events_}) {
    for (pb::Event& event : *more) events.push_back(std::move(event));
  }
  events_ = std::move(events);
}

void Draft::BindJobs() {
  std::map<const JobRow*, int32_t> bound;  // cluster
  // What can start beside the first one does: claims left its devices alone, and stopped others
  // instead.
  std::erase_if(starts_, [&](const PlannedPlace& start) {
    const JobRow* job = in_.gang(start.gang).job;
    const int32_t cluster = in_.model.pools[start.pool].cluster;
    const bool out_of_reach =
        job->cluster.empty() &&
        !in_.model.Reaches(bound.emplace(job, cluster).first->second, cluster);
    if (out_of_reach) WakeAt(in_.now_ns);
    return out_of_reach;
  });
  // What was opened for such jobs may be out of their reach.
  std::erase_if(opened_events_, [&](const pb::Event& event) {
    return std::any_of(bound.begin(), bound.end(), [&](const auto& one) {
      return one.first->uid == event.cluster_opened().job_uid();
    });
  });
}

void Draft::Lose(const Gang& gang, const std::string& outcome) {
  for (const PartRow& part : gang.current->parts) {
    if (part.over()) continue;
    pb::AttemptLost* lost = lost_events_.emplace_back().mutable_attempt_lost();
    *lost->mutable_key() = KeyOf(*gang.job, gang.ref.task, gang.current->number);
    lost->set_cluster(in_.state.clusters()[gang.current->cluster].name);
    lost->set_host(in_.state.host(part.host).name);
    lost->set_detail(absl::StrCat(in_.state.HostName(part.host), " can't be reached; ", outcome));
  }
}

void Draft::StartOnHolder(int32_t g, const AttemptRow& holder, const HostSlice& slice) {
  const Gang& gang = in_.gang(g);
  if (gang.current != nullptr) Lose(gang, "the task starts again");
  pb::AttemptPlaced* e = hosted_events_.emplace_back().mutable_attempt_placed();
  *e->mutable_key() = KeyOf(*gang.job, gang.ref.task, gang.row->next_attempt);
  e->set_cluster(in_.state.clusters()[holder.cluster].name);
  if (gang.gpus) e->set_flavour(holder.flavour);
  AddPlacements(in_.state, {slice}, e);
  e->set_workers(slice.workers);
  e->set_at_once(true);
  e->set_holder_attempt(holder.number);
  for (const std::string& path : ResumeFrom(in_.state, *gang.row, e->cluster()))
    e->add_resume_from(path);
  serves_[g] = true;
}

void Draft::SayStart(const PlannedPlace& start) {
  const Gang& gang = in_.gang(start.gang);
  if (gang.may_be_lost) {
    Lose(gang, "the task starts elsewhere");
    // What ran on its devices stops in the next decision, which sees that they have gone.
    if (in_.state.hosted().contains(gang.job->number)) WakeAt(in_.now_ns);
  }
  MUSTER_CHECK(WorkersIn(start.slices) == start.workers);
  pb::AttemptPlaced* e = events_.emplace_back().mutable_attempt_placed();
  *e->mutable_key() = KeyOf(*gang.job, gang.ref.task, gang.row->next_attempt);
  e->set_cluster(in_.ClusterOf(start.pool));
  if (gang.gpus) e->set_flavour(in_.model.flavours[in_.model.pools[start.pool].flavour]);
  AddPlacements(in_.state, start.slices, e);
  e->set_workers(start.workers);
  e->set_at_once(start.slices.size() == 1);
  for (const std::string& path : ResumeFrom(in_.state, *gang.row, e->cluster()))
    e->add_resume_from(path);
}

// Says what is kept for whom where that differs from what State knows. Jobs that this plan brings
// to their end lose what was kept for their tasks with it.
void Draft::SayReservations() {
  std::map<int32_t, KeptPlace> kept_for;  // by gang
  for (const PlannedPlace& hold : holds_) kept_for[hold.gang] = {&hold, true, 0, false};
  for (size_t pool = 0; pool < in_.model.pools.size(); ++pool) {
    for (const PlannedReservation& one : reservations_.In(static_cast<int32_t>(pool)))
      kept_for[one.place.gang] = {&one.place, false, one.start_ns, one.draining};
  }
  for (const PlannedPlace& start : starts_) kept_for.erase(start.gang);

  for (const TaskRef& ref : in_.state.reserved_tasks()) {
    const auto found = in_.model.gang_of.find(ref);
    if (found != in_.model.gang_of.end() &&
        (kept_for.contains(found->second) || serves_[found->second]))
      continue;
    const JobRow& job = *in_.state.FindJob(ref.job);
    if (ending_.contains(&job)) continue;
    *events_.emplace_back().mutable_reservation()->mutable_key() =
        KeyOf(job, ref.task, job.tasks[ref.task].next_attempt);
  }
  for (const auto& [g, kept] : kept_for) {
    const Gang& gang = in_.gang(g);
    if (Ends(gang) || IsKnown(in_, kept)) continue;
    pb::ReservationChanged* e = events_.emplace_back().mutable_reservation();
    *e->mutable_key() = KeyOf(*gang.job, gang.ref.task, gang.row->next_attempt);
    e->set_cluster(in_.ClusterOf(kept.place->pool));
    if (gang.gpus) e->set_flavour(in_.model.flavours[in_.model.pools[kept.place->pool].flavour]);
    AddPlacements(in_.state, kept.place->slices, e);
    e->set_workers(kept.place->workers);
    e->set_held(kept.held);
    e->set_start_ns(kept.start_ns == 0 ? 0 : std::max(kept.start_ns, in_.now_ns));
    e->set_draining(kept.draining);
  }
}

}  // namespace muster
