#include "agent/reconcile/record.h"

#include "common/base/ids.h"

namespace muster::agent {

AttemptId IdOf(const v1::AttemptKey& key) {
  return AttemptId{key.job_uid(), key.task(), key.attempt()};
}

v1::AttemptKey KeyOf(const AttemptId& id) {
  v1::AttemptKey key;
  key.set_job_uid(id.job_uid);
  key.set_task(id.task);
  key.set_attempt(id.attempt);
  return key;
}

bool IsValid(const AttemptId& id) { return IsId(id.job_uid) && IsLabel(id.task) && id.attempt > 0; }

}  // namespace muster::agent
