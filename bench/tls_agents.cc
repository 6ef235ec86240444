// Many agents over TLS, as far as the scheduler can tell: each has a certificate and a connection
// of its own, says Hello and sends heartbeats.
//
//   tls_agents issue DATA_DIR MASTER_KEY ADDRESS HOSTS DIR: while musterd is stopped, signs a
//     certificate for lab/h00001 and so on; an identity each in DIR
//   tls_agents run DIR --seconds S: reads numbers from standard input, and connects as many more
//     hosts for each line, which "connected N" answers; after the last line all send heartbeats for
//     S seconds. Prints one JSON line.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "bench/live_system.h"
#include "common/base/clock.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/protocol.h"
#include "common/base/units.h"
#include "muster/v1/agent_service.grpc.pb.h"
#include "network/client.h"
#include "scheduler/trust/office.h"

namespace muster::bench {
namespace {

std::string HostName(int i) { return absl::StrFormat("h%05d", i + 1); }

void Issue(const std::string& data_dir, const std::string& key_path, const std::string& address,
           int hosts, const std::string& directory) {
  Recovered recovered;
  StoreOptions store_options;
  store_options.directory = data_dir;
  absl::StatusOr<std::unique_ptr<SqliteStore>> store = SqliteStore::Open(store_options, &recovered);
  if (!store.ok()) Die(std::string(store.status().message()));
  absl::StatusOr<State> state = State::Load(recovered.rows);
  if (!state.ok()) Die(std::string(state.status().message()));
  const absl::StatusOr<std::string> key = ReadMasterKey(key_path, data_dir, /*make=*/false);
  if (!key.ok()) Die(std::string(key.status().message()));
  const Office office(*key, CertificateLives());
  const Trust trust = state->trust();

  SessionOptions session_options;
  session_options.store_id = recovered.store_id;
  session_options.epoch = recovered.epoch;
  Sessions sessions(session_options, RealClock());
  EngineOptions options;
  options.epoch = recovered.epoch;
  options.last_commit = recovered.last_commit;
  Engine engine(options, RealClock(), store->get(), &sessions, *std::move(state));
  sessions.Attach(&engine);
  for (int i = 0; i < hosts; ++i) {
    Identity identity;
    identity.addresses = {address};
    identity.join_address = address;
    identity.key = NewKey();
    identity.authorities = TrustedPem(trust);
    const Holder holder{Holder::kHost, trust.trust_id, "lab", HostName(i), ""};
    const absl::StatusOr<std::string> request = NewRequest(identity.key);
    absl::StatusOr<Office::Issued> issued =
        office.Renew(trust, holder, *request, RealClock()->WallNs());
    if (!issued.ok()) Die(std::string(issued.status().message()));
    identity.certificate = issued->certificate;
    engine.Post(std::move(issued->event));
    if (absl::Status saved = SaveIdentity(absl::StrCat(directory, "/", HostName(i)), identity);
        !saved.ok())
      Die(std::string(saved.message()));
  }
  engine.Step();
}

class Agent : public grpc::ClientBidiReactor<pb::AgentMessage, pb::SchedulerMessage> {
 public:
  Agent(const Identity& identity, const std::string& server,
        const grpc::ChannelArguments& arguments)
      : channel_(DialWith(identity, arguments)), stub_(pb::AgentService::NewStub(channel_)) {
    pb::Hello* const hello = message_.mutable_hello();
    hello->set_protocol_version(kAgentProtocolVersion);
    hello->set_cluster(identity.holder.cluster);
    hello->set_host(identity.holder.name);
    hello->set_state_id(RandomId());
    hello->set_boot_id(RandomId());
    pb::Inventory* const inventory = hello->mutable_inventory();
    inventory->set_cpus_milli(8000);
    inventory->set_memory_bytes(int64_t{16} << 30);
    inventory->set_address(server);
    context_.set_wait_for_ready(true);  // as an agent does, which connects until it is connected
    stub_->async()->Connect(&context_, this);
    writing_ = true;
    StartWrite(&message_);
    StartRead(&incoming_);
    StartCall();
  }
  ~Agent() override {
    context_.TryCancel();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return done_; });
  }

  bool WaitWelcomed() {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(60), [this] { return welcomed_ || done_; });
    return welcomed_ && !done_;
  }
  bool Lives() {
    std::lock_guard lock(mutex_);
    return welcomed_ && !done_;
  }
  int64_t heartbeat_ns() {
    std::lock_guard lock(mutex_);
    return heartbeat_ns_;
  }
  void Heartbeat() {
    std::lock_guard lock(mutex_);
    if (writing_ || done_) return;
    message_.Clear();
    *message_.mutable_session() = session_;
    message_.mutable_heartbeat()->set_sent_boottime_ns(RealClock()->BootNs());
    message_.mutable_heartbeat()->set_sequence(++sequence_);
    writing_ = true;
    StartWrite(&message_);
  }
  // How long acknowledgements took, since the last time.
  void TakeTimes(std::vector<int64_t>* times_ns) {
    std::lock_guard lock(mutex_);
    times_ns->insert(times_ns->end(), times_ns_.begin(), times_ns_.end());
    times_ns_.clear();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    {
      std::lock_guard lock(mutex_);
      if (incoming_.has_welcome()) {
        session_ = incoming_.session();
        heartbeat_ns_ = incoming_.welcome().heartbeat_ns();
        welcomed_ = true;
        changed_.notify_all();
      } else if (incoming_.has_heartbeat_ack()) {
        times_ns_.push_back(RealClock()->BootNs() - incoming_.heartbeat_ack().sent_boottime_ns());
      } else if (incoming_.has_refused()) {
        std::fprintf(stderr, "refused: %s\n", incoming_.refused().reason().c_str());
      }
    }
    StartRead(&incoming_);
  }
  void OnWriteDone(bool) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
  }
  void OnDone(const grpc::Status& status) override {
    std::lock_guard lock(mutex_);
    if (!status.ok() && status.error_code() != grpc::StatusCode::CANCELLED)
      std::fprintf(stderr, "a stream ended: %s\n", status.error_message().c_str());
    done_ = true;
    changed_.notify_all();
  }

 private:
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<pb::AgentService::Stub> stub_;
  grpc::ClientContext context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  pb::AgentMessage message_;
  pb::SchedulerMessage incoming_;
  pb::SessionKey session_;
  std::vector<int64_t> times_ns_;
  int64_t heartbeat_ns_ = 0;
  uint64_t sequence_ = 0;
  bool writing_ = false, welcomed_ = false, done_ = false;
};

// Each host's heartbeats have a moment of their own in the interval.
class Heartbeats {
 public:
  void Add(Agent* agent) {
    std::lock_guard lock(mutex_);
    agents_.push_back(agent);
  }
  void Run() {
    size_t next = 0;
    for (auto at = std::chrono::steady_clock::now(); !stopping_;) {
      int64_t interval_ns = 0;
      size_t count = 0;
      {
        std::lock_guard lock(mutex_);
        count = agents_.size();
        if (count > 0) {
          interval_ns = agents_[0]->heartbeat_ns();
          agents_[next++ % count]->Heartbeat();
        }
      }
      at += std::chrono::nanoseconds(count > 0 ? interval_ns / static_cast<int64_t>(count)
                                               : 10 * kMillisecond);
      std::this_thread::sleep_until(at);
    }
  }
  void Stop() { stopping_ = true; }

 private:
  std::mutex mutex_;
  std::vector<Agent*> agents_;
  std::atomic<bool> stopping_ = false;
};

int Run(const std::string& directory, int seconds) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::vector<std::unique_ptr<Agent>> agents;
  Heartbeats heartbeats;
  std::thread sending([&] { heartbeats.Run(); });
  for (std::string line; std::getline(std::cin, line);) {
    const size_t begin = agents.size(), more = std::stoul(line);
    for (size_t i = begin; i < std::min(begin + more, files.size()); ++i) {
      const absl::StatusOr<Identity> identity = LoadIdentity(files[i]);
      if (!identity.ok()) Die(std::string(identity.status().message()));
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      agents.push_back(std::make_unique<Agent>(*identity, "127.0.0.1", arguments));
    }
    for (size_t i = begin; i < agents.size(); ++i) {
      if (!agents[i]->WaitWelcomed()) Die(absl::StrCat(files[i], ": not welcomed"));
      heartbeats.Add(agents[i].get());
    }
    std::printf("connected %zu\n", agents.size());
    std::fflush(stdout);
  }
  std::vector<int64_t> times_ns;
  for (const auto& agent : agents) agent->TakeTimes(&times_ns);
  times_ns.clear();
  std::printf("steady\n");
  std::fflush(stdout);
  std::this_thread::sleep_for(std::chrono::seconds(seconds));  // what is measured
  int64_t lives = 0;
  for (const auto& agent : agents) {
    agent->TakeTimes(&times_ns);
    lives += agent->Lives();
  }
  std::sort(times_ns.begin(), times_ns.end());
  const auto quantile_ms = [&](size_t per_mille) {
    return times_ns.empty()
               ? 0
               : static_cast<double>(times_ns[times_ns.size() * per_mille / 1000]) / 1e6;
  };
  std::printf(
      "{\"agents\": %zu, \"streams\": %lld, \"acknowledged\": %zu, \"p50_ms\": %.2f, \"p99_ms\": "
      "%.2f}\n",
      agents.size(), static_cast<long long>(lives), times_ns.size(), quantile_ms(500),
      quantile_ms(990));
  std::fflush(stdout);
  heartbeats.Stop();
  sending.join();
  std::_Exit(0);  // 5,000 streams need not be ended one by one
}

int Main(int argc, char** argv) {
  CLI::App app{"Many agents over TLS.", "tls_agents"};
  std::string data_dir, master_key, address, directory;
  int hosts = 0, seconds = 30;
  CLI::App* const issue = app.add_subcommand("issue", "Sign certificates while musterd is stopped");
  issue->add_option("data-dir", data_dir)->required();
  issue->add_option("master-key", master_key)->required();
  issue->add_option("address", address, "HOST:PORT of musterd")->required();
  issue->add_option("hosts", hosts)->required();
  issue->add_option("directory", directory, "For identities")->required();
  CLI::App* const run = app.add_subcommand("run", "Connect them, and send heartbeats");
  run->add_option("directory", directory)->required();
  run->add_option("--seconds", seconds);
  app.require_subcommand(1);
  CLI11_PARSE(app, argc, argv);
  SetLogLevel(LogLevel::kError);
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  if (*run) return Run(directory, seconds);
  Issue(data_dir, master_key, address, hosts, directory);
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) { return muster::bench::Main(argc, argv); }
