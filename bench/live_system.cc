#include "bench/live_system.h"

#include <chrono>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/units.h"
#include "scheduler/ask/ask.h"

namespace muster::bench {

void Die(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::_Exit(2);
}

double SecondsSince(int64_t then_ns) {
  return static_cast<double>(RealClock()->WallNs() - then_ns) / 1e9;
}

LiveSystem::LiveSystem(const std::string& directory, const SchedulingOptions& scheduling,
                       bool check_plans) {
  StoreOptions store_options;
  store_options.directory = directory;
  Recovered recovered;
  absl::StatusOr<std::unique_ptr<SqliteStore>> store = SqliteStore::Open(store_options, &recovered);
  if (!store.ok()) Die(std::string(store.status().message()));
  if (!recovered.created)
    Die(absl::StrCat(directory, ": there is a store already; give an empty directory"));
  store_ = *std::move(store);
  SessionOptions session_options;
  session_options.store_id = recovered.store_id;
  session_options.epoch = recovered.epoch;
  sessions_ = std::make_unique<Sessions>(session_options, RealClock());
  EngineOptions options;
  options.scheduling = scheduling;
  options.check_plans = check_plans;
  options.epoch = recovered.epoch;
  options.last_commit = recovered.last_commit;
  options.refused_plans_directory = directory + "/refused-plans";
  engine_ = std::make_unique<Engine>(options, RealClock(), store_.get(), sessions_.get(), State());
  sessions_->Attach(engine_.get());
}

LiveSystem::~LiveSystem() {
  stopping_ = true;
  engine_->Stop();
  if (stepping_.joinable()) stepping_.join();
  if (ticking_.joinable()) ticking_.join();
}

void LiveSystem::Configure(const pb::ClusterFile& clusters, const pb::QueueTree& queues) {
  pb::Event event;
  *event.mutable_clusters_configured()->mutable_file() = clusters;
  engine_->Post(event);
  engine_->Step();
  const QueueResolution resolution = ResolveQueues(engine_->Snapshot()->state, queues);
  if (!resolution.ok())
    Die(absl::StrCat(resolution.problems[0].path, ": ", resolution.problems[0].message));
  event.Clear();
  *event.mutable_queues_applied()->mutable_tree() = resolution.resolved;
  event.mutable_queues_applied()->set_version(1);
  engine_->Post(event);
  engine_->Step();
}

void LiveSystem::Run() {
  stepping_ = std::thread([this] { engine_->Run(); });
  ticking_ = std::thread([this] {
    while (!stopping_) {
      sessions_->Tick();
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
    }
  });
}

}  // namespace muster::bench
