#include "sim/faults/scheduler.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/files.h"
#include "scheduler/ask/ask.h"

namespace muster::sim::faults {
namespace {

std::string NewId(Random* random) {
  return absl::StrFormat("%016x%016x", random->Next(), random->Next());
}

std::vector<RowChange> RowsOf(const Database& database) {
  std::vector<RowChange> rows;
  for (const auto& [name, bytes] : database.rows) rows.push_back({name.first, name.second, bytes});
  return rows;
}

// True when it was `*count` uses from now, now.
bool Due(int64_t* count) { return *count > 0 && --*count == 0; }

}  // namespace

class Scheduler::SchedulerClock final : public Clock {
 public:
  explicit SchedulerClock(const Scheduler* scheduler) : scheduler_(*scheduler) {}
  int64_t WallNs() override {
    return scheduler_.shared_->heap.now_ns() + scheduler_.wall_offset_ns_;
  }
  int64_t MonotonicNs() override { return scheduler_.shared_->heap.now_ns(); }
  int64_t BootNs() override { return scheduler_.shared_->heap.now_ns(); }

 private:
  const Scheduler& scheduler_;
};

class Scheduler::FaultyStore final : public Store {
 public:
  FaultyStore(Shared* shared, Database* database, std::unique_ptr<SqliteStore> real)
      : shared_(shared),
        database_(database),
        real_(std::move(real)),
        epoch_(database->epoch),
        instance_(database->instance) {}

  bool Owns() const { return database_->epoch == epoch_ && database_->instance == instance_; }
  void ServeAlone(Database* its_own) {
    database_ = its_own;
    alone_ = true;
  }
  absl::Status Commit(const Transaction& transaction) override {
    if (failed_) return absl::FailedPreconditionError("the store failed before");
    if (Due(&database_->dies_before)) Die("schedulers killed before a commit");
    if (shared_->heap.now_ns() < database_->full_until_ns)
      return Fails("commits that failed: disk full",
                   absl::ResourceExhaustedError("database or disk is full"));
    if (Due(&database_->fails))
      return Fails("commits that failed without effect", absl::InternalError("disk I/O error"));
    if (!Owns())
      return Fails("commits of a stale scheduler refused",
                   absl::AbortedError("another musterd has taken over the store"));
    MUSTER_CHECK(transaction.commit == database_->last_commit + 1);
    if (real_ != nullptr) {
      if (absl::Status status = real_->Commit(transaction); !status.ok()) {
        shared_->checker.Violate(shared_->heap.now_ns(),
                                 "the real store refuses a commit: " + status.ToString());
        failed_ = true;
        return status;
      }
    }
    database_->last_commit = transaction.commit;
    for (const RowChange& row : transaction.rows) {
      if (row.bytes.has_value()) {
        database_->rows[{row.kind, row.id}] = *row.bytes;
      } else {
        database_->rows.erase({row.kind, row.id});
      }
    }
    database_->adopt = false;
    for (const std::string& event : transaction.events) shared_->Digest(event);
    if (alone_) {
      shared_->checker.OnCommitAlone(transaction, database_->rows);
    } else {
      shared_->checker.OnCommit(transaction, shared_->heap.now_ns());
    }
    if (Due(&database_->fails_done))
      return Fails("commits that failed with effect", absl::InternalError("disk I/O error"));
    if (Due(&database_->dies_after)) Die("schedulers killed after a commit");
    return absl::OkStatus();
  }

 private:
  absl::Status Fails(Counter counter, absl::Status status) {
    ++shared_->counters[counter];
    failed_ = true;
    return status;
  }
  [[noreturn]] void Die(Counter counter) {
    ++shared_->counters[counter];
    throw SchedulerDies();
  }

  Shared* const shared_;
  Database* database_;
  bool alone_ = false;
  const std::unique_ptr<SqliteStore> real_;  // nullptr: none
  const uint64_t epoch_;
  const std::string instance_;
  bool failed_ = false;  // as the real one: after an error it refuses everything
};

Scheduler::Scheduler(Shared* shared, Database* database, Network* network, const Setup& setup,
                     uint64_t seed, std::function<void(Scheduler*)> died)
    : shared_(shared),
      database_(database),
      network_(network),
      refused_plans_(setup.refused_plans),
      died_(std::move(died)),
      random_(seed) {
  const bool adopts = database_->adopt;
  std::unique_ptr<SqliteStore> real = Open();
  database_->instance = NewId(&random_);
  shared_->checker.OnEpoch(shared_->heap.now_ns(), database_->epoch);
  shared_->checker.OnRecovered(shared_->heap.now_ns());
  absl::StatusOr<State> state = State::Load(RowsOf(*database_));
  MUSTER_CHECK_MSG(state.ok(), state.status().ToString().c_str());
  clock_ = std::make_unique<SchedulerClock>(this);
  store_ = std::make_unique<FaultyStore>(shared_, database_, std::move(real));
  SessionOptions session_options;
  session_options.store_id = database_->store_id;
  session_options.epoch = database_->epoch;
  session_options.lease_ns = shared_->config.lease_ns;
  session_options.heartbeat_ns = shared_->config.heartbeat_ns;
  session_options.adopts = adopts;
  session_options.mac_key = "one master key for the store and its clones";
  session_options.on_unproved = [this](const pb::Hello& hello) {
    shared_->checker.Violate(shared_->heap.now_ns(),
                             absl::StrCat("contract 19: what ", hello.cluster(), "/", hello.host(),
                                          " was told is not believed"));
  };
  session_options.on_restored = [this](uint64_t, uint64_t) {
    if (!alone_)
      shared_->checker.Violate(shared_->heap.now_ns(),
                               "contract 19: a store that nobody restored is taken for a backup");
    read_only_ = true;
    ++shared_->counters["schedulers that an agent told of a cloned store"];
  };
  session_options.new_id = [this] { return NewId(&random_); };
  sessions_ = std::make_unique<Sessions>(session_options, clock_.get());
  EngineOptions options;
  options.scheduling = setup.scheduling;
  options.epoch = database_->epoch;
  options.last_commit = database_->last_commit;
  options.awaits_hosts = [this](const State& now) { return sessions_->AwaitsHosts(now); };
  options.refused_plans_directory = refused_plans_;
  options.end_process = [] { throw SchedulerDies(); };
  const bool first = state->queue_version() == 0;
  State after = *state;
  engine_ = std::make_unique<Engine>(options, clock_.get(), store_.get(), sessions_.get(),
                                     *std::move(state));
  sessions_->Attach(engine_.get());
  if (adopts) {
    pb::Event adopted;
    adopted.mutable_store_adopted()->set_epoch(database_->epoch);
    engine_->Post(std::move(adopted));
  }
  if (first) {
    pb::Event configured;
    *configured.mutable_clusters_configured()->mutable_file() = setup.clusters;
    Apply(&after, configured);
    engine_->Post(std::move(configured));
    const QueueResolution resolution = ResolveQueues(after, setup.queues);
    MUSTER_CHECK(resolution.ok());
    pb::Event applied;
    *applied.mutable_queues_applied()->mutable_tree() = resolution.resolved;
    applied.mutable_queues_applied()->set_version(1);
    engine_->Post(std::move(applied));
  }
  engine_->Observe([this](const StepRecord& step) {
    if (!alone_) shared_->checker.OnPlan(shared_->heap.now_ns(), *step.view->plan);
    if (random_.OneIn(200)) Compare();
  });
  network_->Listen(this);
  shared_->heap.After(0, [this, life = life_] {
    if (*life) Tick();
  });
  Wake();
}

Scheduler::~Scheduler() {
  *life_ = false;
  std::unique_ptr<Engine> engine = std::move(engine_);  // whom it answers now sees nobody alive
}

// The real store, if the database has one: what it holds has to be what was committed.
std::unique_ptr<SqliteStore> Scheduler::Open() {
  if (database_->sqlite.empty()) {
    database_->epoch = database_->adopt ? AdoptedEpoch(database_->epoch, shared_->heap.now_ns())
                                        : database_->epoch + 1;
    return nullptr;
  }
  StoreOptions options;
  options.directory = database_->sqlite;
  options.allow_any_file_system = true;
  Recovered recovered;
  absl::StatusOr<std::unique_ptr<SqliteStore>> store = SqliteStore::Open(options, &recovered);
  MUSTER_CHECK_MSG(store.ok(), store.status().ToString().c_str());
  database_->store_id = recovered.store_id;
  database_->epoch = recovered.epoch;
  std::map<std::pair<std::string, std::string>, std::string> rows;
  for (const RowChange& row : recovered.rows) rows[{row.kind, row.id}] = *row.bytes;
  if (rows != database_->rows || recovered.last_commit != database_->last_commit) {
    shared_->checker.Violate(shared_->heap.now_ns(),
                             "S4 the store holds other rows than were committed");
  }
  ++shared_->counters["starts from the real store"];
  return *std::move(store);
}

bool Scheduler::owns_store() const { return alive() && !alone_ && store_->Owns(); }

void Scheduler::ServeAlone(Database* its_own) {
  alone_ = true;
  store_->ServeAlone(its_own);
}

template <typename F>
void Scheduler::Guard(F f) {
  try {
    f();
  } catch (const SchedulerDies&) {
    Die();
  }
}

void Scheduler::Die() {
  if (!alive()) return;
  *life_ = false;
  CheckRefusedPlans();
  network_->Died(this);
  // Not while it answers those who wait: a dead process answers nobody.
  std::unique_ptr<Engine> engine = std::move(engine_);
  engine = nullptr;
  sessions_ = nullptr;
  store_ = nullptr;
  pause_.Die();
  shared_->heap.After(0, [this] { died_(this); });
}

void Scheduler::Pause(int64_t until_ns) {
  if (!alive()) return;
  ++shared_->counters["schedulers paused"];
  pause_.Until(until_ns);
}

void Scheduler::Received(const std::shared_ptr<AgentStream>& stream, int32_t host,
                         const pb::AgentMessage& message) {
  if (!alive()) return;
  if (pause_.now())
    return pause_.Defer([this, stream, host, message] { Received(stream, host, message); });
  if (owns_store() && !message.has_hello())
    shared_->checker.OnHeard(shared_->heap.now_ns(), name_of(host), message.session().epoch());
  if (owns_store() && message.has_checkpoint())
    shared_->checker.OnCheckpointReport(message.checkpoint());
  if (owns_store() && message.has_checked())
    shared_->checker.OnCheckAnswer(shared_->heap.now_ns(), name_of(host), message);
  const absl::Status status = sessions_->Receive(stream, message);
  MUSTER_CHECK_MSG(status.ok(), status.ToString().c_str());
  Wake();
}

void Scheduler::Closed(const AgentStream* stream) {
  if (!alive()) return;
  if (pause_.now()) return pause_.Defer([this, stream] { Closed(stream); });
  sessions_->Closed(stream);
}

void Scheduler::Sends(int32_t host, const pb::SchedulerMessage& message) {
  if (read_only_ && !message.has_refused()) {
    shared_->checker.Violate(
        shared_->heap.now_ns(),
        absl::StrCat("contract 19: goes on although an agent has seen a later store: ",
                     message.ShortDebugString()));
  }
  if (owns_store()) {
    shared_->checker.OnDispatch(shared_->heap.now_ns(), name_of(host), message);
    if (shared_->sends != nullptr) shared_->sends(message);
    if (sends != nullptr) sends(host, message);
  } else {
    shared_->checker.OnStaleDispatch(shared_->heap.now_ns(), name_of(host), message, alone_);
  }
}

void Scheduler::Wake() {
  if (!alive() || step_planned_) return;
  step_planned_ = true;
  shared_->heap.After(random_.Between(kMillisecond / 5, 3 * kMillisecond), [this, life = life_] {
    if (*life) Step();
  });
}

void Scheduler::Step() {
  step_planned_ = false;
  if (pause_.now()) return pause_.Defer([this] { Wake(); });
  Guard([&] {
    while (engine_->Step()) {
    }
  });
  if (alive()) Look();
  if (alive() && engine_->Stats().refused_plans > 0) CheckRefusedPlans();
}

void Scheduler::CheckRefusedPlans() {
  std::error_code error;
  for (const auto& reproducer : std::filesystem::directory_iterator(refused_plans_, error)) {
    const std::string text = ReadFile(reproducer.path().string() + "/plan.txt").value_or("");
    shared_->checker.Violate(shared_->heap.now_ns(), absl::StrCat("contract 20: a plan was ",
                                                                  text.substr(0, text.find('\n'))));
  }
}

// Wakes it when it wants to look although nothing happens.
void Scheduler::Look() {
  const int64_t wake_ns = engine_->NextWakeNs();
  if (wake_ns == INT64_MAX) return;
  const int64_t at_ns = shared_->heap.now_ns() + std::max(wake_ns - engine_->NowNs(), kMillisecond);
  if (wake_ns_ > shared_->heap.now_ns() && wake_ns_ <= at_ns) return;  // a timer is set already
  wake_ns_ = at_ns;
  shared_->heap.At(at_ns, [this, life = life_] {
    if (*life) Wake();
  });
}

void Scheduler::Tick() {
  if (pause_.now()) return pause_.Defer([this] { Tick(); });
  // As musterd does.
  const int64_t tick_ns = std::min(kSecond, shared_->config.heartbeat_ns / 2);
  const int64_t now_ns = shared_->heap.now_ns();
  if (ticked_ns_ != 0 && now_ns - ticked_ns_ > tick_ns + shared_->config.lease_ns / 2) {
    ++shared_->counters["schedulers that stood still"];
    sessions_->StoodStill();
  }
  ticked_ns_ = now_ns;
  sessions_->Tick();
  Wake();
  shared_->heap.After(tick_ns, [this, life = life_] {
    if (*life) Tick();
  });
}

std::vector<std::string> Scheduler::Held() const {
  std::vector<std::string> held;
  if (!alive()) return held;
  const State& state = engine_->Snapshot()->state;
  for (const HostId id : state.hosts()) {
    const HostRow& host = state.host(id);
    int64_t milli = 0;
    for (const int64_t used_milli : host.device_used_milli) milli += used_milli;
    if (milli == 0 && host.cpus_used_milli == 0 && host.memory_used_bytes == 0 &&
        host.disk_used_bytes == 0 && host.attempts.empty() && host.reserved.empty())
      continue;
    held.push_back(absl::StrCat("the scheduler counts ", milli, " thousandths of devices of ",
                                state.HostName(id), " as used, by ", host.attempts.size(),
                                " attempts, and keeps some for ", host.reserved.size()));
  }
  return held;
}

// Memory equals what a restart would read.
void Scheduler::Compare() {
  if (!owns_store()) return;
  const absl::StatusOr<State> stored = State::Load(RowsOf(*database_));
  ++shared_->counters["compared with the store"];
  const std::string difference = stored.ok()
                                     ? State::Difference(engine_->Snapshot()->state, *stored)
                                     : stored.status().ToString();
  if (!difference.empty())
    shared_->checker.Violate(shared_->heap.now_ns(),
                             "memory differs from the store: " + difference);
}

}  // namespace muster::sim::faults
