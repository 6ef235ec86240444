#include "sim/agents/agents.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/str_format.h"
#include "common/base/log.h"
#include "common/base/protocol.h"
#include "common/base/units.h"

namespace muster::sim {

void Programs::Failed(const SimulatedHost& host, const absl::Status& status) {
  LogError("a simulated agent was refused",
           {{"host", host.name}, {"why", std::string(status.message())}});
}

class Agents::Stream : public AgentStream {
 public:
  Stream(Agents* agents, int32_t host) : agents_(agents), host_(host) {}
  void Send(const pb::SchedulerMessage& message) override {
    std::lock_guard lock(agents_->mutex_);
    agents_->inbox_.push_back({host_, message});
    agents_->welcomed_ += message.has_welcome();
    agents_->changed_.notify_all();
  }
  void End(const absl::Status& status) override {
    agents_->programs_->Failed(agents_->hosts_[host_].what, status);
  }

 private:
  Agents* const agents_;
  const int32_t host_;
};

Agents::Agents(Sessions* sessions, std::vector<SimulatedHost> hosts, const HostOptions& options,
               Programs* programs, int64_t now_ns)
    : sessions_(sessions),
      programs_(programs),
      heap_(now_ns),
      model_(
          options, &heap_,
          [this](const pb::Prepare& prepare) { return programs_->WorkOf(prepare); },
          [this](int32_t host, pb::AgentMessage message) { Say(host, std::move(message)); }) {
  for (SimulatedHost& host : hosts) {
    const auto number = static_cast<int32_t>(hosts_.size());
    hosts_.push_back({std::move(host), std::make_shared<Stream>(this, number), {}});
  }
}

Agents::~Agents() {
  for (const Host& host : hosts_) sessions_->Closed(host.stream.get());
}

void Agents::Join() {
  for (size_t h = 0; h < hosts_.size(); ++h) {
    pb::AgentMessage message;
    pb::Hello* const hello = message.mutable_hello();
    hello->set_protocol_version(kAgentProtocolVersion);
    hello->set_cluster(hosts_[h].what.cluster);
    hello->set_host(hosts_[h].what.name);
    hello->set_state_id(absl::StrFormat("%032x", h + 1));
    hello->set_boot_id("simulated");
    *hello->mutable_inventory() = hosts_[h].what.inventory;
    Say(static_cast<int32_t>(h), std::move(message));
  }
}

void Agents::WaitWelcomed() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return welcomed_ == hosts_.size(); });
}

void Agents::BeginHeartbeats(int64_t interval_ns) {
  const auto hosts = static_cast<int64_t>(hosts_.size());
  for (int32_t h = 0; h < hosts; ++h) {
    Beat(h);
    heap_.After(interval_ns * (h + 1) / hosts,
                [this, h, interval_ns] { BeatNext(h, interval_ns); });
  }
}

void Agents::Beat(int32_t host) {
  pb::AgentMessage message;
  message.mutable_heartbeat()->set_sent_boottime_ns(heap_.now_ns());
  message.mutable_heartbeat()->set_sequence(++hosts_[host].heartbeats);
  Say(host, std::move(message));
}

void Agents::BeatNext(int32_t host, int64_t every_ns) {
  Beat(host);
  heap_.After(every_ns, [this, host, every_ns] { BeatNext(host, every_ns); });
}

void Agents::TakeMail() {
  std::vector<Mail> mail;
  {
    std::lock_guard lock(mutex_);
    mail.swap(inbox_);
  }
  for (const Mail& one : mail) {
    hosts_[one.host].session = one.message.session();
    programs_->Told(one.host, one.message);
    model_.Send(one.host, one.message);
    heap_.RunUntil(heap_.now_ns());  // what follows at once, before the next
  }
}

void Agents::LiveUntil(Clock* clock, int64_t until_ns) {
  while (true) {
    AdvanceTo(clock->WallNs());
    TakeMail();
    const int64_t due_ns = std::min(heap_.next_ns(), until_ns);
    std::unique_lock lock(mutex_);
    if (awake_ || clock->WallNs() >= until_ns) return;
    const int64_t wait_ns = std::clamp<int64_t>(due_ns - clock->WallNs(), 0, kSecond);
    changed_.wait_for(lock, std::chrono::nanoseconds(wait_ns),
                      [this] { return awake_ || !inbox_.empty(); });
  }
}

void Agents::Wake() {
  std::lock_guard lock(mutex_);
  awake_ = true;
  changed_.notify_all();
}

void Agents::Say(int32_t host, pb::AgentMessage message) {
  programs_->Saying(host, &message);
  *message.mutable_session() = hosts_[host].session;
  const absl::Status status = sessions_->Receive(hosts_[host].stream, message);
  if (!status.ok()) programs_->Failed(hosts_[host].what, status);
}

}  // namespace muster::sim
