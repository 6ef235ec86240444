#include <algorithm>
#include <vector>

#include "scheduler/decide/model/next_stop.h"
#include "scheduler/decide/passes/passes.h"

namespace muster {

void StopDue(const Inputs& in, Draft* draft) {
  std::vector<int32_t> due;
  for (const auto& [wake_ns, task] : in.model.wakes) {
    if (wake_ns > in.now_ns) {
      draft->WakeAt(wake_ns);
      break;
    }
    due.push_back(in.model.gang_of.at(task));
  }
  std::sort(due.begin(), due.end());
  for (const int32_t g : due) {
    const Gang& gang = in.gang(g);
    const NextStop stop = NextStopOf(in.state, *gang.job, gang.ref.task, *gang.current, in.now_ns);
    if (stop.at_ns <= in.now_ns) {
      draft->Stop(gang, {stop.cause, stop.detail, stop.grace_ns});
    } else if (stop.at_ns != kUnbounded) {
      draft->WakeAt(stop.at_ns);
    }
  }
}

}  // namespace muster
