#include "absl/strings/str_cat.h"
#include "scheduler/decide/passes/passes.h"

namespace muster {

void EndLost(const Inputs& in, Draft* draft) {
  for (const int32_t g : in.model.stopping) {
    const Gang& gang = in.gang(g);
    if (!gang.ends || !gang.may_be_lost || !in.AllOver(*gang.current)) continue;
    const bool unneeded = NotNeeded(*gang.job, gang.ref.task) && !gang.job->cancel_requested;
    draft->Lose(gang, unneeded ? "it isn't needed any more" : "the job ends without it");
    if (unneeded) {  // the others go on
      draft->WakeAt(in.now_ns);
      continue;
    }
    if (!draft->End(gang)) continue;
    draft->WakeAt(in.now_ns);  // S is another one without the job, and nothing else need happen
    // What else runs of it ends with it, before anything is done for it; where it was cancelled,
    // that was said already.
    for (size_t t = 0; t < gang.job->tasks.size(); ++t) {
      const auto other = in.model.gang_of.find({gang.job->number, static_cast<int32_t>(t)});
      if (other == in.model.gang_of.end()) continue;
      const Gang& sibling = in.gang(other->second);
      if (!sibling.running() || draft->Stops(other->second)) continue;
      draft->Stop(sibling, {pb::CANCEL, absl::StrCat("task ", gang.spec->name(), " failed"),
                            GraceOf(*sibling.spec)});
    }
  }
}

}  // namespace muster
