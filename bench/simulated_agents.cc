#include "bench/simulated_agents.h"

#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/protocol.h"
#include "scheduler/engine/engine.h"

namespace muster::bench {

class SimulatedAgents::Stream : public AgentStream {
 public:
  Stream(SimulatedAgents* agents, size_t host) : agents_(agents), host_(host) {}
  void Send(const pb::SchedulerMessage& message) override {
    std::lock_guard lock(agents_->mutex_);
    agents_->inbox_.emplace_back(host_, message);
    agents_->wake_.notify_one();
  }
  void End(const absl::Status& status) override {
    std::lock_guard lock(agents_->mutex_);
    MUSTER_CHECK_MSG(agents_->stopping_,
                     std::string(status.message()).c_str());  // nothing else ends a stream here
  }

 private:
  SimulatedAgents* const agents_;
  const size_t host_;
};

SimulatedAgents::SimulatedAgents(Sessions* sessions, std::vector<SimulatedHost> hosts,
                                 RuntimeNs runtime_ns)
    : sessions_(sessions), runtime_ns_(std::move(runtime_ns)) {
  for (size_t h = 0; h < hosts.size(); ++h) {
    Host host;
    host.what = std::move(hosts[h]);
    host.stream = std::make_shared<Stream>(this, h);
    hosts_.push_back(std::move(host));
  }
  thread_ = std::thread([this] { Run(); });
}

SimulatedAgents::~SimulatedAgents() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    wake_.notify_one();
  }
  thread_.join();
  for (const Host& host : hosts_) sessions_->Closed(host.stream.get());
}

void SimulatedAgents::WaitWelcomed() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return welcomed_ == hosts_.size(); });
}

void SimulatedAgents::Run() {
  for (size_t h = 0; h < hosts_.size(); ++h) {
    pb::AgentMessage message;
    pb::Hello* hello = message.mutable_hello();
    hello->set_protocol_version(kAgentProtocolVersion);
    hello->set_cluster(hosts_[h].what.cluster);
    hello->set_host(hosts_[h].what.name);
    hello->set_state_id(absl::StrFormat("%032x", h + 1));
    hello->set_boot_id("boot");
    *hello->mutable_inventory() = hosts_[h].what.inventory;
    Say(h, std::move(message));
  }
  std::deque<std::pair<size_t, pb::SchedulerMessage>> taken;
  while (true) {
    {
      std::unique_lock lock(mutex_);
      const auto ready = [this] { return stopping_ || !inbox_.empty(); };
      if (timers_.empty()) {
        wake_.wait(lock, ready);
      } else {
        wake_.wait_for(lock, std::chrono::nanoseconds(timers_.top().at_ns - RealClock()->BootNs()),
                       ready);
      }
      if (stopping_) return;
      taken.swap(inbox_);
    }
    for (const auto& [host, message] : taken) On(host, message);
    taken.clear();
    const int64_t now_ns = RealClock()->BootNs();
    while (!timers_.empty() && timers_.top().at_ns <= now_ns) {
      const Timer timer = timers_.top();
      timers_.pop();
      if (timer.attempt.empty()) {
        Heartbeat(timer.host);
      } else {
        End(timer.host, timer.attempt, false);
      }
    }
  }
}

void SimulatedAgents::On(size_t h, const pb::SchedulerMessage& message) {
  Host& host = hosts_[h];
  switch (message.body_case()) {
    case pb::SchedulerMessage::kWelcome: {
      host.session = message.session();
      heartbeat_ns_ = message.welcome().heartbeat_ns();
      // Spread over the interval, as agents that started at different times are.
      timers_.push({RealClock()->BootNs() + heartbeat_ns_ * static_cast<int64_t>(h + 1) /
                                                static_cast<int64_t>(hosts_.size()),
                    h, ""});
      std::lock_guard lock(mutex_);
      ++welcomed_;
      wake_.notify_all();
      return;
    }
    case pb::SchedulerMessage::kPrepare: {
      const pb::Prepare& prepare = message.prepare();
      const std::string id = AttemptText(prepare.key());
      const auto [it, fresh] = host.attempts.try_emplace(id);
      if (!fresh) return Report(h, it->second.report);
      Attempt& attempt = it->second;
      *attempt.report.mutable_key() = prepare.key();
      attempt.report.set_phase(pb::PREPARED);
      attempt.report.set_rendezvous_port(20'000);
      const int32_t per_worker = std::max(1, prepare.processes_per_worker());
      attempt.first_rank = prepare.here().first_group_rank() * per_worker;
      attempt.ranks = prepare.here().workers() * per_worker;
      attempt.runtime_ns = runtime_ns_(prepare);
      if (prepare.start_at_once()) return Start(h, id);
      return Report(h, attempt.report);
    }
    case pb::SchedulerMessage::kStart:
      return Start(h, AttemptText(message.start().key()));
    case pb::SchedulerMessage::kStop: {
      const std::string id = AttemptText(message.stop().key());
      const auto [it, fresh] = host.attempts.try_emplace(id);
      if (fresh) *it->second.report.mutable_key() = message.stop().key();
      return End(h, id, true);
    }
    case pb::SchedulerMessage::kForget:
      host.attempts.erase(AttemptText(message.forget().key()));
      return;
    default:
      return;
  }
}

void SimulatedAgents::Start(size_t h, const std::string& id) {
  const auto it = hosts_[h].attempts.find(id);
  if (it == hosts_[h].attempts.end()) return;
  pb::AttemptReport& report = it->second.report;
  if (report.phase() == pb::PREPARED) {
    report.set_phase(pb::STARTED);
    report.set_start_ns(RealClock()->WallNs());
    timers_.push({RealClock()->BootNs() + it->second.runtime_ns, h, id});
  }
  Report(h, report);
}

void SimulatedAgents::End(size_t h, const std::string& id, bool stopped) {
  const auto it = hosts_[h].attempts.find(id);
  if (it == hosts_[h].attempts.end()) return;  // its end was known before its time was up
  Attempt& attempt = it->second;
  pb::AttemptReport& report = attempt.report;
  if (report.phase() == pb::GONE) {
    if (stopped) Report(h, report);
    return;
  }
  report.set_end_ns(RealClock()->WallNs());
  report.set_stop_sent(stopped);
  for (int32_t rank = 0; report.phase() == pb::STARTED && rank < attempt.ranks; ++rank) {
    pb::WorkerExit* exit = report.add_exits();
    exit->set_rank(attempt.first_rank + rank);
    exit->set_signal(stopped ? 9 : 0);
    exit->set_at_ns(report.end_ns());
  }
  report.set_phase(pb::GONE);
  Report(h, report);
}

void SimulatedAgents::Report(size_t h, const pb::AttemptReport& report) {
  pb::AgentMessage message;
  *message.mutable_report() = report;
  Say(h, std::move(message));
}

void SimulatedAgents::Heartbeat(size_t h) {
  pb::AgentMessage message;
  message.mutable_heartbeat()->set_sent_boottime_ns(RealClock()->BootNs());
  message.mutable_heartbeat()->set_sequence(++hosts_[h].heartbeats);
  Say(h, std::move(message));
  timers_.push({RealClock()->BootNs() + heartbeat_ns_, h, ""});
}

void SimulatedAgents::Say(size_t h, pb::AgentMessage message) {
  *message.mutable_session() = hosts_[h].session;
  const absl::Status status = sessions_->Receive(hosts_[h].stream, message);
  MUSTER_CHECK_MSG(status.ok(), std::string(status.message()).c_str());
}

}  // namespace muster::bench
