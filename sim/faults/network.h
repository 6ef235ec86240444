// Streams between agents and schedulers: each keeps its order, none is safe. Messages are lost,
// doubled, late or held up; either end may think a stream open that the other has left. Not
// thread-safe.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "scheduler/agents/sessions.h"
#include "sim/faults/machine.h"

namespace muster::sim::faults {

class Network {
 public:
  class AgentEnd {
   public:
    virtual ~AgentEnd() = default;
    virtual void Received(uint64_t stream, const pb::SchedulerMessage& message) = 0;
    virtual void Closed(uint64_t stream) = 0;
  };
  class SchedulerEnd {
   public:
    virtual ~SchedulerEnd() = default;
    virtual void Received(const std::shared_ptr<AgentStream>& stream, int32_t host,
                          const pb::AgentMessage& message) = 0;
    virtual void Closed(const AgentStream* stream) = 0;
    virtual void Sends(int32_t host,
                       const pb::SchedulerMessage& message) = 0;  // before it is on its way
  };

  Network(Shared* shared, int32_t hosts, uint64_t seed);

  // Who takes new streams; nullptr: nobody. Streams of an end that has died are closed by Died.
  void Listen(SchedulerEnd* end) { listener_ = end; }
  // Whom a host's new streams reach instead, until a time, while it is alive.
  void Misdirect(int32_t host, SchedulerEnd* end, int64_t until_ns) {
    links_[host].misdirected_to = end;
    links_[host].misdirected_until_ns = until_ns;
  }
  void Died(SchedulerEnd* end);
  // 0: nobody answers.
  uint64_t Connect(int32_t host, AgentEnd* agent);
  void Send(uint64_t stream, const pb::AgentMessage& message);
  // The agent leaves; what is on its way to it may still come. With `silently` (its machine has no
  // power) neither is true.
  void Leave(uint64_t stream, bool silently);

  // Faults of a host's link, until a time.
  void Cut(int32_t host, bool up, bool down, int64_t until_ns);
  void Lossy(int32_t host, int64_t until_ns) { links_[host].lossy_until_ns = until_ns; }
  void Slow(int32_t host, int64_t until_ns, int64_t by_ns);
  // What is sent to the host next takes so much longer, and what follows on its stream with it.
  void HoldNext(int32_t host, int64_t by_ns) { links_[host].hold_next_ns = by_ns; }
  void Reset(int32_t host);
  void Age(int32_t host, int64_t by_ns);  // of its streams that are open now; those that it opens
                                          // later are as fast as ever
  void KeepFromNew(int32_t host, int64_t until_ns) {
    links_[host].no_new_until_ns = until_ns;
  }  // streams: those that it has go on
  void Heal();

 private:
  struct Link {
    int64_t up_cut_until_ns = 0, down_cut_until_ns = 0, lossy_until_ns = 0, slow_until_ns = 0,
            slow_ns = 0, no_new_until_ns = 0, hold_next_ns = 0;
    SchedulerEnd* misdirected_to = nullptr;
    int64_t misdirected_until_ns = 0;
    Random random{0};
  };
  class Stream;
  struct Wire {
    uint64_t id = 0;
    int32_t host = 0;
    AgentEnd* agent = nullptr;  // nullptr: it has left, or heard of the end
    AgentEnd* late = nullptr;   // it has left, and what was on its way may still come, after what
                                // newer streams bring
    SchedulerEnd* scheduler = nullptr;
    std::shared_ptr<AgentStream> stream;
    int64_t up_ns = 0, down_ns = 0;   // when the newest parcel arrives
    int64_t lag_ns = 0;               // what the scheduler sends on it takes up to so much longer
    int under_way = 0;                // parcels to the agent
    std::deque<pb::AgentMessage> up;  // held up by a cut
    std::deque<pb::SchedulerMessage> down;
    bool up_end = false, down_end = false;  // the close is held up
  };

  Wire* Find(uint64_t id);
  int64_t Delay(Link* link);
  void Up(uint64_t id, const pb::AgentMessage& message);
  void Down(uint64_t id, const pb::SchedulerMessage& message);
  void UpEnd(uint64_t id);
  void DownEnd(uint64_t id);
  void SendDown(uint64_t id, const pb::SchedulerMessage& message);
  void EndDown(uint64_t id);
  void Flush(int32_t host);
  bool UpCut(int32_t host) const { return shared_->heap.now_ns() < links_[host].up_cut_until_ns; }
  bool DownCut(int32_t host) const {
    return shared_->heap.now_ns() < links_[host].down_cut_until_ns;
  }
  void Drop(uint64_t id);  // once both ends have left it and nothing is under way to an agent that
                           // might still read it

  Shared* const shared_;
  SchedulerEnd* listener_ = nullptr;
  std::vector<Link> links_;
  std::map<uint64_t, Wire> wires_;
  uint64_t next_ = 1;
};

}  // namespace muster::sim::faults
