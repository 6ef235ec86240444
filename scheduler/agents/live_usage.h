// What running attempts have used until now, as their hosts told last: in memory alone, as each
// host says it again to a scheduler that is started anew. What they used in all their hosts tell
// with their end, and that is stored.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "google/protobuf/repeated_ptr_field.h"
#include "muster/v1/agent.pb.h"
#include "scheduler/state/state.h"

namespace muster {

// Thread-safe.
class LiveUsage {
 public:
  // A host's newest word of what runs there. Of what doesn't, and what can't be: nothing is kept.
  void Told(const State& state, const std::string& cluster, const std::string& host,
            const google::protobuf::RepeatedPtrField<pb::AttemptUsage>& usages);
  // By the name of the host inside its cluster.
  std::map<std::string, pb::HostUsage> Of(const pb::AttemptKey& key) const;
  // Forgets attempts that have ended, once in a while.
  void Forget(const State& state, int64_t now_ns);
  size_t size() const;

 private:
  struct Entry {
    pb::AttemptKey key;
    std::map<std::string, pb::HostUsage> hosts;
  };
  mutable std::mutex mutex_;
  std::map<std::string, Entry> attempts_;  // by AttemptText
  int64_t next_forget_ns_ = 0;
};

}  // namespace muster
