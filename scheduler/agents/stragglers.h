// Which ranks of a gang are persistently slower than the others.
//
// Each host tells, every few seconds, the median of its ranks' newest steps: of their own time,
// before they wait for other ranks (in a synchronous gang all whole steps take as long as the
// slowest one's). A median of twenty steps or more that exceeds the gang's median by the factor is
// a straggler; it is none any more once it is well below that. One slow step moves no median, and
// ranks that don't tell their own time say nothing. Assumed: ranks of a task do equal work; where
// stages differ (a pipeline whose last stage computes the loss), the same rank is slow wherever it
// runs, which says nothing of its host (quarantine counts it half, once a job).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "google/protobuf/repeated_ptr_field.h"
#include "muster/v1/agent.pb.h"
#include "muster/v1/record.pb.h"
#include "scheduler/state/state.h"

namespace muster {

inline constexpr int64_t kStragglerPermille = 1300, kNoStragglerPermille = 1150;
inline constexpr int32_t kStragglerSteps = 20;
inline constexpr size_t kStragglerRanks = 3;  // fewer have no median to speak of

// Not thread-safe.
class Stragglers {
 public:
  // A host's newest word of its ranks of a running attempt; what State is to be told of them.
  std::vector<pb::StragglerSeen> Told(
      const pb::AttemptKey& key, const AttemptRow& attempt,
      const google::protobuf::RepeatedPtrField<pb::RankTime>& times);
  // Forgets attempts that have ended.
  void Forget(const State& state);

 private:
  struct Gang {
    pb::AttemptKey key;
    std::map<int32_t, pb::RankTime> ranks;  // with kStragglerSteps or more
    size_t told = 0;  // words since they were compared: once for as many as there are ranks
  };
  std::map<std::string, Gang> gangs_;  // by AttemptText
};

}  // namespace muster
