#include "sim/faults/network.h"

#include <algorithm>

namespace muster::sim::faults {

class Network::Stream final : public AgentStream {
 public:
  Stream(Network* network, uint64_t id) : network_(network), id_(id) {}
  void Send(const pb::SchedulerMessage& message) override { network_->SendDown(id_, message); }
  void End(const absl::Status&) override { network_->EndDown(id_); }

 private:
  Network* const network_;
  const uint64_t id_;
};

Network::Network(Shared* shared, int32_t hosts, uint64_t seed)
    : shared_(shared), links_(static_cast<size_t>(hosts)) {
  Random seeds(seed);
  for (Link& link : links_) link.random = Random(seeds.Next());
}

Network::Wire* Network::Find(uint64_t id) {
  const auto found = wires_.find(id);
  return found == wires_.end() ? nullptr : &found->second;
}

void Network::Drop(uint64_t id) {
  const Wire* wire = Find(id);
  if (wire == nullptr || wire->agent != nullptr || wire->scheduler != nullptr) return;
  if (wire->late == nullptr || (wire->under_way == 0 && wire->down.empty())) wires_.erase(id);
}

int64_t Network::Delay(Link* link) {
  const int64_t most_ns =
      shared_->heap.now_ns() < link->slow_until_ns ? link->slow_ns : shared_->config.latency_ns;
  return link->random.Between(most_ns / 20, most_ns);
}

uint64_t Network::Connect(int32_t host, AgentEnd* agent) {
  const Link& link = links_[host];
  const int64_t now_ns = shared_->heap.now_ns();
  SchedulerEnd* const end = link.misdirected_to != nullptr && now_ns < link.misdirected_until_ns
                                ? link.misdirected_to
                                : listener_;
  if (end == nullptr || UpCut(host) || DownCut(host) || now_ns < link.no_new_until_ns) return 0;
  const uint64_t id = next_++;
  Wire& wire = wires_[id];
  wire.id = id;
  wire.host = host;
  wire.agent = agent;
  wire.scheduler = end;
  wire.stream = std::make_shared<Stream>(this, id);
  return id;
}

void Network::Send(uint64_t id, const pb::AgentMessage& message) {
  Wire* wire = Find(id);
  if (wire == nullptr || wire->agent == nullptr) return;
  Link& link = links_[wire->host];
  int times = 1;
  if (shared_->heap.now_ns() < link.lossy_until_ns && !message.has_hello()) {
    if (link.random.OneIn(8) && !message.has_progress())
      times = 0;  // which nobody repeats: true streams lose nothing but their end
    if (link.random.OneIn(8)) ++times;
    if (times != 1)
      ++shared_->counters[times == 0 ? Counter("messages lost") : Counter("messages doubled")];
  }
  for (int i = 0; i < times; ++i) {
    wire->up_ns = std::max(wire->up_ns, shared_->heap.now_ns() + Delay(&link));
    shared_->heap.At(wire->up_ns, [this, id, message] { Up(id, message); });
  }
}

void Network::Up(uint64_t id, const pb::AgentMessage& message) {
  Wire* wire = Find(id);
  if (wire == nullptr || wire->scheduler == nullptr) return;
  if (UpCut(wire->host) || !wire->up.empty()) {
    wire->up.push_back(message);
    ++shared_->counters["messages held up"];
    return;
  }
  wire->scheduler->Received(wire->stream, wire->host, message);
}

void Network::Leave(uint64_t id, bool silently) {
  Wire* wire = Find(id);
  if (wire == nullptr || wire->agent == nullptr) return;
  if (!silently) wire->late = wire->agent;
  wire->agent = nullptr;
  if (silently) return Drop(id);
  wire->up_ns = std::max(wire->up_ns, shared_->heap.now_ns() + Delay(&links_[wire->host]));
  shared_->heap.At(wire->up_ns, [this, id] { UpEnd(id); });
}

void Network::UpEnd(uint64_t id) {
  Wire* wire = Find(id);
  if (wire == nullptr || wire->scheduler == nullptr) return;
  if (UpCut(wire->host) || !wire->up.empty()) {
    wire->up_end = true;
    return;
  }
  SchedulerEnd* const scheduler = wire->scheduler;
  const std::shared_ptr<AgentStream> stream = wire->stream;
  wire->scheduler = nullptr;
  Drop(id);
  scheduler->Closed(stream.get());
}

void Network::SendDown(uint64_t id, const pb::SchedulerMessage& message) {
  Wire* wire = Find(id);
  if (wire == nullptr || wire->scheduler == nullptr) return;
  wire->scheduler->Sends(wire->host, message);
  if (wire->agent == nullptr && wire->late == nullptr) return;
  Link& link = links_[wire->host];
  int times = 1;
  // A Query is asked once a session, and a stream doesn't lose single messages: it may only be
  // late.
  const bool once = message.has_welcome() || message.has_refused() || message.has_query();
  if (shared_->heap.now_ns() < link.lossy_until_ns && !once) {
    if (link.random.OneIn(8)) times = 0;
    if (link.random.OneIn(8)) ++times;
    if (times != 1)
      ++shared_->counters[times == 0 ? Counter("messages lost") : Counter("messages doubled")];
  }
  for (int i = 0; i < times; ++i) {
    const int64_t lag_ns = wire->lag_ns > 0 ? link.random.Between(0, wire->lag_ns) : 0;
    wire->down_ns = std::max(wire->down_ns, shared_->heap.now_ns() + Delay(&link) + lag_ns +
                                                std::exchange(link.hold_next_ns, 0));
    ++wire->under_way;
    shared_->heap.At(wire->down_ns, [this, id, message] {
      if (Wire* const arrived = Find(id); arrived != nullptr) --arrived->under_way;
      Down(id, message);
      Drop(id);
    });
  }
}

void Network::Down(uint64_t id, const pb::SchedulerMessage& message) {
  Wire* wire = Find(id);
  if (wire == nullptr || (wire->agent == nullptr && wire->late == nullptr)) return;
  if (DownCut(wire->host) || !wire->down.empty()) {
    wire->down.push_back(message);
    ++shared_->counters["messages held up"];
    return;
  }
  (wire->agent != nullptr ? wire->agent : wire->late)->Received(id, message);
}

void Network::EndDown(uint64_t id) {
  Wire* wire = Find(id);
  if (wire == nullptr || wire->scheduler == nullptr) return;
  wire->scheduler = nullptr;
  if (wire->agent == nullptr) return Drop(id);
  wire->down_ns = std::max(wire->down_ns, shared_->heap.now_ns() + Delay(&links_[wire->host]));
  shared_->heap.At(wire->down_ns, [this, id] { DownEnd(id); });
}

void Network::DownEnd(uint64_t id) {
  Wire* wire = Find(id);
  if (wire == nullptr || wire->agent == nullptr) return;
  if (DownCut(wire->host) || !wire->down.empty()) {
    wire->down_end = true;
    return;
  }
  AgentEnd* const agent = wire->agent;
  wire->agent = nullptr;
  Drop(id);
  agent->Closed(id);
}

void Network::Died(SchedulerEnd* end) {
  if (listener_ == end) listener_ = nullptr;
  for (Link& link : links_) {
    if (link.misdirected_to == end) link.misdirected_to = nullptr;
  }
  std::vector<uint64_t> its;
  for (const auto& [id, wire] : wires_) {
    if (wire.scheduler == end) its.push_back(id);
  }
  for (const uint64_t id : its) EndDown(id);
}

void Network::Flush(int32_t host) {
  std::vector<uint64_t> ids;
  for (const auto& [id, wire] : wires_) {
    if (wire.host == host) ids.push_back(id);
  }
  for (const uint64_t id : ids) {
    Wire* wire = Find(id);
    if (wire == nullptr) continue;
    if (!DownCut(host)) {
      std::deque<pb::SchedulerMessage> held;
      held.swap(wire->down);
      const bool end = std::exchange(wire->down_end, false);
      for (const pb::SchedulerMessage& message : held) Down(id, message);
      if (end) DownEnd(id);
      Drop(id);
    }
    wire = Find(id);
    if (wire == nullptr || UpCut(host)) continue;
    std::deque<pb::AgentMessage> held;
    held.swap(wire->up);
    const bool end = std::exchange(wire->up_end, false);
    for (const pb::AgentMessage& message : held) Up(id, message);
    if (end) UpEnd(id);
  }
}

void Network::Cut(int32_t host, bool up, bool down, int64_t until_ns) {
  Link& link = links_[host];
  if (up) link.up_cut_until_ns = std::max(link.up_cut_until_ns, until_ns);
  if (down) link.down_cut_until_ns = std::max(link.down_cut_until_ns, until_ns);
  ++shared_->counters[up && down ? Counter("cuts") : Counter("cuts one way")];
  shared_->heap.At(until_ns, [this, host] { Flush(host); });
}

void Network::Slow(int32_t host, int64_t until_ns, int64_t by_ns) {
  links_[host].slow_until_ns = until_ns;
  links_[host].slow_ns = by_ns;
}

void Network::Reset(int32_t host) {
  std::vector<uint64_t> ids;
  for (const auto& [id, wire] : wires_) {
    if (wire.host == host) ids.push_back(id);
  }
  for (const uint64_t id : ids) {
    Wire* wire = Find(id);
    if (wire == nullptr) continue;
    wire->up.clear();
    wire->down.clear();
    shared_->heap.After(Delay(&links_[host]), [this, id] { UpEnd(id); });
    shared_->heap.After(Delay(&links_[host]), [this, id] { DownEnd(id); });
  }
}

void Network::Age(int32_t host, int64_t by_ns) {
  for (auto& [id, wire] : wires_) {
    if (wire.host == host) wire.lag_ns = by_ns;
  }
}

void Network::Heal() {
  for (size_t host = 0; host < links_.size(); ++host) {
    Link& link = links_[host];
    link.up_cut_until_ns = link.down_cut_until_ns = link.lossy_until_ns = link.slow_until_ns =
        link.no_new_until_ns = link.hold_next_ns = 0;
    Flush(static_cast<int32_t>(host));
  }
  for (auto& [id, wire] : wires_) wire.lag_ns = 0;
}

}  // namespace muster::sim::faults
