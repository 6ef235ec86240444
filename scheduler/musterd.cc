// musterd: the scheduler's daemon. Wiring, nothing else.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <mimalloc.h>
#include <poll.h>
#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/leave_no_core.h"
#include "common/base/log.h"
#include "common/base/parse_flags.h"
#include "common/base/signals.h"
#include "common/base/units.h"
#include "network/log/grpc_log.h"
#include "scheduler/access/audit.h"
#include "scheduler/access/owners.h"
#include "scheduler/access/policy.h"
#include "scheduler/access/principal.h"
#include "scheduler/access/users.h"
#include "scheduler/administer.h"
#include "scheduler/agents/fencer.h"
#include "scheduler/agents/seen_mac.h"
#include "scheduler/agents/sessions.h"
#include "scheduler/api/guard.h"
#include "scheduler/api/jobs_of_users.h"
#include "scheduler/api/metrics.h"
#include "scheduler/api/metrics_server.h"
#include "scheduler/api/network_server.h"
#include "scheduler/api/outlook.h"
#include "scheduler/api/server.h"
#include "scheduler/api/watch.h"
#include "scheduler/ask/ask.h"
#include "scheduler/engine/engine.h"
#include "scheduler/log_in.h"
#include "scheduler/settings.h"
#include "scheduler/store/history.h"
#include "scheduler/store/packs.h"
#include "scheduler/store/place.h"
#include "scheduler/store/secrets.h"
#include "scheduler/store/store.h"
#include "scheduler/trust/office.h"

#ifndef MUSTER_VERSION
#define MUSTER_VERSION "unknown"
#endif

namespace muster {
namespace {

constexpr char kMasterKeyName[] = "musterd.master-key";  // systemd's credential

// Null where the configuration wants none.
absl::StatusOr<std::unique_ptr<MetricsServer>> ServeMetrics(const MusterdConfig& config,
                                                            const ApiContext& context) {
  if (config.metrics_listen.empty()) return std::unique_ptr<MetricsServer>();
  // The only route; it asks nothing of whoever reaches the address, which is a loopback one.
  MUSTER_CHECK(RouteOf(MetricsServer::kPath).policy().right() == pb::RIGHT_ANYBODY);
  const auto render = [&context, directory = config.data_dir,
                       started_ns = context.clock->MonotonicNs()] {
    const std::shared_ptr<const View> view = context.engine->Snapshot();
    const StoreBytes store = StoreBytesIn(directory);
    MetricsInput input;
    input.view = view.get();
    input.stats = context.engine->Stats();
    input.now_ns = std::max(view->now_ns, context.clock->WallNs());
    input.uptime_ns = context.clock->MonotonicNs() - started_ns;
    input.version = context.version;
    input.takes_submissions = WhyNoSubmissions(context).empty();
    input.agent_sessions = static_cast<int64_t>(context.sessions->Connected());
    input.unproved_hellos = context.sessions->Unproved();
    input.agent_rests = context.sessions->Rests();
    if (context.guard->audit() != nullptr) input.audit_bytes = context.guard->audit()->bytes();
    input.database_bytes = store.database;
    input.wal_bytes = store.wal;
    if (context.providers != nullptr) input.logins = context.providers->Counts();
    if (context.network_counts) input.network = context.network_counts();
    return RenderMetrics(input);
  };
  absl::StatusOr<std::unique_ptr<MetricsServer>> server =
      MetricsServer::Start(config.metrics_listen, render, context.clock);
  if (!server.ok()) {
    return absl::UnavailableError(
        absl::StrCat("metrics_listen: ", server.status().message(),
                     ". Name a port that is free (0: any), or leave the key out"));
  }
  LogInfo("metrics",
          {{"url", absl::StrCat("http://",
                                config.metrics_listen.substr(0, config.metrics_listen.find(':')),
                                ":", (*server)->port(), "/metrics")}});
  return server;
}

// Until SIGTERM or SIGINT; ticks the leases meanwhile.
void WaitForSignal(int signals, Sessions* sessions, Fencer* fencer, Clock* clock,
                   const SessionOptions& options) {
  const int64_t tick_ns = std::min<int64_t>(kSecond, options.heartbeat_ns / 2);
  int64_t ticked_ns = clock->BootNs();
  pollfd fd{signals, POLLIN, 0};
  while (poll(&fd, 1, static_cast<int>(tick_ns / kMillisecond)) <= 0) {
    const int64_t now_ns = clock->BootNs();
    if (now_ns - ticked_ns > tick_ns + options.lease_ns / 2) sessions->StoodStill();
    ticked_ns = now_ns;
    sessions->Tick();
    fencer->Look();
  }
}

// Empty: it can be served.
std::string WhyNotServe(const MusterdConfig& config) {
  if (config.data_dir.empty())
    return "no data_dir: give --data-dir DIR, or --config musterd.yaml with data_dir:";
  if (config.listen.empty())
    return "nowhere to listen: give --listen unix:///PATH, or --config musterd.yaml with listen:";
  return WhyNotListen(config.listen);
}

// What a start reads: the store, and what the configuration changes of it.
struct Start {
  std::unique_ptr<SqliteStore> store;
  Recovered recovered;  // its rows are in `state`
  State state;
  std::vector<pb::Event> first;  // events for the engine's first step
};

absl::StatusOr<Start> ReadStore(const MusterdConfig& config, bool adopt_restored) {
  Start start;
  StoreOptions options;
  options.directory = config.data_dir;
  options.journal_retention_ns = config.journal_retention_ns;
  options.history_retention_ns = config.history_retention_ns;
  options.adopt_restored = adopt_restored;
  absl::StatusOr<std::unique_ptr<SqliteStore>> store = SqliteStore::Open(options, &start.recovered);
  if (!store.ok()) return store.status();
  start.store = *std::move(store);
  absl::StatusOr<State> state = State::Load(start.recovered.rows);
  if (!state.ok()) {
    return absl::DataLossError(
        absl::StrCat(config.data_dir, ": ", state.status().message(),
                     ". Keep the file, and restore the newest backup into data_dir"));
  }
  start.state = *std::move(state);
  start.recovered.rows.clear();
  if (adopt_restored)
    start.first.emplace_back().mutable_store_adopted()->set_epoch(start.recovered.epoch);
  return start;
}

// What the audit says of a host that claims to have seen what it can't show.
pb::AuditRecord DenialOf(const pb::Hello& hello, int64_t now_ns) {
  const std::string host = absl::StrCat(hello.cluster(), "/", hello.host());
  pb::AuditRecord record;
  record.set_at_ns(now_ns);
  record.set_user("host " + host);
  record.set_uid(Principal().uid);
  record.set_method("AgentService/Connect");
  record.set_object(host);
  record.set_outcome(absl::StatusCodeToString(absl::StatusCode::kFailedPrecondition));
  record.set_detail(absl::StrCat("claims to have seen epoch ", hello.epoch_seen(), " and commit ",
                                 hello.commit_seen(), " of this store, without their MAC"));
  return record;
}

// `office` and `audit` as of Run; office may be null.
SessionOptions OptionsOfSessions(const MusterdConfig& config, const Start& start,
                                 bool adopt_restored, const Office* office, Audit* audit) {
  SessionOptions options;
  options.store_id = start.recovered.store_id;
  options.epoch = start.recovered.epoch;
  options.lease_ns = config.lease_ns;
  options.heartbeat_ns = config.heartbeat_ns;
  options.adopts = adopt_restored;
  options.several_users = !config.single_user;
  if (office != nullptr) options.mac_key = office->KeyFor(kSeenMacPurpose);
  options.on_unproved = [audit](const pb::Hello& hello) {
    audit->Add(DenialOf(hello, RealClock()->WallNs()));
  };
  pb::ClusterFile clusters = start.state.cluster_file();
  for (const pb::Event& event : start.first) {
    if (event.has_clusters_configured()) clusters = event.clusters_configured().file();
  }
  options.keep_to_sku = [skus = std::make_shared<const HostSkus>(std::move(clusters))](
                            const std::string& cluster, const std::string& host,
                            pb::Inventory* inventory) {
    return skus->Keep(cluster, host, inventory);
  };
  return options;
}

EngineOptions OptionsOfEngine(const MusterdConfig& config, const Recovered& recovered,
                              Sessions* sessions) {
  EngineOptions options;
  options.scheduling = OptionsOf(config);
  options.epoch = recovered.epoch;
  options.last_commit = recovered.last_commit;
  options.awaits_hosts = [sessions](const State& now) { return sessions->AwaitsHosts(now); };
  options.refused_plans_directory = config.data_dir + "/refused-plans";
  return options;
}

// Reads the whole store beside the daemon, and says so if it is damaged.
class StoreCheck {
 public:
  explicit StoreCheck(const std::string& directory)
      : thread_([this, directory] {
          if (absl::Status status = CheckStore(directory, &stop_);
              !status.ok() && !absl::IsCancelled(status)) {
            LogError("the store is damaged: stop musterd and restore a backup",
                     {{"error", std::string(status.message())}});
          }
        }) {}
  ~StoreCheck() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

constexpr char kSecrets[] = "secrets";                    // below data_dir
constexpr char kPacks[] = "packs";                        // below data_dir
constexpr auto kCollectEvery = std::chrono::minutes(10);  // what no job needs any more

// Removes packed directories once no job has needed them for so long.
class PackCollector {
 public:
  PackCollector(PackStore* packs, const Engine* engine, int64_t keep_ns)
      : thread_([this, packs, engine, keep_ns] {
          std::unique_lock lock(mutex_);
          do {
            packs->Collect(PacksOf(engine->Snapshot()->state), keep_ns);
          } while (!changed_.wait_for(lock, kCollectEvery, [this] { return stop_; }));
        }) {}
  ~PackCollector() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;
};

// The key is asked for, and made, once there is a secret.
absl::StatusOr<std::unique_ptr<SecretStore>> OpenSecrets(const MusterdConfig& config) {
  std::string path = config.master_key;
  const char* credentials = std::getenv("CREDENTIALS_DIRECTORY");
  const bool is_credential = path.empty() && credentials != nullptr;
  if (is_credential) path = absl::StrCat(credentials, "/", kMasterKeyName);
  return SecretStore::Open(
      absl::StrCat(config.data_dir, "/", kSecrets),
      [path, is_credential, data_dir = config.data_dir](bool make) -> absl::StatusOr<std::string> {
        if (path.empty()) {
          return absl::FailedPreconditionError(
              "this musterd keeps no secrets, as it has no key to seal them with; master_key: in "
              "its musterd.yaml names a file for one, outside data_dir");
        }
        return ReadMasterKey(path, data_dir, make && !is_credential);
      });
}

// Null where the configuration has no tls. Posts the first authority where there is none yet.
absl::StatusOr<std::unique_ptr<Office>> OpenOffice(const MusterdConfig& config, const State& state,
                                                   Clock* clock, std::vector<pb::Event>* first) {
  if (config.tls.listen.empty()) return std::unique_ptr<Office>();
  std::string path = config.master_key;
  const char* credentials = std::getenv("CREDENTIALS_DIRECTORY");
  const bool has_authority = !state.trust().trust_id.empty();
  if (path.empty() && credentials != nullptr) {
    path = absl::StrCat(credentials, "/", kMasterKeyName);
    std::error_code error;
    // systemd's to make, not ours.
    if (!has_authority && !std::filesystem::exists(path, error)) path.clear();
  }
  if (path.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("master_key: name a file outside data_dir, or give systemd's credential ",
                     kMasterKeyName, " (systemd-creds encrypt)"));
  }
  const absl::StatusOr<std::string> key = ReadMasterKey(path, config.data_dir, !has_authority);
  if (!key.ok()) return key.status();
  CertificateLives lives;
  lives.host_ns = config.tls.host_life_ns;
  lives.user_ns = config.tls.user_life_ns;
  lives.server_ns = config.tls.server_life_ns;
  auto office = std::make_unique<Office>(*key, lives);
  if (has_authority) {
    if (absl::Status status = office->CheckKey(state.trust()); !status.ok()) return status;
  } else {
    first->push_back(office->Make(clock->WallNs()));
  }
  return office;
}

// Null where the configuration has no tls.
absl::StatusOr<std::unique_ptr<NetworkServer>> ServeNetwork(const MusterdConfig& config,
                                                            ApiContext* context, WatchHub* hub) {
  if (context->office == nullptr) return std::unique_ptr<NetworkServer>();
  auto server = std::make_unique<NetworkServer>(context, hub);
  context->in_use = [at = server.get()](const std::string& serial) { return at->InUse(serial); };
  context->network_counts = [at = server.get()] { return at->Counts(); };
  if (absl::Status status = server->Listen(config.tls.listen, config.tls.join); !status.ok())
    return absl::Status(status.code(), absl::StrCat("tls: ", status.message()));
  LogInfo("network", {{"port", server->port()},
                      {"join_port", server->join_port()},
                      {"trust", context->engine->Snapshot()->state.trust().trust_id}});
  return server;
}

// Serves until a signal; the exit code.
int Serve(const MusterdConfig& config, const Recovered& recovered,
          const SessionOptions& session_options, const ApiContext& context, ApiServer* server,
          Fencer* fencer, int signals) {
  const std::string path(absl::StripPrefix(config.listen, "unix://"));
  absl::StatusOr<std::unique_ptr<MetricsServer>> metrics = ServeMetrics(config, context);
  if (!metrics.ok()) return Fail(std::string(metrics.status().message()));
  // Whoever is nobody here is refused by the Guard, in words.
  if (absl::Status status = server->Listen(path, config.single_user ? 0600 : 0666); !status.ok())
    return Fail(std::string(status.message()));
  LogInfo("ready", {{"socket", path},
                    {"version", MUSTER_VERSION},
                    {"epoch", recovered.epoch},
                    {"commit", recovered.last_commit},
                    {"store", recovered.store_id},
                    {"jobs", context.engine->Snapshot()->state.active_jobs().size()},
                    {"single_user", config.single_user}});
  {
    const StoreCheck check(config.data_dir);
    WaitForSignal(signals, context.sessions, fencer, context.clock, session_options);
    LogInfo("stopping", {});
    fencer->Stop();
  }
  metrics->reset();  // takes up to 2 s, while everybody else is still served
  return 0;
}

std::vector<ListedUser> ListedUsers(const MusterdConfig& config) {
  std::vector<ListedUser> users;
  for (const MusterdUser& user : config.users) users.push_back({user.name, user.uid, user.groups});
  return users;
}

std::string WhatToDoWithAudit(const absl::Status& status) {
  return absl::StrCat(status.message(),
                      absl::IsDataLoss(status)
                          ? ". Keep the folder for whoever looks into it, and move it away: a new "
                            "audit begins"
                          : "");
}

absl::StatusOr<std::unique_ptr<Audit>> OpenAudit(const MusterdConfig& config, Clock* clock) {
  AuditOptions options;
  options.retention_ns = config.audit_retention_ns;
  options.most_bytes = config.audit_bytes;
  options.clock = clock;
  return Audit::Open(config.data_dir + "/audit", options);
}

absl::StatusOr<std::unique_ptr<PackStore>> OpenPacks(const MusterdConfig& config, Clock* clock) {
  PackLimits limits;
  limits.owner_bytes = config.packed_per_user_bytes;
  return PackStore::Open(absl::StrCat(config.data_dir, "/", kPacks), limits, clock);
}

ApiContext ContextOf(const MusterdConfig& config, const Recovered& recovered) {
  ApiContext context;
  context.defaults = config.defaults;
  context.store_id = recovered.store_id;
  context.epoch = recovered.epoch;
  context.version = MUSTER_VERSION;
  context.single_user = config.single_user;
  context.operators_exec = config.operators_exec;
  context.addresses = config.tls.addresses;
  context.join_address = config.tls.join_address;
  return context;
}

int Run(const MusterdConfig& config, bool adopt_restored) {
  if (const std::string why = WhyNotServe(config); !why.empty()) return Fail(why);
  const int signals = ReadEndSignals();
  umask(077);
  LeaveNoCore();  // it would hold keys and secrets

  Clock* const clock = RealClock();
  absl::StatusOr<Start> start = ReadStore(config, adopt_restored);
  if (!start.ok()) return Fail(std::string(start.status().message()));
  if (!FirstEvents(config, start->state, &start->first)) return 2;
  const absl::StatusOr<std::unique_ptr<Office>> office =
      OpenOffice(config, start->state, clock, &start->first);
  if (!office.ok()) return Fail(std::string(office.status().message()));
  const absl::StatusOr<std::unique_ptr<Audit>> audit = OpenAudit(config, clock);
  if (!audit.ok()) return Fail(WhatToDoWithAudit(audit.status()));
  const SessionOptions session_options =
      OptionsOfSessions(config, *start, adopt_restored, office->get(), audit->get());
  Sessions sessions(session_options, clock);
  RoomWatch room(config.data_dir, clock);
  EngineOptions engine_options = OptionsOfEngine(config, start->recovered, &sessions);
  engine_options.takes_submissions = [&room] { return room.Why().empty(); };
  Users users(ListedUsers(config), geteuid(), config.single_user, clock);
  Owners owners([&users](const std::string& name) { return users.Named(name); }, clock);
  engine_options.may_submit = [&owners](const State& state, const std::string& owner,
                                        const std::string& queue) {
    return owners.MaySubmit(state, owner, queue);
  };
  Engine engine(engine_options, clock, start->store.get(), &sessions, std::move(start->state));
  sessions.Attach(&engine);
  for (pb::Event& event : start->first) engine.Post(std::move(event));
  sessions.Tick();  // hosts that nobody heard yet are silent
  engine.Step();
  absl::StatusOr<std::unique_ptr<StoreHistory>> history = StoreHistory::Open(config.data_dir);
  if (!history.ok()) return Fail(std::string(history.status().message()));
  WatchHub hub(&engine);
  engine.Observe(hub.observer());

  Fencer fencer(&engine, &sessions, clock, config.lease_ns);
  Outlook outlook(&engine, clock, engine_options.scheduling);

  const absl::StatusOr<std::unique_ptr<PackStore>> packs = OpenPacks(config, clock);
  if (!packs.ok()) return Fail(std::string(packs.status().message()));
  const absl::StatusOr<std::unique_ptr<SecretStore>> secrets = OpenSecrets(config);
  if (!secrets.ok()) return Fail(std::string(secrets.status().message()));
  // A job that has ended long ago is forgotten by now; one that is submitted just now isn't known.
  const PackCollector collector(packs->get(), &engine,
                                std::max(config.history_retention_ns, kHour));
  const std::unique_ptr<Providers> providers = OpenProviders(config, &users, clock);
  Guard guard({&engine, history->get(), &users, audit->get(), clock});
  JobsOfUsers jobs_of_users(config.jobs_per_user);

  ApiContext context = ContextOf(config, start->recovered);
  context.outlook = &outlook;
  context.packs = packs->get();
  context.secrets = secrets->get();
  context.jobs_of_users = &jobs_of_users;
  context.guard = &guard;
  context.engine = &engine;
  context.sessions = &sessions;
  context.history = history->get();
  context.clock = clock;
  context.scheduling = engine_options.scheduling;
  context.office = office->get();
  context.providers = providers.get();
  context.why_no_submissions = [&room, &engine] {
    const std::string why = engine.WhyNotServing();
    return why.empty() ? room.Why() : why;
  };
  ApiServer server(&context, &hub);
  const absl::StatusOr<std::unique_ptr<NetworkServer>> network =
      ServeNetwork(config, &context, &hub);
  if (!network.ok()) return Fail(std::string(network.status().message()));
  std::thread stepping([&engine] { engine.Run(); });
  const int result =
      Serve(config, start->recovered, session_options, context, &server, &fencer, signals);
  if (providers != nullptr) providers->Stop();
  if (*network != nullptr) (*network)->Shutdown();
  server.Shutdown();  // calls that wait for a commit still get their answer
  outlook.Stop();
  engine.Stop();
  stepping.join();
  hub.Stop();
  close(signals);
  if (result == 0) LogInfo("stopped", {{"commit", engine.Snapshot()->commit}});
  return result;
}

// What a submission costs less by it, of 110 us (decision 026).
void TuneLibraries() {
  // gRPC takes TLS 1.2, too, and has no setting for it: with these ciphers alone, which need
  // another kind of key than ours, 1.2 can't be agreed on. Those of 1.3 are not touched.
  setenv("GRPC_SSL_CIPHER_SUITES", "ECDHE-RSA-AES256-GCM-SHA384", 1);
  absl::SetMutexDeadlockDetectionMode(
      absl::OnDeadlockCycle::kIgnore);  // 2 us: Debian's looks for cycles at every lock, gRPC's own
                                        // included
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  // 6 us: what a burst gives back is asked for again within the second.
#if MI_MALLOC_VERSION < 210
  mi_option_set(mi_option_decommit_delay, 1000);
#else
  mi_option_set(mi_option_purge_delay, 1000);
#endif
#endif
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  muster::Flags flags;
  CLI::App app{"The scheduler's daemon.", "musterd"};
  app.set_version_flag("--version", MUSTER_VERSION);
  app.add_option("--config", flags.config, "musterd.yaml; flags go before it");
  app.add_option("--data-dir", flags.data_dir, "Directory of the store, on a local disk");
  app.add_option("--listen", flags.listen, "unix:///PATH of the socket");
  app.add_option("--clusters", flags.clusters, "clusters.yaml, applied at each start");
  app.add_option("--queues", flags.queues, "queues.yaml, read into an empty store only");
  app.add_flag(
      "--adopt-restored", flags.adopt_restored,
      "The store is a backup that was restored, or a copy: go on from it (docs/runbook.md)");
  app.add_option("--master-key", flags.master_key,
                 "File of the key that seals secrets and the authority, outside of the store's "
                 "directory; made where it is needed");
  app.add_flag("--single-user", flags.single_user, "Serve only the user who started it");
  app.add_option("--log-level", flags.log_level, "debug, info, warn or error");
  std::string file;
  CLI::App* const backup =
      app.add_subcommand("backup", "Copy the store into a new file; musterd may run");
  backup->add_option("file", file, "The new file")->required();
  CLI::App* const verify =
      app.add_subcommand("verify", "Check the store or a backup of it; musterd may run");
  verify->add_option("file", file, "A backup; else the store of data_dir");
  CLI::App* const replay = app.add_subcommand(
      "replay", "Decide the whole journal again and compare each plan; musterd may run");
  replay->add_option("file", file,
                     "A backup, or a folder of refused-plans; else the store of data_dir");
  for (CLI::App* command : {backup, verify, replay}) command->fallthrough();
  app.require_subcommand(0, 1);
  if (const std::optional<int> code = muster::ParseFlags(app, argc, argv); code.has_value())
    return *code;
  muster::LogLevel level;
  if (!muster::ParseLogLevel(flags.log_level, &level))
    return muster::Fail("--log-level must be debug, info, warn or error");
  muster::SetLogLevel(level);
  muster::MusterdConfig config;
  if (!muster::ReadConfig(flags, &config)) return 2;
  if (!app.get_subcommands().empty())
    return muster::Administer(app.get_subcommands().front()->get_name(), file, config);
  muster::TuneLibraries();
  muster::RouteGrpcLog();
  return muster::Run(config, flags.adopt_restored);
}
