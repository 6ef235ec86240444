#include "scheduler/decide/draft/draft.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "scheduler/decide/testing/drafting.h"
#include "scheduler/decide/testing/fixture.h"

namespace muster {
namespace {

using testing::DecideQuickly;
using testing::Drafting;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::JobBuilder;
using testing::StartAll;
using testing::SystemBuilder;

// The cluster's pools, and the flavours, are CPUs and then GPUs.
constexpr int32_t kGpus = 1;

// Two devices on h00; the first job runs on one of them, the other two jobs wait.
struct OneRunsTwoWait {
  SystemBuilder system;
  uint64_t runs = 0, first = 0, second = 0;
  OneRunsTwoWait() {
    system.Cluster("c").Hosts("c", 1, 2).Queue("q", 2).Queue("other");
    runs = JobBuilder("other").SubmitTo(&system);
    DecideQuickly(&system);
    StartAll(&system, runs);
    system.Step(100);
    first = JobBuilder("q").SubmitTo(&system);
    second = JobBuilder("q").SubmitTo(&system);
  }
};

TEST(Draft, VerbsChangeWhatIsFreeNowAndLater) {
  enum Verb { kNothing, kStart, kHold, kStop, kStopAndHold };
  const struct {
    const char* why;
    Verb verb;
    int64_t now, later;  // devices free
  } kCases[] = {
      {"as State has it", kNothing, 1, 1},
      {"what starts has its devices at once", kStart, 0, 0},
      {"what is held is nobody else's, neither now nor later", kHold, 0, 0},
      {"what stops gives its devices back later", kStop, 1, 2},
      {"and they may be held for another", kStopAndHold, 1, 1},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.why);
    OneRunsTwoWait at;
    Drafting drafting(at.system);
    Draft& draft = drafting.draft;
    const HostSlices free = drafting.PlaceOf(at.first);
    if (c.verb == kStart) draft.Start(drafting.index(at.first), kGpus, 1, free);
    if (c.verb == kHold) draft.Hold(drafting.index(at.first), kGpus, 1, free);
    if (c.verb == kStop || c.verb == kStopAndHold)
      draft.Stop(drafting.gang(at.runs), {pb::PREEMPTION, "", 0});
    if (c.verb == kStopAndHold) {
      const Gang& runs = drafting.gang(at.runs);
      draft.Hold(drafting.index(at.first), kGpus, 1, SlicesOf(*runs.spec, *runs.current, 0, 1));
    }
    EXPECT_EQ(draft.now()->FreeMilli(kGpus, true), c.now * 1000);
    EXPECT_EQ(draft.later()->FreeMilli(kGpus, true), c.later * 1000);
    EXPECT_EQ(draft.Serves(drafting.index(at.first)),
              c.verb == kStart || c.verb == kHold || c.verb == kStopAndHold);
    EXPECT_EQ(draft.Stops(drafting.index(at.runs)), c.verb == kStop || c.verb == kStopAndHold);
  }
}

TEST(Draft, ATryUndoesItselfWithWhatTheMemoLearntInIt) {
  OneRunsTwoWait at;
  Drafting drafting(at.system);
  Draft& draft = drafting.draft;
  const Gang& first = drafting.gang(at.first);
  const Search before{.kind = Search::kNow, .shape = 1}, within{.kind = Search::kNow, .shape = 2};
  draft.Remember(before);
  const int64_t used = draft.later()->use().At(first.leaf, kGpus);
  {
    Try outer(&draft, draft.later());
    outer.Release(drafting.gang(at.runs));
    EXPECT_EQ(draft.later()->FreeMilli(kGpus, true), 2000);
    {
      Try inner(&draft, draft.later());
      inner.Take(first, drafting.PlaceOf(at.first));
      inner.AddUse(first, kGpus, 1);
      EXPECT_EQ(draft.later()->FreeMilli(kGpus, true), 1000);
      draft.Remember(within);
      EXPECT_TRUE(draft.Failed(within));
    }
    EXPECT_EQ(draft.later()->FreeMilli(kGpus, true), 2000);
    EXPECT_FALSE(draft.Failed(within));
  }
  EXPECT_EQ(draft.later()->FreeMilli(kGpus, true), 1000);
  EXPECT_EQ(draft.later()->use().At(first.leaf, kGpus), used);
  EXPECT_TRUE(draft.Failed(before));
}

TEST(DraftDeathTest, NoVerbWhileATryLasts) {
  OneRunsTwoWait at;
  Drafting drafting(at.system);
  Try trial(&drafting.draft, drafting.draft.now());
  EXPECT_DEATH(drafting.draft.Stop(drafting.gang(at.runs), {pb::PREEMPTION, "", 0}), "tries_");
}

TEST(Draft, TheMemoForgetsWhenSomethingIsGivenBack) {
  OneRunsTwoWait at;
  Drafting drafting(at.system);
  const Search search{.kind = Search::kNow, .shape = 1};
  drafting.draft.Remember(search);
  drafting.draft.Start(drafting.index(at.first), kGpus, 1, drafting.PlaceOf(at.first));
  EXPECT_TRUE(drafting.draft.Failed(search)) << "less is free than before";
  drafting.draft.Stop(drafting.gang(at.runs), {pb::PREEMPTION, "", 0});
  EXPECT_FALSE(drafting.draft.Failed(search));
}

TEST(Draft, SaysStopsFirstThenStartsThenWhatIsKept) {
  OneRunsTwoWait at;
  Drafting drafting(at.system);
  const HostSlices free = drafting.PlaceOf(at.first);
  const Gang& runs = drafting.gang(at.runs);
  drafting.draft.Start(drafting.index(at.first), kGpus, 1, free);
  drafting.draft.Stop(runs, {.cause = pb::PREEMPTION, .claimant = &drafting.gang(at.second)});
  drafting.draft.Hold(drafting.index(at.second), kGpus, 1,
                      SlicesOf(*runs.spec, *runs.current, 0, 1));
  EXPECT_THAT(drafting.Events(), ElementsAre("job 1 stops: PREEMPTION for job 3",
                                             "job 2 starts on h00", "job 3 holds h00"));
}

TEST(Draft, StartsTasksOfAJobInOtherClustersWhereTheyReachItsDirectory) {
  const struct {
    const char* why;
    std::string storage_of_b;
    bool both_start;
  } kCases[] = {
      {"b reaches the directory that the first start puts into a's storage", "shared", true},
      {"b doesn't: what was to start there looks for a place anew", "own", false},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.why);
    SystemBuilder system;
    system.Cluster("a", "shared").Cluster("b", c.storage_of_b);
    system.Hosts("a", 1, 1).Hosts("b", 1, 1).Queue("q", 2);
    const uint64_t job = JobBuilder("q").Task("first").Task("second").SubmitTo(&system);
    Drafting drafting(system);
    Draft& draft = drafting.draft;
    for (const int32_t task : {0, 1}) {
      const Gang& gang = drafting.gang(job, task);
      const int32_t pool = drafting.in.model.PoolOf(task, kGpus);
      draft.Start(drafting.in.IndexOf(gang), pool, 1, *draft.now()->Place(gang, pool, 1, {}));
    }
    const std::vector<std::string> events = drafting.Events();
    if (c.both_start) {
      EXPECT_THAT(events, ElementsAre("job 1 starts on h00", "job 1 starts on h01"));
    } else {
      EXPECT_THAT(events, ElementsAre("job 1 starts on h00"));
    }
    EXPECT_EQ(draft.next_wake_ns() == system.now_ns, !c.both_start) << "decides again at once";
  }
}

TEST(Draft, LeavesReservedDevicesAloneUnlessTheyAreLent) {
  const struct {
    const char* why;
    int64_t end_s;  // 0: unknown
    bool draining, stops_others, finds;
  } kCases[] = {
      {"it ends before they are needed", 50, false, false, true},
      {"it ends too late", 500, false, false, false},
      {"nobody knows when it ends", 0, false, false, false},
      {"it ends before, and a draining host takes that, too", 50, true, false, true},
      {"a draining host is closed to what ends too late", 500, true, false, false},
      {"nor may who stops others take what is reserved", 500, true, true, false},
  };
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.why);
    OneRunsTwoWait at;
    Drafting drafting(at.system);
    Draft& draft = drafting.draft;
    const HostSlices free = drafting.PlaceOf(at.first);
    PlannedReservation reservation;
    reservation.place = {drafting.index(at.first), kGpus, 1, free};
    reservation.start_ns = at.system.now_ns + 100 * kSecond;
    reservation.draining = c.draining;
    {
      Try trial(&draft, draft.now());
      trial.Take(drafting.gang(at.first), free);
      reservation.rest.emplace_back(free[0].host, draft.now()->Peek(free[0].host));
    }
    draft.Reserve(reservation);
    const int64_t end_ns = c.end_s == 0 ? 0 : at.system.now_ns + c.end_s * kSecond;
    const auto found =
        draft.FindPlace(draft.now(), drafting.gang(at.second), kGpus, 1, end_ns, c.stops_others);
    EXPECT_EQ(found.has_value(), c.finds);
  }
}

TEST(Draft, GivesTheMapsBackAsTheyWere) {
  OneRunsTwoWait at;
  FreeMap now(at.system.state), later(at.system.state);
  {
    ModelUpkeep upkeep;
    const SchedulingOptions options;
    const Inputs in(at.system.state, at.system.now_ns, options,
                    upkeep.Update(at.system.state, at.system.now_ns, options));
    Draft draft(in, &now, &later);
    draft.Stop(in.gang(in.model.gang_of.at({at.runs, 0})), {pb::PREEMPTION, "", 0});
  }
  EXPECT_EQ(now.Difference(at.system.state), "");
  EXPECT_EQ(later.Difference(at.system.state), "");
}

TEST(Draft, AStartThatIsWithdrawnAndMadeAgainCountsOnce) {
  OneRunsTwoWait at;
  Drafting drafting(at.system);
  Draft& draft = drafting.draft;
  const HostSlices free = drafting.PlaceOf(at.first);
  const HostId host = free[0].host;
  PlannedReservation reservation;
  reservation.place = {drafting.index(at.second), kGpus, 1, free};
  reservation.start_ns = at.system.now_ns + 100 * kSecond;
  reservation.rest.emplace_back(host, draft.later()->Peek(host));
  draft.Reserve(reservation);
  const auto all = [&] {
    const HostFree rest = draft.reservations().In(kGpus)[0].rest[0].second;
    const HostFree now = draft.now()->Peek(host), later = draft.later()->Peek(host);
    std::vector<int64_t> all = {rest.cpus_milli, now.cpus_milli, later.cpus_milli};
    for (const HostFree& each : {rest, now, later})
      all.insert(all.end(), each.device_milli.begin(), each.device_milli.end());
    return all;
  };
  const std::vector<int64_t> before = all();
  draft.Start(drafting.index(at.first), kGpus, 1, free);
  const std::vector<int64_t> started = all();
  EXPECT_NE(started[0], before[0]) << "it ends who knows when: the reservation has less beside it";
  draft.Withdraw(0);
  EXPECT_EQ(all(), before);
  draft.Restart(0, 1, free);
  EXPECT_EQ(all(), started);
}

}  // namespace
}  // namespace muster
