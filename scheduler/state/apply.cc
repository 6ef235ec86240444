// Apply: what users, operators and plans say. What hosts say is in apply_reports.cc; the ledger's
// time in ledger.cc.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/units.h"
#include "scheduler/state/applier.h"

namespace muster {

namespace {

// Of newest_done_: tasks of equal owner and names are expected to run alike.
std::string DoneKey(const JobRow& job, int32_t task) {
  std::string key = IdempotencyIndexKey(job.owner, job.spec->name());
  key.push_back('\0');
  return key.append(job.task_spec(task).name());
}

}  // namespace

void Apply(State* state, const pb::Event& event) { Applier(state).Apply(event); }

int LedgerClassOf(std::string_view name) {
  for (int c = 0; c < static_cast<int>(std::size(kLedgerClasses)); ++c) {
    if (name == kLedgerClasses[c]) return c;
  }
  return -1;
}

HostSlice ToSlice(const State& state, std::string_view cluster, const pb::Placement& placement) {
  HostSlice slice;
  slice.host = state.FindHost(cluster, placement.host());
  slice.workers = placement.workers();
  slice.devices.assign(placement.devices().begin(), placement.devices().end());
  slice.device_milli.assign(placement.device_milli().begin(), placement.device_milli().end());
  return slice;
}

PartRow ToPart(const State& state, std::string_view cluster, const pb::Placement& placement) {
  HostSlice slice = ToSlice(state, cluster, placement);
  PartRow part;
  part.host = slice.host;
  part.first_group_rank = placement.first_group_rank();
  part.workers = slice.workers;
  part.devices = std::move(slice.devices);
  part.device_milli = std::move(slice.device_milli);
  return part;
}

int64_t DevicesMilli(const AttemptRow& attempt, const pb::TaskSpec& task) {
  return attempt.workers * task.resources().gpus_milli();
}

void Applier::Apply(const pb::Event& event) {
  Carry(event);
  for (const uint64_t number : written_) IndexWaiting(number);
  written_.clear();
}

void Applier::Carry(const pb::Event& event) {
  switch (event.body_case()) {
    case pb::Event::kStep:
      return On(event.step());
    case pb::Event::kJobSubmitted:
      return On(event.job_submitted());
    case pb::Event::kJobCancel:
      return On(event.job_cancel());
    case pb::Event::kQueuesApplied:
      SetQueues(event.queues_applied().tree());
      s_.queue_version_ = std::max(s_.queue_version_ + 1, event.queues_applied().version());
      NewRound();
      return;
    case pb::Event::kClustersConfigured:
      SetClusters(event.clusters_configured().file());
      NewRound();
      for (int32_t c = 0; c < static_cast<int32_t>(s_.clusters_->size()); ++c) Reconsider(c);
      return;
    case pb::Event::kDrainChanged:
      return On(event.drain_changed());
    case pb::Event::kHostConfirmedOff:
      return On(event.host_confirmed_off());
    case pb::Event::kStoreAdopted:
      return On(event.store_adopted());
    case pb::Event::kHostHello:
      return On(event.host_hello());
    case pb::Event::kHostState:
      return On(event.host_state());
    case pb::Event::kAttemptReported:
      return On(event.attempt_reported());
    case pb::Event::kGangPrepared:
      return On(event.gang_prepared());
    case pb::Event::kCheckpointSeen:
      return On(event.checkpoint_seen());
    case pb::Event::kProgressSeen:
      return On(event.progress_seen());
    case pb::Event::kExportStaged:
      return On(event.export_staged());
    case pb::Event::kExportPublished:
      return On(event.export_published());
    case pb::Event::kLoadedSeen:
      return On(event.loaded_seen());
    case pb::Event::kAttemptPlaced:
      return On(event.attempt_placed());
    case pb::Event::kAttemptStopping:
      return On(event.attempt_stopping());
    case pb::Event::kAttemptLost:
      return On(event.attempt_lost());
    case pb::Event::kClusterOpened:
      return On(event.cluster_opened());
    case pb::Event::kTaskFailed:
      return On(event.task_failed());
    case pb::Event::kReservation:
      return On(event.reservation());
    case pb::Event::kHostFault:
      return On(event.host_fault());
    case pb::Event::kStraggler:
      return On(event.straggler());
    case pb::Event::kQuarantineReleased:
      return On(event.quarantine_released());
    case pb::Event::kHostFenceFailed:
      return On(event.host_fence_failed());
    case pb::Event::kHostCheckFailed:
      return On(event.host_check_failed());
    case pb::Event::kTimer:
    case pb::Event::BODY_NOT_SET:
      return;
  }
}

// ---- access ----

JobRow* Applier::Job(uint64_t number) {
  if (s_.jobs_.Find(number) == nullptr) return nullptr;
  JobRow* job = s_.jobs_.Mutable(number);
  if (s_.changed_jobs_.insert(number).second) ++job->version;
  if (written_.empty() || written_.back() != number) written_.push_back(number);
  return job;
}

HostRow* Applier::Host(HostId id) {
  s_.changed_hosts_.insert(id);
  return s_.hosts_.Mutable(static_cast<size_t>(id));
}

void Applier::NewRound() {
  ++s_.round_;
  s_.meta_changed_ = true;
}

Applier::Found Applier::FindNewest(const pb::AttemptKey& key) {
  const JobRow* row = nullptr;
  Found found;
  const AttemptRow* attempt = s_.FindAttempt(key, &row, &found.index);
  if (attempt == nullptr || row->tasks[found.index].attempts.back().number != key.attempt())
    return found;
  found.job = Job(row->number);
  found.task = &found.job->tasks[found.index];
  found.attempt = &found.task->attempts.back();
  MUSTER_CHECK(found.attempt->number == key.attempt());
  return found;
}

void Applier::RefreshHostsOf(const AttemptRow& attempt) {
  for (const PartRow& part : attempt.parts) RefreshHost(part.host);
}

// ---- configuration ----

void Applier::SetQueues(const pb::QueueTree& tree) {
  s_.configuration_changed_ = true;
  s_.queue_tree_ = std::make_shared<const pb::QueueTree>(tree);
  s_.queues_ = std::make_shared<const QueueIndex>(BuildQueues(tree));
}

// Clusters that left the file but still have hosts stay, at the end, closed.
void Applier::SetClusters(const pb::ClusterFile& file) {
  const std::vector<ClusterRow> old = *s_.clusters_;
  std::vector<ClusterRow> rows;
  std::map<std::string, int32_t> index;
  for (const pb::ClusterSpec& spec : file.clusters()) {
    if (!index.emplace(spec.name(), static_cast<int32_t>(rows.size())).second) continue;
    ClusterRow row;
    row.name = spec.name();
    row.spec = spec;
    rows.push_back(std::move(row));
  }
  std::vector<bool> has_hosts(old.size(), false);
  s_.hosts_.ForEach([&](size_t, const HostRow& host) { has_hosts[host.cluster] = true; });
  for (size_t c = 0; c < old.size(); ++c) {
    const auto it = index.find(old[c].name);
    if (it != index.end()) {
      rows[it->second].drained = old[c].drained;
      rows[it->second].drain_reason = old[c].drain_reason;
    } else if (has_hosts[c]) {
      index[old[c].name] = static_cast<int32_t>(rows.size());
      rows.push_back(old[c]);
      rows.back().spec.clear_hosts();
      rows.back().spec.set_open(false);
    }
  }
  for (HostId id = 0; id < s_.host_count_; ++id) {
    HostRow* host = s_.hosts_.Mutable(static_cast<size_t>(id));
    host->cluster = index.at(old[host->cluster].name);
    host->listed = false;
    host->block.clear();
    host->rack.clear();
  }
  for (const uint64_t number : s_.AllJobs()) {
    for (TaskRow& task : s_.jobs_.Mutable(number)->tasks) {
      for (AttemptRow& attempt : task.attempts)
        attempt.cluster = index.at(old[attempt.cluster].name);
      if (task.reservation == nullptr) continue;
      Reservation moved = *task.reservation;
      moved.cluster = index.at(old[moved.cluster].name);
      task.reservation = std::make_shared<const Reservation>(std::move(moved));
    }
  }
  // With the clusters that stay, so that hosts and attempts find them again when State is loaded.
  pb::ClusterFile kept = file;
  for (const ClusterRow& row : rows) {
    const auto in_file = [&](const pb::ClusterSpec& spec) { return spec.name() == row.name; };
    if (std::none_of(file.clusters().begin(), file.clusters().end(), in_file))
      *kept.add_clusters() = row.spec;
  }
  s_.cluster_file_ = std::make_shared<const pb::ClusterFile>(std::move(kept));
  s_.clusters_ = std::make_shared<const std::vector<ClusterRow>>(std::move(rows));
  for (const pb::ClusterSpec& spec : file.clusters()) {
    for (const pb::HostSpec& host_spec : spec.hosts()) {
      HostRow* host = Host(FindOrAddHost(spec.name(), host_spec.name()));
      host->listed = true;
      host->block = host_spec.block();
      host->rack = host_spec.rack();
    }
  }
  OrderHosts();
  for (const HostId id : *s_.host_order_) RefreshHost(id);
  s_.configuration_changed_ = true;
}

void Applier::SetClusterDrained(const std::string& name, bool drained, const std::string& reason) {
  const int32_t c = s_.FindCluster(name);
  if (c < 0) return;
  NewRound();
  std::vector<ClusterRow> rows = *s_.clusters_;
  rows[c].drained = drained;
  rows[c].drain_reason = drained ? reason : "";
  s_.clusters_ = std::make_shared<const std::vector<ClusterRow>>(std::move(rows));
  s_.configuration_changed_ = true;
  for (const HostId id : *s_.host_order_) {
    if (s_.host(id).cluster == c) RefreshHost(id);
  }
}

HostId Applier::FindOrAddHost(const std::string& cluster, const std::string& host) {
  const int32_t c = s_.FindCluster(cluster);
  if (c < 0) return kNoHost;
  const HostId known = s_.FindHost(cluster, host);
  if (known != kNoHost) return known;
  const HostId id = s_.host_count_++;
  HostRow* row = s_.hosts_.Mutable(static_cast<size_t>(id));
  row->id = id;
  row->cluster = c;
  row->name = host;
  s_.host_by_name_.Set(absl::StrCat(cluster, "/", host), static_cast<uint64_t>(id) + 1);
  s_.changed_hosts_.insert(id);
  return id;
}

void Applier::OrderHosts() {
  std::vector<HostId> order;
  std::vector<bool> listed(static_cast<size_t>(s_.host_count_), false);
  for (size_t c = 0; c < s_.clusters_->size(); ++c) {
    const ClusterRow& cluster = (*s_.clusters_)[c];
    for (const pb::HostSpec& spec : cluster.spec.hosts()) {
      const HostId id = s_.FindHost(cluster.name, spec.name());
      if (id == kNoHost || listed[id]) continue;
      listed[id] = true;
      order.push_back(id);
    }
    std::map<std::string, HostId> others;
    s_.hosts_.ForEach([&](size_t index, const HostRow& host) {
      if (!listed[index] && host.cluster == static_cast<int32_t>(c)) others[host.name] = host.id;
    });
    for (const auto& [name, id] : others) order.push_back(id);
  }
  s_.host_order_ = std::make_shared<const std::vector<HostId>>(std::move(order));
}

void Applier::OrderHost(HostId id) {
  const HostRow& row = s_.host(id);
  std::vector<HostId> order = *s_.host_order_;
  const auto at = std::partition_point(order.begin(), order.end(), [&](HostId other_id) {
    const HostRow& other = s_.host(other_id);
    return other.cluster != row.cluster ? other.cluster < row.cluster
                                        : other.listed || other.name < row.name;
  });
  order.insert(at, id);
  s_.host_order_ = std::make_shared<const std::vector<HostId>>(std::move(order));
}

void Applier::InsertLoaded(JobRow job) {
  const uint64_t number = job.number;
  s_.job_by_uid_.Set(job.uid, number);
  if (!job.idempotency_key.empty()) {
    s_.job_by_key_.Set(IdempotencyIndexKey(job.owner, job.idempotency_key), number);
  }
  const bool finished = job.finished();
  for (size_t t = 0; t < job.tasks.size(); ++t) {
    if (job.tasks[t].reservation != nullptr) {
      IndexReservation({number, static_cast<int32_t>(t)}, *job.tasks[t].reservation, true);
    }
    if (job.tasks[t].attempts.empty()) continue;
    const AttemptRow& attempt = job.tasks[t].attempts.back();
    if (attempt.ended() || attempt.released()) continue;
    CountUse(job, static_cast<int32_t>(t), attempt, 1);
    for (const PartRow& part : attempt.parts) {
      std::vector<AttemptRef>& refs = s_.hosts_.Mutable(static_cast<size_t>(part.host))->attempts;
      const AttemptRef ref{number, static_cast<int32_t>(t), attempt.number};
      refs.insert(std::lower_bound(refs.begin(), refs.end(), ref), ref);
    }
  }
  for (size_t t = 0; t < job.tasks.size(); ++t) RefreshStagedExport(job, static_cast<int32_t>(t));
  const int64_t end_ns = job.end_ns;
  *s_.jobs_.Mutable(number) = std::move(job);
  if (finished) IndexDone(*s_.FindJob(number));
  std::vector<uint64_t>& numbers = *Own(finished ? &s_.finished_ : &s_.active_);
  if (finished) {
    const auto at =
        std::upper_bound(numbers.begin(), numbers.end(), number, [&](uint64_t a, uint64_t b) {
          const int64_t end_a = a == number ? end_ns : s_.FindJob(a)->end_ns;
          const int64_t end_b = b == number ? end_ns : s_.FindJob(b)->end_ns;
          return std::make_pair(end_a, a) < std::make_pair(end_b, b);
        });
    numbers.insert(at, number);
  } else {
    numbers.insert(std::lower_bound(numbers.begin(), numbers.end(), number), number);
  }
  IndexWaiting(number);
}

void Applier::IndexWaiting(uint64_t number) {
  const JobRow* job = s_.FindJob(number);
  std::vector<TaskRef> now;
  for (size_t t = 0; job != nullptr && !job->finished() && t < job->tasks.size(); ++t) {
    if (job->tasks[t].waiting() || job->tasks[t].state == pb::TASK_BLOCKED)
      now.push_back({number, static_cast<int32_t>(t)});
  }
  const std::vector<TaskRef>& known = *s_.waiting_;
  const auto first = std::lower_bound(known.begin(), known.end(), TaskRef{number, 0});
  auto last = first;
  while (last != known.end() && last->job == number) ++last;
  if (std::equal(first, last, now.begin(), now.end())) return;
  const auto from = first - known.begin(), to = last - known.begin();
  std::vector<TaskRef>& all = *Own(&s_.waiting_);
  all.erase(all.begin() + from, all.begin() + to);
  all.insert(all.begin() + from, now.begin(), now.end());
}

void Applier::RefreshStagedExport(const JobRow& job, int32_t task) {
  const TaskRow& row = job.tasks[task];
  const AttemptRef first{job.number, task, 0};
  const auto known = s_.staged_exports_->lower_bound(first);
  const bool listed =
      known != s_.staged_exports_->end() && known->job == job.number && known->task == task;
  const bool staged = row.export_state == "staged" && !job.finished();
  if (listed == staged) return;
  std::set<AttemptRef> refs = *s_.staged_exports_;
  if (listed) {
    refs.erase(refs.lower_bound(first), refs.lower_bound({job.number, task + 1, 0}));
  } else {
    for (const AttemptRow& attempt : row.attempts) {
      if (!attempt.export_staged.empty()) refs.insert({job.number, task, attempt.number});
    }
  }
  s_.staged_exports_ = std::make_shared<const std::set<AttemptRef>>(std::move(refs));
}

// ---- derived use, and what devices are booked to ----

void Applier::RefreshHost(HostId id) {
  HostRow* host = s_.hosts_.Mutable(static_cast<size_t>(id));
  std::map<std::pair<std::string, int>, int64_t>* rates = Own(&s_.ledger_rate_);
  const auto book_idle = [&](const LedgerShare& share, int64_t sign) {
    if (share.ledger_class != static_cast<int>(LedgerClass::kIdle)) return;
    auto& idle = *Own(&s_.idle_);
    const auto at =
        idle.emplace(std::make_pair((*s_.clusters_)[host->cluster].name, host->booked_flavour), 0)
            .first;
    at->second += sign * share.milli;
    if (at->second == 0) idle.erase(at);
  };
  for (const LedgerShare& share : host->shares) {
    book_idle(share, -1);
    const auto it = rates->find({share.queue, share.ledger_class});
    it->second -= share.milli;
    if (it->second == 0) rates->erase(it);
    s_.capacity_milli_ -= share.milli;
  }
  const int devices = host->inventory.devices_size();
  host->device_used_milli.assign(static_cast<size_t>(devices), 0);
  host->cpus_used_milli = host->memory_used_bytes = host->disk_used_bytes = 0;
  std::map<std::pair<std::string, int>, int64_t> booked;
  const auto hold = [&](const PartRow& part, const pb::TaskSpec& task, const std::string& queue,
                        LedgerClass ledger_class) {
    const Demand demand = WorkerDemand(task, host->inventory);
    host->cpus_used_milli += part.workers * demand.cpus_milli;
    host->memory_used_bytes += part.workers * demand.memory_bytes;
    host->disk_used_bytes += part.workers * demand.disk_bytes;
    for (size_t d = 0; d < part.devices.size(); ++d) {
      const int32_t device = part.devices[d];
      if (device < 0 || device >= devices) continue;  // the host came back with fewer devices
      const int64_t milli = d < part.device_milli.size() ? part.device_milli[d] : 1000;
      const int64_t room = std::max<int64_t>(0, 1000 - host->device_used_milli[device]);
      host->device_used_milli[device] += milli;
      booked[{queue, static_cast<int>(ledger_class)}] += std::min(milli, room);
    }
  };
  for (const AttemptRef& ref : host->attempts) {
    const JobRow* job = s_.FindJob(ref.job);
    const AttemptRow* attempt = s_.FindAttempt(ref);
    MUSTER_CHECK(attempt != nullptr);
    for (const PartRow& part : attempt->parts) {
      if (part.host != id || part.lost) continue;
      LedgerClass ledger_class = LedgerClass::kProductive;
      const auto moved = [](pb::Cause cause) {
        return cause == pb::PREEMPTION || cause == pb::RESIZE || cause == pb::DRAIN;
      };
      if (attempt->state == pb::TASK_STOPPING) {
        ledger_class = moved(attempt->cause) ? LedgerClass::kPreemption : LedgerClass::kRestart;
      } else if (attempt->state != pb::TASK_RUNNING) {
        const TaskRow& task = job->tasks[ref.task];
        const bool after_move =
            task.attempts.size() >= 2 && moved(task.attempts[task.attempts.size() - 2].cause);
        ledger_class = after_move ? LedgerClass::kPreemption : LedgerClass::kRestart;
      }
      hold(part, job->task_spec(ref.task), job->spec->queue(), ledger_class);
    }
  }
  for (const LostRow& lost : host->lost) {
    const JobRow* job = s_.FindJobByUid(lost.key.job_uid());
    const int32_t task = job == nullptr ? -1 : TaskIndex(*job->spec, lost.key.task());
    const PartRow part = ToPart(s_, (*s_.clusters_)[host->cluster].name, lost.placement);
    hold(part, task < 0 ? pb::TaskSpec::default_instance() : job->task_spec(task), "",
         LedgerClass::kDown);
  }
  const bool up = (host->state == pb::HOST_UP || host->state == pb::HOST_SILENT) &&
                  !host->drained && !(*s_.clusters_)[host->cluster].drained;
  std::vector<int64_t> rest(static_cast<size_t>(devices), 0);
  for (int d = 0; d < devices; ++d) {
    const int64_t rest_milli = std::max<int64_t>(0, 1000 - host->device_used_milli[d]);
    if (up && host->inventory.devices(d).healthy()) {
      rest[d] = rest_milli;
    } else {
      booked[{"", static_cast<int>(LedgerClass::kDown)}] += rest_milli;
    }
  }
  for (const TaskRef& ref : host->reserved) {
    const JobRow& job = *s_.FindJob(ref.job);
    for (const HostSlice& part : job.tasks[ref.task].reservation->parts) {
      if (part.host != id) continue;
      for (size_t d = 0; d < part.devices.size(); ++d) {
        if (part.devices[d] < 0 || part.devices[d] >= devices) continue;
        int64_t& rest_milli = rest[part.devices[d]];
        const int64_t kept_milli = std::min(
            rest_milli, d < part.device_milli.size() ? part.device_milli[d] : int64_t{1000});
        rest_milli -= kept_milli;
        booked[{job.spec->queue(), static_cast<int>(LedgerClass::kReserved)}] += kept_milli;
      }
    }
  }
  for (const int64_t rest_milli : rest)
    booked[{"", static_cast<int>(LedgerClass::kIdle)}] += rest_milli;
  host->shares.clear();
  host->booked_flavour = host->inventory.flavour();
  int64_t sum_milli = 0;
  for (const auto& [key, milli] : booked) {
    if (milli == 0) continue;
    host->shares.push_back({key.first, key.second, milli});
    book_idle(host->shares.back(), 1);
    (*rates)[key] += milli;
    sum_milli += milli;
  }
  MUSTER_CHECK(sum_milli == 1000 * static_cast<int64_t>(devices));
  s_.capacity_milli_ += sum_milli;
}

// ---- steps and users ----

void Applier::On(const pb::StepStarted& e) {
  s_.now_ns_ = std::max(s_.now_ns_, e.now_ns());
  if (e.epoch() != 0) s_.epoch_ = e.epoch();
  if (e.restart_backoff_ns() > 0) s_.restart_backoff_ns_ = e.restart_backoff_ns();
  if (e.listens_again()) s_.listens_since_ns_ = s_.now_ns_;
  s_.meta_changed_ = true;
  BookLedger(s_.now_ns_);
  TickHistory();
  ForgetOldJobs();
}

void Applier::ForgetOldJobs() {
  size_t gone = 0;
  while (gone < s_.finished_->size()) {
    const JobRow& job = *s_.FindJob((*s_.finished_)[gone]);
    if (static_cast<int64_t>(s_.finished_->size() - gone) <= kFinishedJobsKept &&
        job.end_ns + kFinishedKeptNs > s_.now_ns_)
      break;
    s_.job_by_uid_.Erase(job.uid);
    if (!job.idempotency_key.empty()) {
      s_.job_by_key_.Erase(IdempotencyIndexKey(job.owner, job.idempotency_key));
    }
    for (size_t t = 0; t < job.tasks.size(); ++t) {
      const std::string key = DoneKey(job, static_cast<int32_t>(t));
      if (s_.newest_done_.Find(key) == job.number) s_.newest_done_.Erase(key);
    }
    s_.changed_jobs_.insert(job.number);
    s_.jobs_.Erase(job.number);
    ++gone;
  }
  if (gone == 0) return;
  Own(&s_.finished_)
      ->erase(s_.finished_->begin(), s_.finished_->begin() + static_cast<int64_t>(gone));
  // A host that still holds what a forgotten job lost there no longer knows its share of CPU and
  // memory.
  for (const HostId id : *s_.host_order_) {
    if (!s_.host(id).lost.empty()) RefreshHost(id);
  }
}

void Applier::On(const pb::JobSubmitted& e) {
  if (e.number() == 0 || e.uid().empty() || s_.FindJob(e.number()) != nullptr ||
      s_.FindJobByUid(e.uid()) != nullptr)
    return;
  JobRow job;
  job.number = e.number();
  job.uid = e.uid();
  job.owner = e.owner();
  job.SetSpec(e.spec());
  job.idempotency_key = e.idempotency_key();
  job.request_hash = e.request_hash();
  job.umask = e.umask();
  job.submit_ns = s_.now_ns_;
  for (const pb::TaskSpec& spec : e.spec().tasks()) {
    TaskRow task;
    task.state = spec.after().empty() ? pb::TASK_WAITING : pb::TASK_BLOCKED;
    task.waiting_since_ns = s_.now_ns_;
    job.tasks.push_back(std::move(task));
  }
  for (size_t t = 0; t < job.tasks.size(); ++t) {
    job.tasks[t].expected_run_ns =
        ExpectedRun(job, static_cast<int32_t>(t),
                    std::max(1, e.spec().tasks(static_cast<int>(t)).workers().min()));
  }
  s_.next_job_number_ = std::max(s_.next_job_number_, e.number() + 1);
  NewRound();
  s_.changed_jobs_.insert(e.number());
  InsertLoaded(std::move(job));
}

void Applier::On(const pb::JobCancelRequested& e) {
  const JobRow* row = s_.FindJob(e.number());
  if (row == nullptr || row->finished() || row->cancel_requested) return;
  JobRow* job = Job(e.number());
  job->cancel_requested = true;
  job->detail = e.by().empty() ? "" : absl::StrCat("cancelled by ", e.by());
  // What has no process any more and waits for its export alone ends here: its host may never come
  // back.
  for (size_t t = 0; t < job->tasks.size(); ++t) {
    TaskRow* task = &job->tasks[t];
    if (task->current() != nullptr && task->current()->released())
      EndAttempt({job, static_cast<int32_t>(t), task, &task->attempts.back()});
  }
  NewRound();
  if (!job->finished()) SettleJob(job);
}

void Applier::On(const pb::DrainChanged& e) {
  const size_t slash = e.target().find('/');
  if (slash == std::string::npos) return SetClusterDrained(e.target(), e.drained(), e.reason());
  const HostId id = s_.FindHost(e.target().substr(0, slash), e.target().substr(slash + 1));
  if (id == kNoHost) return;
  HostRow* host = Host(id);
  NewRound();
  host->drained = e.drained();
  host->drain_reason = e.drained() ? e.reason() : "";
  RefreshHost(id);
}

// What was decided after the backup is not known: an attempt of a number that it gave away may have
// run, or run still. So no number below that of the adoption is given again, and what the backup
// does not show as running is stopped: a host that never heard of it claims it "stopped", one where
// it has ended says Gone (contracts 4, 19).
void Applier::On(const pb::StoreAdopted& e) {
  if (e.settled()) {
    s_.restoring_ = false;
    return NewRound();
  }
  if (e.epoch() <= s_.adopted_epoch_) return;
  s_.adopted_epoch_ = e.epoch();
  s_.restoring_ = true;
  const int32_t from = static_cast<int32_t>(std::clamp<int64_t>(
      static_cast<int64_t>(e.epoch() / 1000) - kAttemptsSinceS, 0, int64_t{1} << 30));
  const std::vector<uint64_t> active = *s_.active_;
  for (const uint64_t number : active) {
    JobRow* job = Job(number);
    for (size_t t = 0; t < job->tasks.size(); ++t) {
      TaskRow* task = &job->tasks[t];
      if (task->reservation != nullptr)
        SetReservation({number, static_cast<int32_t>(t)}, task, nullptr);
      task->claimed_attempt = 0;
      if (!task->finished()) task->next_attempt = std::max(task->next_attempt + 1, from);
      AttemptRow* attempt = task->attempts.empty() || task->attempts.back().ended()
                                ? nullptr
                                : &task->attempts.back();
      if (attempt == nullptr || attempt->released() ||
          (attempt->state != pb::TASK_PREPARING && attempt->state != pb::TASK_STARTING))
        continue;
      attempt->state = task->state = pb::TASK_STOPPING;
      attempt->cause = pb::HOST_LOST;
      attempt->detail = "it was starting when the backup was made that is the store now";
      attempt->grace_ns = 0;
      attempt->stop_ns = s_.now_ns_;
      RefreshHostsOf(*attempt);
    }
  }
  NewRound();
}

// ---- plans ----

void Applier::On(const pb::AttemptPlaced& e) {
  const JobRow* row = s_.FindJobByUid(e.key().job_uid());
  const int32_t index = row == nullptr ? -1 : TaskIndex(*row->spec, e.key().task());
  const int32_t cluster = s_.FindCluster(e.cluster());
  if (index < 0 || cluster < 0 || e.placements().empty()) return;
  if (!row->tasks[index].waiting() || row->tasks[index].next_attempt != e.key().attempt()) return;
  AttemptRow attempt;
  for (const pb::Placement& placement : e.placements()) {
    PartRow part = ToPart(s_, e.cluster(), placement);
    const auto same_host = [&](const PartRow& other) { return other.host == part.host; };
    if (part.host == kNoHost || std::any_of(attempt.parts.begin(), attempt.parts.end(), same_host))
      return;
    attempt.parts.push_back(std::move(part));
    attempt.parts.back().state_id = s_.host(attempt.parts.back().host).state_id;
  }
  JobRow* job = Job(row->number);
  TaskRow* task = &job->tasks[index];
  // Its directory binds a job to the clusters that reach it, once: an outside event where that
  // leaves it fewer (decision 017).
  if (job->cluster.empty()) {
    const size_t before = AllowedClusters(s_, *job).size();
    job->cluster = e.cluster();
    if (AllowedClusters(s_, *job).size() != before) NewRound();
  }
  attempt.number = e.key().attempt();
  attempt.state = e.at_once() ? pb::TASK_STARTING : pb::TASK_PREPARING;
  attempt.cluster = cluster;
  attempt.flavour = e.flavour();
  attempt.workers = e.workers();
  attempt.place_ns = s_.now_ns_;
  attempt.place_round = s_.round_;
  attempt.resume_from.assign(e.resume_from().begin(), e.resume_from().end());
  if (!attempt.resume_from.empty()) {
    for (const pb::Checkpoint& checkpoint : task->checkpoints) {
      if (checkpoint.path() == attempt.resume_from.front())
        attempt.resumed_step = checkpoint.step();
    }
  }
  task->state = attempt.state;
  task->next_attempt = attempt.number + 1;
  task->claimed_attempt = 0;
  task->wanted_workers = 0;
  task->backoff_until_ns = 0;
  SetReservation({job->number, index}, task, nullptr);
  task->expected_run_ns = ExpectedRun(*job, index, e.workers());
  job->state = pb::RUNNING;
  const AttemptRef ref{job->number, index, attempt.number};
  if (task->attempts.size() >= kFinishedAttemptsKept) {
    // The export that was committed stays until it is published: only its own attempt's host can do
    // that.
    const auto old =
        std::find_if(task->attempts.begin(), task->attempts.end(), [&](const AttemptRow& a) {
          return a.export_staged.empty() || task->export_state != "staged";
        });
    task->attempts.erase(old);
  }
  task->attempts.push_back(std::move(attempt));
  CountUse(*job, index, task->attempts.back(), 1);
  for (const PartRow& part : task->attempts.back().parts) {
    std::vector<AttemptRef>& refs = s_.hosts_.Mutable(static_cast<size_t>(part.host))->attempts;
    const auto at = std::lower_bound(refs.begin(), refs.end(), ref);
    if (at == refs.end() || *at != ref) refs.insert(at, ref);
  }
  RefreshHostsOf(task->attempts.back());
}

void Applier::On(const pb::AttemptStopping& e) {
  const Found found = FindNewest(e.key());
  if (!found || found.attempt->ended() || found.attempt->released()) return;
  AttemptRow* attempt = found.attempt;
  // A second stop only makes a stop harder: the first cause stands (contract 13).
  if (attempt->state == pb::TASK_STOPPING) {
    attempt->grace_ns = std::min(attempt->grace_ns, e.grace_ns());
    return;
  }
  if (e.cause() == pb::LAUNCH_FAILED && !FirstFailure(*attempt).has_value()) {
    for (PartRow& part : attempt->parts) part.lags = LagsInLaunch(*attempt, part);
  }
  attempt->state = found.task->state = pb::TASK_STOPPING;
  attempt->cause = e.cause();
  attempt->detail = e.detail();
  attempt->grace_ns = e.grace_ns();
  attempt->next_workers = e.next_workers();
  if (e.cause() == pb::TIME_LIMIT) NewRound();
  if (e.cause() == pb::PREEMPTION && e.next_workers() == 0) found.task->evicted_round = s_.round_;
  attempt->stop_ns = s_.now_ns_;
  if (e.cause() == pb::RESIZE && e.next_workers() > attempt->workers)
    found.task->last_resize_ns = s_.now_ns_;
  RefreshHostsOf(*attempt);
  if (e.claimant().job_uid().empty()) return;
  attempt->claimant = e.claimant();
  const JobRow* claimant = s_.FindJobByUid(e.claimant().job_uid());
  const int32_t index = claimant == nullptr ? -1 : TaskIndex(*claimant->spec, e.claimant().task());
  if (index < 0 || claimant->finished() ||
      claimant->tasks[index].next_attempt != e.claimant().attempt())
    return;
  Job(claimant->number)->tasks[index].claimed_attempt = e.claimant().attempt();
}

void Applier::On(const pb::AttemptLost& e) {
  const Found found = FindNewest(e.key());
  const HostId id = s_.FindHost(e.cluster(), e.host());
  if (!found || found.attempt->ended() || id == kNoHost) return;
  for (PartRow& part : found.attempt->parts) {
    if (part.host != id || part.over()) continue;
    part.lost = true;
    HostRow* host = Host(id);
    GoneOff(found.attempt, *host);
    host->lost.push_back({e.key(), ToPlacement(s_, part), part.state_id});
    if (found.attempt->detail.empty()) found.attempt->detail = e.detail();
    RefreshHost(id);
  }
  if (found.attempt->released()) Release(found);
}

void Applier::On(const pb::ClusterOpened& e) {
  const JobRow* row = s_.FindJobByUid(e.job_uid());
  const int32_t index = row == nullptr ? -1 : TaskIndex(*row->spec, e.task());
  if (index < 0 || row->finished()) return;
  TaskRow* task = &Job(row->number)->tasks[index];
  const auto holds = [&](const std::vector<std::string>& list) {
    return std::find(list.begin(), list.end(), e.cluster()) != list.end();
  };
  const bool again = task->opened_attempt == task->next_attempt;
  if (!again) task->fronted.clear();
  if (again && holds(task->opened) && (!e.to_front() || holds(task->fronted))) return;
  task->opened_attempt = task->next_attempt;
  task->opened_ns = s_.now_ns_;
  task->spill_reason = e.reason();
  if (!holds(task->opened)) task->opened.push_back(e.cluster());
  if (e.to_front()) task->fronted.push_back(e.cluster());
  NewRound();
}

void Applier::On(const pb::TaskFailed& e) {
  const JobRow* row = s_.FindJobByUid(e.job_uid());
  const int32_t index = row == nullptr ? -1 : TaskIndex(*row->spec, e.task());
  if (index < 0 || row->finished() || row->tasks[index].finished() ||
      row->tasks[index].current() != nullptr)
    return;
  JobRow* job = Job(row->number);
  NewRound();
  FailTask(job, index, e.cause(), e.detail());
  SettleJob(job);
}

void Applier::CountUse(const JobRow& job, int32_t task, const AttemptRow& attempt, int64_t sign) {
  const pb::TaskSpec& spec = job.task_spec(task);
  const bool gpus = spec.resources().gpus_milli() > 0;
  const int64_t a_worker =
      gpus ? spec.resources().gpus_milli() : std::max<int64_t>(1, spec.resources().cpus_milli());
  auto& use = *Own(&s_.queue_use_);
  const auto at =
      use.emplace(std::make_pair(job.spec->queue(), gpus ? attempt.flavour : "cpu"), 0).first;
  at->second += sign * a_worker * attempt.workers;
  if (at->second == 0) use.erase(at);
}

void Applier::IndexReservation(const TaskRef& ref, const Reservation& reservation, bool there) {
  const auto set = [&](std::vector<TaskRef>* refs) {
    const auto at = std::lower_bound(refs->begin(), refs->end(), ref);
    const bool was = at != refs->end() && *at == ref;
    if (there && !was) refs->insert(at, ref);
    if (!there && was) refs->erase(at);
  };
  for (const HostSlice& part : reservation.parts)
    set(&s_.hosts_.Mutable(static_cast<size_t>(part.host))->reserved);
  std::vector<TaskRef> all = *s_.reserved_;
  set(&all);
  s_.reserved_ = std::make_shared<const std::vector<TaskRef>>(std::move(all));
}

void Applier::SetReservation(const TaskRef& ref, TaskRow* task,
                             std::shared_ptr<const Reservation> reservation) {
  const std::shared_ptr<const Reservation> before = std::move(task->reservation);
  task->reservation = std::move(reservation);
  if (before != nullptr) IndexReservation(ref, *before, false);
  if (task->reservation != nullptr) {
    IndexReservation(ref, *task->reservation, true);
    for (const HostSlice& part : task->reservation->parts) RefreshHost(part.host);
  }
  if (before != nullptr) {
    for (const HostSlice& part : before->parts) RefreshHost(part.host);
  }
}

void Applier::IndexDone(const JobRow& job) {
  if (job.spec->name().empty()) return;
  for (size_t t = 0; t < job.tasks.size(); ++t) {
    if (job.tasks[t].state != pb::TASK_SUCCEEDED) continue;
    const std::string key = DoneKey(job, static_cast<int32_t>(t));
    const JobRow* known = s_.FindJob(s_.newest_done_.Find(key));
    if (known == nullptr ||
        std::make_pair(known->end_ns, known->number) < std::make_pair(job.end_ns, job.number)) {
      s_.newest_done_.Set(key, job.number);
    }
  }
}

int64_t Applier::ExpectedRun(const JobRow& job, int32_t task, int32_t workers) const {
  if (job.spec->name().empty()) return 0;
  const JobRow* done = s_.FindJob(s_.newest_done_.Find(DoneKey(job, task)));
  if (done == nullptr) return 0;
  const TaskRow& row = done->tasks[TaskIndex(*done->spec, job.task_spec(task).name())];
  const int32_t then = row.attempts.empty() ? 1 : row.attempts.back().workers;
  return static_cast<int64_t>(static_cast<__int128>(row.ran_ns) * then / std::max(1, workers));
}

void Applier::On(const pb::ReservationChanged& e) {
  const JobRow* row = s_.FindJobByUid(e.key().job_uid());
  const int32_t index = row == nullptr ? -1 : TaskIndex(*row->spec, e.key().task());
  const int32_t cluster = s_.FindCluster(e.cluster());
  if (index < 0 || row->tasks[index].finished() ||
      row->tasks[index].next_attempt != e.key().attempt())
    return;
  std::shared_ptr<Reservation> reservation;
  if (!e.placements().empty()) {
    if (cluster < 0) return;
    reservation = std::make_shared<Reservation>();
    for (const pb::Placement& placement : e.placements()) {
      HostSlice slice = ToSlice(s_, e.cluster(), placement);
      const auto same_host = [&](const HostSlice& other) { return other.host == slice.host; };
      if (slice.host == kNoHost ||
          std::any_of(reservation->parts.begin(), reservation->parts.end(), same_host))
        return;
      reservation->parts.push_back(std::move(slice));
    }
    const Reservation* before = row->tasks[index].reservation.get();
    reservation->attempt = e.key().attempt();
    reservation->cluster = cluster;
    reservation->flavour = e.flavour();
    reservation->workers = e.workers();
    reservation->held = e.held();
    reservation->start_ns = e.start_ns();
    reservation->draining = e.draining();
    reservation->since_ns = before != nullptr ? before->since_ns : s_.now_ns_;
  }
  SetReservation({row->number, index}, &Job(row->number)->tasks[index], std::move(reservation));
}

}  // namespace muster
