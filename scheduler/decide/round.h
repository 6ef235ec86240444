// One decision in the making: the free devices, what was planned so far, and the steps that add to it.
//
// Inside of scheduler/decide. Order of the steps: stops that nobody's claim causes, placing and reclaim for waiting units of S,
// growth, spill, verdicts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "scheduler/decide/free_map.h"
#include "scheduler/decide/model.h"
#include "scheduler/state/options.h"
#include "scheduler/state/plan.h"
#include "scheduler/state/state.h"

namespace muster {

class Round {
 public:
  // `model` is the state's, with its entitled set.
  Round(const State& state, int64_t now_ns, const SchedulingOptions& options, const Model& model);
  Plan Run();

 private:
  struct Placed {
    int32_t base = 0;
    int32_t cell = 0;
    int32_t workers = 0;
    PlannedGang gang;
  };
  // Devices' use by queue node and flavour.
  using Use = std::vector<std::vector<int64_t>>;

  // stops.cc
  void StopWhatMust();
  void Stop(const Base& base, pb::Cause cause, const std::string& detail, int64_t grace_ns, int32_t next_workers = 0,
            const pb::AttemptKey* claimant = nullptr);
  void LookAt(int64_t at_ns);
  int64_t Grace(const pb::TaskSpec& spec) const;

  // decide.cc
  void PlaceEntitled();
  void PlaceOne(int32_t b);
  void ExtendPlaced();
  void Grow();
  void Emit(const Placed& placed);
  void Lose(const Base& base, const std::string& outcome);
  bool Reserve(int32_t b, int32_t workers);
  bool WithinLimits(const Base& base, int32_t cell, int32_t workers, const Use& use) const;
  void AddUse(Use* use, const Base& base, int32_t cell, int64_t workers);
  std::string CellName(int32_t cell) const;

  // reclaim.cc
  bool Reclaim(int32_t b);

  // verdicts.cc
  void Spill();
  void GiveVerdicts();
  pb::Verdict VerdictOf(const JobRow& job, int32_t task);
  // When the base could start in the cell by the expected ends of what runs there; 0 = unknown.
  int64_t EarliestStart(const Base& base, int32_t cell);
  void FillHolders(int32_t cell, const JobRow& job, pb::Verdict* verdict) const;

  const State& s_;
  const int64_t now_ns_;
  const SchedulingOptions& options_;
  const Model& m_;
  FreeMap now_;                        // free now, less what is placed or reserved in this round
  FreeMap future_;                     // with what stopping attempts will give back
  Use use_now_, use_future_;
  std::vector<pb::Event> stops_, lost_, opened_;
  std::vector<Placed> placed_;
  std::set<int32_t> stopped_;          // bases that this plan stops
  std::set<int32_t> reserved_;         // bases with devices waiting for them
  std::map<int32_t, std::set<std::string>> failed_;  // by cell: shapes that found no place in this round
  std::map<TaskRef, int64_t> starts_;  // estimated by EarliestStart
  int estimates_left_ = 256;           // EarliestStart answers so often in a round; the rest is unknown
  Plan plan_;
};

}  // namespace muster
