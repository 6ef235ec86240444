// What the agent has still to say on its stream. A scheduler reads on more slowly from a host that
// says much (decision 170): what jobs say fast must not make fences run out, nor hold up the ends
// of others. So it is in order but for two things:
//   A heartbeat goes before all that isn't one: it says when it was sent.
//   Progress takes the place of what waits of the same attempt: only the newest counts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "muster/v1/agent.pb.h"

namespace muster::agent {

// Not thread-safe.
class Outbox {
 public:
  // Returns by how many bytes what waits has grown.
  int64_t Put(v1::AgentMessage message) {
    const auto bytes = static_cast<int64_t>(message.ByteSizeLong());
    if (message.has_heartbeat()) {
      const auto other = [](const v1::AgentMessage& waits) { return !waits.has_heartbeat(); };
      messages_.insert(std::find_if(messages_.begin(), messages_.end(), other), std::move(message));
      return bytes;
    }
    if (!message.has_progress()) {
      messages_.push_back(std::move(message));
      return bytes;
    }
    const auto [known, first] = progress_.try_emplace(KindOf(message.progress()), messages_.end());
    if (first) {
      known->second = messages_.insert(messages_.end(), std::move(message));
      return bytes;
    }
    const auto before = static_cast<int64_t>(known->second->ByteSizeLong());
    *known->second = std::move(message);
    return bytes - before;
  }
  // The next one; there has to be one.
  v1::AgentMessage Take() {
    v1::AgentMessage message = std::move(messages_.front());
    messages_.pop_front();
    if (message.has_progress()) progress_.erase(KindOf(message.progress()));
    return message;
  }
  bool empty() const { return messages_.empty(); }
  void Clear() {
    progress_.clear();
    messages_.clear();
  }

 private:
  // Of one attempt; its metrics and the times of its ranks are told apart from each other.
  using Kind = std::tuple<std::string, std::string, int32_t, bool>;
  static Kind KindOf(const v1::ProgressReport& report) {
    return {report.key().job_uid(), report.key().task(), report.key().attempt(),
            report.has_progress()};
  }

  std::list<v1::AgentMessage> messages_;
  std::map<Kind, std::list<v1::AgentMessage>::iterator> progress_;  // that waits
};

}  // namespace muster::agent
