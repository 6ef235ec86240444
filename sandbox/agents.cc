#include "sandbox/agents.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/log.h"
#include "common/base/protocol.h"
#include "common/base/units.h"
#include "common/spec/config_files.h"
#include "scheduler/engine/engine.h"

namespace muster::sandbox {
namespace {

constexpr int64_t kDefaultDurationNs =
    30 * kSecond;  // of a program that says nothing about its length
constexpr int64_t kProgressEveryNs =
    10 * kSecond;  // all hosts' progress at once: one step of the engine
constexpr size_t kLinesKept = 200;

// "sleep 20" anywhere in the text: 20 s.
int64_t SleepIn(const std::string& text) {
  const std::vector<std::string> words =
      absl::StrSplit(text, absl::ByAnyChar(" \n\t;&|"), absl::SkipEmpty());
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    double seconds = 0;
    if (words[i] == "sleep" && absl::SimpleAtod(words[i + 1], &seconds) && seconds >= 0 &&
        seconds < 1e7) {
      return static_cast<int64_t>(seconds * static_cast<double>(kSecond));
    }
  }
  return 0;
}

int64_t DurationOf(const pb::TaskSpec& task) {
  int64_t duration_ns = SleepIn(task.run().shell());
  if (duration_ns == 0 && task.run().exec_size() > 0) {
    std::string text;
    for (const std::string& word : task.run().exec()) absl::StrAppend(&text, word, " ");
    duration_ns = SleepIn(text);
  }
  if (duration_ns == 0 && !task.trainer_json().empty()) {
    int64_t steps = 300;  // a second a step
    const size_t at = task.trainer_json().find("\"max_steps\":");
    if (at != std::string::npos) {
      const std::string_view rest = std::string_view(task.trainer_json()).substr(at + 12);
      const std::string_view digits = rest.substr(0, rest.find_first_not_of(" 0123456789"));
      int64_t parsed = 0;
      if (absl::SimpleAtoi(std::string(digits), &parsed) && parsed > 0) steps = parsed;
    }
    duration_ns = steps * kSecond;
  }
  if (duration_ns == 0) duration_ns = kDefaultDurationNs;
  return task.time_limit_ns() > 0 ? std::min(duration_ns, task.time_limit_ns()) : duration_ns;
}

}  // namespace

class Agents::Stream : public AgentStream {
 public:
  Stream(Agents* agents, size_t host) : agents_(agents), host_(host) {}
  void Send(const pb::SchedulerMessage& message) override {
    std::lock_guard lock(agents_->mutex_);
    agents_->inbox_.push_back({host_, message});
    agents_->mailed_.notify_one();
  }
  void End(const absl::Status& status) override {
    LogWarn("a simulated agent's session ended", {{"why", std::string(status.message())}});
  }

 private:
  Agents* const agents_;
  const size_t host_;
};

Agents::Agents(Sessions* sessions, const pb::ClusterFile& clusters, const AgentOptions& options,
               int64_t start_ns)
    : sessions_(sessions), options_(options), now_ns_(start_ns) {
  for (const pb::ClusterSpec& cluster : clusters.clusters()) {
    for (const pb::HostSpec& spec : cluster.hosts()) {
      Host host;
      host.cluster = cluster.name();
      host.name = spec.name();
      FillInventory(*SkuOf(clusters, cluster, spec), "simulated-", &host.inventory);
      host.inventory.set_declared(true);
      host.inventory.set_address("127.0.0.1");
      host.inventory.set_agent_version("sandbox");
      host.stream = std::make_shared<Stream>(this, hosts_.size());
      hosts_.push_back(std::move(host));
    }
  }
}

Agents::~Agents() = default;

void Agents::Join() {
  for (size_t h = 0; h < hosts_.size(); ++h) {
    const Host& host = hosts_[h];
    pb::AgentMessage message;
    pb::Hello* hello = message.mutable_hello();
    hello->set_protocol_version(kAgentProtocolVersion);
    hello->set_cluster(host.cluster);
    hello->set_host(host.name);
    hello->set_state_id(absl::StrFormat("%032x", h + 1));
    hello->set_boot_id("sandbox");
    *hello->mutable_inventory() = host.inventory;
    Send(h, std::move(message));
  }
  After(kProgressEveryNs, [this] { FlushProgress(); });
}

void Agents::Know(const std::string& job_uid, int64_t duration_ns, int32_t workers) {
  work_[absl::StrCat(job_uid, "/main")] = duration_ns * std::max(1, workers);
}

void Agents::Send(size_t host, pb::AgentMessage message) {
  *message.mutable_session() = hosts_[host].session;
  const absl::Status status = sessions_->Receive(hosts_[host].stream, message);
  if (!status.ok())
    LogError("a simulated agent was refused",
             {{"host", hosts_[host].name}, {"why", std::string(status.message())}});
}

void Agents::AdvanceTo(int64_t now_ns) {
  std::vector<Mail> mail;
  {
    std::lock_guard lock(mutex_);
    mail.swap(inbox_);
  }
  for (const Mail& one : mail) Deliver(one);
  while (!timers_.empty() && timers_.begin()->first <= now_ns) {
    now_ns_ = std::max(now_ns_, timers_.begin()->first);
    const std::function<void()> what = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    what();
  }
  now_ns_ = std::max(now_ns_, now_ns);
}

void Agents::WaitForMail(int64_t timeout_ns) {
  std::unique_lock lock(mutex_);
  mailed_.wait_for(lock, std::chrono::nanoseconds(timeout_ns),
                   [this] { return awake_ || !inbox_.empty(); });
}

void Agents::Wake() {
  std::lock_guard lock(mutex_);
  awake_ = true;
  mailed_.notify_all();
}

void Agents::Deliver(const Mail& mail) {
  hosts_[mail.host].session = mail.message.session();
  switch (mail.message.body_case()) {
    case pb::SchedulerMessage::kPrepare:
      return OnPrepare(mail.host, mail.message.prepare());
    case pb::SchedulerMessage::kStart:
      return OnStart(mail.host, mail.message.start().key());
    case pb::SchedulerMessage::kStop:
      return OnStop(mail.host, mail.message.stop());
    case pb::SchedulerMessage::kQuery:
      return OnQuery(mail.host, mail.message.query().key());
    case pb::SchedulerMessage::kForget:
      return OnForget(mail.host, mail.message.forget().key());
    case pb::SchedulerMessage::kLogRequest:
      return OnLogs(mail.host, mail.message.log_request());
    case pb::SchedulerMessage::kLogCancel:
      for (auto& [id, gang] : gangs_) gang.followers.erase(mail.message.log_cancel().request());
      return;
    default:
      return;  // acknowledgements: nothing is lost in this process
  }
}

Agents::Gang* Agents::Find(const pb::AttemptKey& key) {
  const auto it = gangs_.find(AttemptText(key));
  return it == gangs_.end() ? nullptr : &it->second;
}

void Agents::After(int64_t delay_ns, const Gang& gang, void (Agents::*what)(Gang*)) {
  After(delay_ns, [this, key = gang.key, what] {
    Gang* found = Find(key);
    if (found != nullptr && !found->over) (this->*what)(found);
  });
}

void Agents::OnPrepare(size_t host, const pb::Prepare& prepare) {
  const auto [it, added] = gangs_.try_emplace(AttemptText(prepare.key()));
  Gang& gang = it->second;
  const pb::TaskSpec& task = prepare.task();
  if (added) {
    gang.key = prepare.key();
    gang.workers = std::max(1, prepare.gang_workers());
    gang.ranks = gang.workers * std::max(1, prepare.processes_per_worker());
    gang.gpus = static_cast<int32_t>(
        std::max<int64_t>(1, gang.workers * task.resources().gpus_milli() / 1000));
    gang.checkpoint_ns = task.checkpoint().interval_ns();
    gang.work = work_
                    .try_emplace(absl::StrCat(prepare.key().job_uid(), "/", prepare.key().task()),
                                 DurationOf(task) * gang.workers)
                    .first->second;
    if (prepare.resume_from_size() > 0) {
      if (const auto found = done_at_.find(prepare.resume_from(0)); found != done_at_.end())
        gang.done_at_start = found->second;
    }
  }
  Part& part = gang.parts[host];
  if (part.busy || part.phase != pb::ATTEMPT_PHASE_UNSPECIFIED) return;
  part.busy = true;
  part.first_rank = prepare.here().first_group_rank() * std::max(1, prepare.processes_per_worker());
  part.ranks = prepare.here().workers() * std::max(1, prepare.processes_per_worker());
  if (prepare.here().first_group_rank() == 0) {
    gang.first_host = host;
    std::string program = task.run().shell();
    for (const std::string& word : task.run().exec())
      absl::StrAppend(&program, program.empty() ? "" : " ", word);
    if (!task.trainer_json().empty()) program = "muster-trainer";
    Say(&gang, absl::StrCat("sandbox: nothing runs here; a real host would start ", gang.workers,
                            " x: ", program));
  }
  After(options_.prepare_ns, [this, host, key = prepare.key(), at_once = prepare.start_at_once()] {
    Gang* found = Find(key);
    if (found == nullptr) return;
    Part& prepared = found->parts[host];
    if (prepared.phase != pb::ATTEMPT_PHASE_UNSPECIFIED) return;  // stopped meanwhile
    prepared.busy = false;
    prepared.phase = pb::PREPARED;
    if (at_once) {
      Launch(host, found);
    } else {
      Report(host, *found, pb::PREPARED);
    }
  });
}

void Agents::OnStart(size_t host, const pb::AttemptKey& key) {
  Gang* gang = Find(key);
  if (gang != nullptr && gang->parts.contains(host) && gang->parts[host].phase == pb::PREPARED)
    Launch(host, gang);
}

void Agents::Launch(size_t host, Gang* gang) {
  gang->parts[host].phase = pb::STARTED;
  Report(host, *gang, pb::STARTED);
  gang->ranks_started += gang->parts[host].ranks;
  if (gang->ranks_started == gang->ranks && !gang->over)
    After(options_.launch_ns, *gang, &Agents::BeginWork);
}

void Agents::BeginWork(Gang* gang) {
  if (gang->working) return;
  gang->working = true;
  gang->work_since_ns = now_ns_;
  After(std::max<int64_t>(0, gang->work - gang->done_at_start) / gang->workers,
        [this, key = gang->key] {
          Gang* done = Find(key);
          if (done == nullptr || done->over) return;
          done->over = done->last = true;
          for (auto& [host, part] : done->parts) End(host, done, 0);
        });
  if (gang->checkpoint_ns > 0) After(gang->checkpoint_ns, *gang, &Agents::Checkpoint);
  TellProgress(gang);
}

int64_t Agents::DoneNow(const Gang& gang) const {
  if (!gang.working) return gang.done_at_start;
  return std::min(gang.work, gang.done_at_start + (now_ns_ - gang.work_since_ns) * gang.workers);
}

void Agents::Checkpoint(Gang* gang) {
  const int64_t done = DoneNow(*gang);
  pb::AgentMessage message;
  pb::CheckpointReport* report = message.mutable_checkpoint();
  *report->mutable_key() = gang->key;
  report->set_sequence(++gang->checkpoints);
  report->mutable_checkpoint()->set_step(done / kSecond);
  report->mutable_checkpoint()->set_path(
      absl::StrCat("/sandbox/", AttemptText(gang->key), "/checkpoints/", done / kSecond));
  report->mutable_checkpoint()->set_attempt(gang->key.attempt());
  report->mutable_checkpoint()->set_at_ns(now_ns_);
  report->set_loaded_step(gang->done_at_start == 0 ? -1 : gang->done_at_start / kSecond);
  done_at_[report->checkpoint().path()] = done;
  Say(gang, absl::StrCat("checkpoint at step ", done / kSecond));
  Send(gang->first_host, std::move(message));
  if (!gang->over && gang->checkpoint_ns > 0)
    After(gang->checkpoint_ns, *gang, &Agents::Checkpoint);
}

void Agents::TellProgress(Gang* gang) {
  pb::ProgressReport report;
  *report.mutable_key() = gang->key;
  pb::Progress* progress = report.mutable_progress();
  progress->set_step(DoneNow(*gang) / kSecond);
  progress->set_total_steps(std::max<int64_t>(1, gang->work / kSecond));
  progress->set_at_ns(now_ns_);
  progress->set_attempt(gang->key.attempt());
  progress->set_expected_end_ns(now_ns_ +
                                std::max<int64_t>(0, gang->work - DoneNow(*gang)) / gang->workers);
  // Figures as such jobs have them, so that there is something to look at.
  const double done =
      static_cast<double>(progress->step()) / static_cast<double>(progress->total_steps());
  progress->set_loss(1.7 + 3.3 * std::exp(-6 * done));
  progress->set_tokens_per_s(6500.0 * gang->gpus);
  progress->set_mfu_causal(0.38);
  Say(gang, absl::StrFormat("step %d/%d  loss %.3f  %.0f tok/s", progress->step(),
                            progress->total_steps(), progress->loss(), progress->tokens_per_s()));
  progress_.emplace_back(gang->first_host, std::move(report));
  After(options_.progress_ns, *gang, &Agents::TellProgress);
}

// SIGTERM: a checkpoint at the next step boundary, then exit 0; with grace 0 SIGKILL at once.
void Agents::OnStop(size_t host, const pb::Stop& stop) {
  Gang& gang = gangs_[AttemptText(stop.key())];
  if (gang.key.job_uid().empty()) {  // never heard of: it will never start
    gang.key = stop.key();
    gang.over = true;
  }
  Part& part = gang.parts[host];
  if (part.phase == pb::GONE) {
    OnQuery(host, stop.key());
    return;
  }
  if (part.stop_sent) return;
  part.stop_sent = true;
  gang.last = gang.last || stop.cause() == pb::CANCEL;
  if (part.phase != pb::STARTED) {
    End(host, &gang, 0);
    return;
  }
  const bool kill = stop.grace_ns() == 0;
  if (!gang.over) {
    gang.over = true;
    if (!kill && gang.working) Checkpoint(&gang);
  }
  After(kill ? 0 : options_.stop_ns, [this, host, key = stop.key(), kill] {
    if (Gang* found = Find(key)) End(host, found, kill ? 9 : 0);
  });
}

void Agents::End(size_t host, Gang* gang, int signal) {
  Part& part = gang->parts[host];
  if (part.phase == pb::GONE) return;
  *part.gone.mutable_key() = gang->key;
  part.gone.set_phase(pb::GONE);
  part.gone.set_end_ns(now_ns_);
  part.gone.set_stop_sent(part.stop_sent);
  for (int32_t r = 0; part.phase == pb::STARTED && r < part.ranks; ++r) {
    pb::WorkerExit* exit = part.gone.add_exits();
    exit->set_rank(part.first_rank + r);
    exit->set_signal(signal);
    exit->set_at_ns(now_ns_);
  }
  if (part.phase != pb::STARTED) part.gone.set_cause(pb::CANCEL);
  part.phase = pb::GONE;
  Report(host, *gang, pb::GONE);
}

void Agents::Report(size_t host, const Gang& gang, pb::AttemptPhase phase) {
  pb::AgentMessage message;
  pb::AttemptReport* report = message.mutable_report();
  if (phase == pb::GONE) {
    *report = gang.parts.at(host).gone;
  } else {
    *report->mutable_key() = gang.key;
    report->set_phase(phase);
    if (phase == pb::PREPARED) report->set_rendezvous_port(20'000);
    if (phase == pb::STARTED) report->set_start_ns(now_ns_);
  }
  Send(host, std::move(message));
}

void Agents::OnQuery(size_t host, const pb::AttemptKey& key) {
  const Gang* gang = Find(key);
  if (gang != nullptr && gang->parts.contains(host)) {
    const pb::AttemptPhase phase = gang->parts.at(host).phase;
    if (phase != pb::ATTEMPT_PHASE_UNSPECIFIED) Report(host, *gang, phase);
    return;
  }
  pb::AgentMessage message;
  *message.mutable_report()->mutable_key() = key;
  message.mutable_report()->set_phase(pb::GONE);
  Send(host, std::move(message));
}

void Agents::OnForget(size_t host, const pb::AttemptKey& key) {
  Gang* gang = Find(key);
  if (gang == nullptr) return;
  if (host == gang->first_host) EndFollowers(gang);
  gang->parts.erase(host);
  if (!gang->parts.empty()) return;
  if (gang->last) work_.erase(absl::StrCat(key.job_uid(), "/", key.task()));
  gangs_.erase(AttemptText(key));
}

void Agents::FlushProgress() {
  for (auto& [host, report] : progress_) {
    pb::AgentMessage message;
    *message.mutable_progress() = std::move(report);
    Send(host, std::move(message));
  }
  progress_.clear();
  After(kProgressEveryNs, [this] { FlushProgress(); });
}

void Agents::Say(Gang* gang, const std::string& line) {
  gang->lines.push_back(line + "\n");
  if (gang->lines.size() > kLinesKept) gang->lines.pop_front();
  for (const auto& [request, host] : gang->followers) {
    pb::AgentMessage message;
    message.mutable_log_chunk()->set_request(request);
    message.mutable_log_chunk()->set_data(gang->lines.back());
    Send(host, std::move(message));
  }
}

void Agents::OnLogs(size_t host, const pb::LogRequest& request) {
  Gang* gang = Find(request.key());
  const bool here = gang != nullptr && gang->first_host == host && request.rank() <= 0;
  pb::AgentMessage message;
  pb::LogChunk* chunk = message.mutable_log_chunk();
  chunk->set_request(request.request());
  if (here) {
    const size_t tail =
        request.tail_lines() > 0 ? static_cast<size_t>(request.tail_lines()) : gang->lines.size();
    for (size_t i = gang->lines.size() - std::min(tail, gang->lines.size()); i < gang->lines.size();
         ++i)
      chunk->mutable_data()->append(gang->lines[i]);
  }
  chunk->set_end(!here || !request.follow());
  if (here && request.follow()) gang->followers[request.request()] = host;
  Send(host, std::move(message));
}

void Agents::EndFollowers(Gang* gang) {
  for (const auto& [request, host] : gang->followers) {
    pb::AgentMessage message;
    message.mutable_log_chunk()->set_request(request);
    message.mutable_log_chunk()->set_end(true);
    Send(host, std::move(message));
  }
  gang->followers.clear();
}

void Agents::BeginHeartbeats(int64_t interval_ns) {
  for (size_t h = 0; h < hosts_.size(); ++h) {
    Beat(h, 0);  // heard now
    const int64_t first_ns =
        interval_ns * static_cast<int64_t>(h + 1) / static_cast<int64_t>(hosts_.size());
    After(first_ns, [this, h, interval_ns] { Beat(h, interval_ns); });
  }
}

void Agents::Beat(size_t host, int64_t interval_ns) {
  pb::AgentMessage message;
  message.mutable_heartbeat()->set_sequence(++hosts_[host].heartbeats);
  Send(host, std::move(message));
  if (interval_ns > 0) After(interval_ns, [this, host, interval_ns] { Beat(host, interval_ns); });
}

}  // namespace muster::sandbox
