// Rows of State as the store keeps them, and back.
#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "scheduler/state/applier.h"
#include "scheduler/state/bytes.h"
#include "scheduler/state/state.h"

namespace muster {
namespace {

std::string JobRowId(uint64_t number) { return absl::StrFormat("%020u", number); }

pb::AttemptRecord ToRecord(const State& state, const AttemptRow& row) {
  pb::AttemptRecord r;
  r.set_number(row.number);
  r.set_state(row.state);
  r.set_cause(row.cause);
  r.set_detail(row.detail);
  r.set_cluster(state.clusters()[row.cluster].name);
  r.set_flavour(row.flavour);
  for (const PartRow& part : row.parts) {
    *r.add_placements() = ToPlacement(state, part);
    pb::HostPart* p = r.add_parts();
    p->set_phase(part.phase);
    p->set_state_id(part.state_id);
    for (const pb::WorkerExit& exit : part.exits) *p->add_exits() = exit;
    p->set_lost(part.lost);
    p->set_stop_sent(part.stop_sent);
    p->set_lags(part.lags);
    p->set_cause(part.cause);
    p->set_detail(part.detail);
    if (part.usage != nullptr) *p->mutable_usage() = *part.usage;
    p->set_fills_disk(part.fills_disk);
  }
  r.set_workers(row.workers);
  r.set_place_ns(row.place_ns);
  r.set_start_ns(row.start_ns);
  r.set_end_ns(row.end_ns);
  r.set_stop_ns(row.stop_ns);
  r.set_resumed_step(row.resumed_step);
  r.set_master_address(row.master_address);
  r.set_master_port(row.master_port);
  r.set_next_workers(row.next_workers);
  if (!row.claimant.job_uid().empty()) *r.mutable_claimant() = row.claimant;
  for (const std::string& path : row.resume_from) r.add_resume_from(path);
  r.set_export_staged(row.export_staged);
  r.set_export_target(row.export_target);
  r.set_loaded_reported(row.loaded_reported);
  r.set_grace_ns(row.grace_ns);
  r.set_last_checkpoint_ns(row.last_checkpoint_ns);
  r.set_place_round(row.place_round);
  r.set_holder_attempt(row.holder_attempt);
  r.set_off_since_ns(row.off_since_ns);
  *r.mutable_stragglers() = {row.stragglers.begin(), row.stragglers.end()};
  return r;
}

absl::Status FromRecord(const State& state, const pb::AttemptRecord& r, AttemptRow* row) {
  row->number = r.number();
  row->state = r.state();
  row->cause = r.cause();
  row->detail = r.detail();
  row->cluster = state.FindCluster(r.cluster());
  if (row->cluster < 0)
    return absl::DataLossError(absl::StrCat("attempt names unknown cluster ", r.cluster()));
  if (r.parts_size() != r.placements_size())
    return absl::DataLossError("attempt's parts and placements differ in number");
  row->flavour = r.flavour();
  for (int i = 0; i < r.parts_size(); ++i) {
    const pb::Placement& placement = r.placements(i);
    const pb::HostPart& p = r.parts(i);
    PartRow part = ToPart(state, r.cluster(), placement);
    if (part.host == kNoHost) {
      return absl::DataLossError(
          absl::StrCat("attempt names unknown host ", r.cluster(), "/", placement.host()));
    }
    part.phase = p.phase();
    part.state_id = p.state_id();
    part.exits.assign(p.exits().begin(), p.exits().end());
    part.lost = p.lost();
    part.stop_sent = p.stop_sent();
    part.lags = p.lags();
    part.cause = p.cause();
    part.detail = p.detail();
    if (p.has_usage()) part.usage = std::make_shared<const pb::HostUsage>(p.usage());
    part.fills_disk = p.fills_disk();
    row->parts.push_back(std::move(part));
  }
  row->workers = r.workers();
  row->place_ns = r.place_ns();
  row->start_ns = r.start_ns();
  row->end_ns = r.end_ns();
  row->stop_ns = r.stop_ns();
  row->resumed_step = r.resumed_step();
  row->master_address = r.master_address();
  row->master_port = r.master_port();
  row->next_workers = r.next_workers();
  row->claimant = r.claimant();
  row->resume_from.assign(r.resume_from().begin(), r.resume_from().end());
  row->export_staged = r.export_staged();
  row->export_target = r.export_target();
  row->loaded_reported = r.loaded_reported();
  row->grace_ns = r.grace_ns();
  row->last_checkpoint_ns = r.last_checkpoint_ns();
  row->place_round = r.place_round();
  row->holder_attempt = r.holder_attempt();
  row->off_since_ns = r.off_since_ns();
  row->stragglers.assign(r.stragglers().begin(), r.stragglers().end());
  if (row->ended() && row->state == pb::TASK_FAILED && Infrastructure(row->cause))
    row->failed_host = FailedHost(*row);
  return absl::OkStatus();
}

pb::ReservationChanged ToRecord(const State& state, const Reservation& row) {
  pb::ReservationChanged r;
  r.mutable_key()->set_attempt(row.attempt);
  r.set_cluster(state.clusters()[row.cluster].name);
  r.set_flavour(row.flavour);
  for (const HostSlice& part : row.parts) {
    pb::Placement* placement = r.add_placements();
    placement->set_host(state.host(part.host).name);
    placement->set_workers(part.workers);
    placement->mutable_devices()->Assign(part.devices.begin(), part.devices.end());
    placement->mutable_device_milli()->Assign(part.device_milli.begin(), part.device_milli.end());
  }
  r.set_workers(row.workers);
  r.set_held(row.held);
  r.set_start_ns(row.start_ns);
  r.set_draining(row.draining);
  return r;
}

absl::Status FromRecord(const State& state, const pb::ReservationChanged& r, Reservation* row) {
  row->attempt = r.key().attempt();
  row->cluster = state.FindCluster(r.cluster());
  if (row->cluster < 0)
    return absl::DataLossError(absl::StrCat("reservation names unknown cluster ", r.cluster()));
  row->flavour = r.flavour();
  for (const pb::Placement& placement : r.placements()) {
    row->parts.push_back(ToSlice(state, r.cluster(), placement));
    if (row->parts.back().host == kNoHost) {
      return absl::DataLossError(
          absl::StrCat("reservation names unknown host ", r.cluster(), "/", placement.host()));
    }
  }
  row->workers = r.workers();
  row->held = r.held();
  row->start_ns = r.start_ns();
  row->draining = r.draining();
  return absl::OkStatus();
}

pb::TaskRecord ToRecord(const State& state, const TaskRow& row) {
  pb::TaskRecord r;
  r.set_state(row.state);
  r.set_cause(row.cause);
  r.set_detail(row.detail);
  r.set_restarts_used(row.restarts_used);
  r.set_infra_failures(row.infra_failures);
  r.set_faults_tried_ns(row.faults_tried_ns);
  r.set_hosts_lost(row.hosts_lost);
  r.set_next_attempt(row.next_attempt);
  r.set_backoff_until_ns(row.backoff_until_ns);
  r.set_waiting_since_ns(row.waiting_since_ns);
  r.set_waited_ns(row.waited_ns);
  r.set_wanted_workers(row.wanted_workers);
  r.set_last_resize_ns(row.last_resize_ns);
  for (const pb::Checkpoint& checkpoint : row.checkpoints) *r.add_checkpoints() = checkpoint;
  *r.mutable_progress() = row.progress;
  for (const AttemptRow& attempt : row.attempts) *r.add_attempts() = ToRecord(state, attempt);
  for (const std::string& cluster : row.opened) r.add_opened(cluster);
  r.set_opened_attempt(row.opened_attempt);
  r.set_opened_ns(row.opened_ns);
  for (const std::string& cluster : row.fronted) r.add_fronted(cluster);
  r.set_spill_reason(row.spill_reason);
  r.set_used_gpu_ms(row.used_gpu_ms);
  r.set_ran_ns(row.ran_ns);
  r.set_export_state(row.export_state);
  r.set_export_failures(row.export_failures);
  r.set_export_detail(row.export_detail);
  r.set_claimed_attempt(row.claimed_attempt);
  r.set_evicted_round(row.evicted_round);
  r.set_expected_run_ns(row.expected_run_ns);
  if (row.blamed_host != kNoHost) r.set_blamed_host(state.HostName(row.blamed_host));
  r.set_blamed_ns(row.blamed_ns);
  r.set_blames_itself(row.blames_itself);
  if (row.reservation != nullptr) {
    *r.mutable_reservation() = ToRecord(state, *row.reservation);
    r.set_reserved_since_ns(row.reservation->since_ns);
  }
  return r;
}

absl::Status FromRecord(const State& state, const pb::TaskRecord& r, TaskRow* row) {
  row->state = r.state();
  row->cause = r.cause();
  row->detail = r.detail();
  row->restarts_used = r.restarts_used();
  row->infra_failures = r.infra_failures();
  row->faults_tried_ns = r.faults_tried_ns();
  row->hosts_lost = r.hosts_lost();
  row->next_attempt = r.next_attempt();
  row->backoff_until_ns = r.backoff_until_ns();
  row->waiting_since_ns = r.waiting_since_ns();
  row->waited_ns = r.waited_ns();
  row->wanted_workers = r.wanted_workers();
  row->last_resize_ns = r.last_resize_ns();
  row->checkpoints.assign(r.checkpoints().begin(), r.checkpoints().end());
  row->progress = r.progress();
  for (const pb::AttemptRecord& attempt : r.attempts()) {
    row->attempts.emplace_back();
    if (absl::Status status = FromRecord(state, attempt, &row->attempts.back()); !status.ok())
      return status;
  }
  row->opened.assign(r.opened().begin(), r.opened().end());
  row->opened_attempt = r.opened_attempt();
  row->opened_ns = r.opened_ns();
  row->fronted.assign(r.fronted().begin(), r.fronted().end());
  row->spill_reason = r.spill_reason();
  row->used_gpu_ms = r.used_gpu_ms();
  row->ran_ns = r.ran_ns();
  row->export_state = r.export_state();
  row->export_failures = r.export_failures();
  row->export_detail = r.export_detail();
  row->claimed_attempt = r.claimed_attempt();
  row->evicted_round = r.evicted_round();
  row->expected_run_ns = r.expected_run_ns();
  if (const size_t slash = r.blamed_host().find('/'); slash != std::string::npos) {
    row->blamed_host =
        state.FindHost(r.blamed_host().substr(0, slash), r.blamed_host().substr(slash + 1));
  }
  row->blamed_ns = r.blamed_ns();
  row->blames_itself = r.blames_itself();
  if (r.has_reservation()) {
    auto reservation = std::make_shared<Reservation>();
    if (absl::Status status = FromRecord(state, r.reservation(), reservation.get()); !status.ok())
      return status;
    reservation->since_ns = r.reserved_since_ns();
    row->reservation = std::move(reservation);
  }
  return absl::OkStatus();
}

// All but the spec, which never changes.
pb::JobRecord ToRecord(const State& state, const JobRow& row) {
  pb::JobRecord r;
  r.set_uid(row.uid);
  r.set_number(row.number);
  r.set_owner(row.owner);
  r.set_idempotency_key(row.idempotency_key);
  r.set_request_hash(row.request_hash);
  r.set_umask(row.umask);
  r.set_state(row.state);
  r.set_cause(row.cause);
  r.set_detail(row.detail);
  r.set_submit_ns(row.submit_ns);
  r.set_start_ns(row.start_ns);
  r.set_end_ns(row.end_ns);
  r.set_cluster(row.cluster);
  r.set_cancel_requested(row.cancel_requested);
  r.set_version(row.version);
  r.set_band(row.band);
  r.set_array(row.array);
  r.set_member(row.member);
  r.set_later(row.later);
  if (row.ended != nullptr) *r.mutable_ended() = *row.ended;
  for (const Predecessor& before : row.awaits) *r.add_awaits() = ToRecord(before);
  r.set_not_before_ns(row.not_before_ns);
  r.set_previous(row.previous);
  r.set_next(row.next);
  r.set_skipped(row.skipped);
  r.set_no_right(row.no_right);
  for (const TaskRow& task : row.tasks) *r.add_tasks() = ToRecord(state, task);
  return r;
}

absl::Status FromRecord(const State& state, const pb::JobRecord& r, JobRow* row) {
  row->uid = r.uid();
  row->number = r.number();
  row->owner = r.owner();
  row->SetSpec(r.spec());
  row->idempotency_key = r.idempotency_key();
  row->request_hash = r.request_hash();
  row->umask = r.umask();
  row->state = r.state();
  row->cause = r.cause();
  row->detail = r.detail();
  row->submit_ns = r.submit_ns();
  row->start_ns = r.start_ns();
  row->end_ns = r.end_ns();
  row->cluster = r.cluster();
  row->cancel_requested = r.cancel_requested();
  row->version = r.version();
  row->band = r.band();
  row->array = r.array();
  row->member = r.member();
  row->later = r.later();
  if (r.has_ended()) row->ended = std::make_shared<const pb::ArrayStatus>(r.ended());
  for (const pb::Predecessor& before : r.awaits())
    row->awaits.push_back({before.number(), before.array(), before.any()});
  row->not_before_ns = r.not_before_ns();
  row->previous = r.previous();
  row->next = r.next();
  row->skipped = r.skipped();
  row->no_right = r.no_right();
  if (r.number() == 0 || r.tasks_size() != r.spec().tasks_size())
    return absl::DataLossError("job's tasks don't fit its spec");
  for (const pb::TaskRecord& task : r.tasks()) {
    row->tasks.emplace_back();
    if (absl::Status status = FromRecord(state, task, &row->tasks.back()); !status.ok())
      return status;
  }
  return absl::OkStatus();
}

pb::HostRecord ToRecord(const State& state, const HostRow& row) {
  pb::HostRecord r;
  r.set_cluster(state.clusters()[row.cluster].name);
  r.set_host(row.name);
  r.set_state_id(row.state_id);
  r.set_boot_id(row.boot_id);
  *r.mutable_inventory() = row.inventory;
  r.set_state(row.state);
  r.set_drained(row.drained);
  r.set_drain_reason(row.drain_reason);
  r.set_state_since_ns(row.state_since_ns);
  r.set_silent_since_ns(row.silent_since_ns);
  r.set_spoke_ns(row.spoke_ns);
  r.set_quiet_ns(row.quiet_ns);
  r.set_confirmed_off_by(row.confirmed_off_by);
  r.set_fence_detail(row.fence_detail);
  r.set_fault_ns(row.fault_ns);
  *r.mutable_quarantines() = {row.quarantines.begin(), row.quarantines.end()};
  *r.mutable_blames() = {row.blames.begin(), row.blames.end()};
  *r.mutable_unhealthy() = {row.unhealthy.begin(), row.unhealthy.end()};
  for (const LostRow& lost : row.lost) {
    pb::LostAttempt* l = r.add_lost();
    *l->mutable_key() = lost.key;
    *l->mutable_placement() = lost.placement;
    l->set_state_id(lost.state_id);
  }
  return r;
}

void FromRecord(const pb::HostRecord& r, HostRow* row) {
  row->state_id = r.state_id();
  row->boot_id = r.boot_id();
  row->inventory = r.inventory();
  row->state = r.state();
  row->drained = r.drained();
  row->drain_reason = r.drain_reason();
  row->state_since_ns = r.state_since_ns();
  row->silent_since_ns = r.silent_since_ns();
  row->spoke_ns = r.spoke_ns();
  row->quiet_ns = r.quiet_ns();
  row->confirmed_off_by = r.confirmed_off_by();
  row->fence_detail = r.fence_detail();
  row->fault_ns = r.fault_ns();
  row->quarantines.assign(r.quarantines().begin(), r.quarantines().end());
  row->blames.assign(r.blames().begin(), r.blames().end());
  row->unhealthy.assign(r.unhealthy().begin(), r.unhealthy().end());
  for (const pb::LostAttempt& l : r.lost())
    row->lost.push_back({l.key(), l.placement(), l.state_id()});
}

}  // namespace

// Reaches State's fields for the functions of this file.
struct StateRecords {
  static RowChange Configuration(const State& s) {
    pb::ConfigurationRecord r;
    *r.mutable_queues() = *s.queue_tree_;
    *r.mutable_clusters() = *s.cluster_file_;
    for (const ClusterRow& cluster : *s.clusters_) {
      if (!cluster.drained) continue;
      pb::DrainedCluster* d = r.add_drained();
      d->set_name(cluster.name);
      d->set_reason(cluster.drain_reason);
    }
    for (const auto& [key, role] : *s.bindings_) {
      pb::Binding* b = r.add_bindings();
      (key.group ? b->mutable_group() : b->mutable_user())->assign(key.name);
      b->set_role(role);
      b->set_queue(key.queue);
    }
    return {"configuration", "", DeterministicBytes(r)};
  }
  static RowChange TrustRow(const State& s) {
    const Trust& trust = s.trust();
    pb::TrustRecord r;
    r.set_trust_id(trust.trust_id);
    r.set_signer(trust.signer);
    for (const auto& [version, authority] : trust.authorities) *r.add_authorities() = authority;
    for (const auto& [id, token] : trust.tokens) *r.add_tokens() = token;
    for (const auto& [name, user] : trust.users) *r.add_users() = user;
    for (const auto& [uri, host] : trust.revoked_hosts) *r.add_revoked_hosts() = host;
    for (const auto& [uri, last] : trust.ended_of_hosts) *r.add_ended_of_hosts() = last;
    return {"trust", "", DeterministicBytes(r)};
  }
  static RowChange Certificate(const State& s, const std::string& serial) {
    const auto it = s.trust().certificates.find(serial);
    if (it == s.trust().certificates.end()) return {"certificate", serial, std::nullopt};
    return {"certificate", serial, DeterministicBytes(it->second)};
  }
  static RowChange Meta(const State& s) {
    pb::MetaRecord r;
    r.set_next_job_number(s.next_job_number_);
    r.set_queue_version(s.queue_version_);
    r.set_now_ns(s.now_ns_);
    for (const auto& [key, device_us] : *s.ledger_) {
      pb::LedgerRow* row = r.add_ledger();
      row->set_queue(key.first);
      row->set_class_(kLedgerClasses[key.second]);
      row->set_device_us(device_us);
    }
    r.set_ledger_since_ns(s.ledger_since_ns_);
    r.set_ledger_until_ns(s.ledger_until_ns_);
    r.set_ledger_capacity_device_us(s.ledger_capacity_device_us_);
    r.set_restart_backoff_ns(s.restart_backoff_ns_);
    r.set_listens_since_ns(s.listens_since_ns_);
    r.set_epoch(s.epoch_);
    r.set_adopted_epoch(s.adopted_epoch_);
    r.set_restoring(s.restoring_);
    for (const auto& [queue, history] : *s.history_) {
      pb::QueueHistoryRow* row = r.add_history();
      row->set_queue(queue);
      row->set_booked_device_us(history.booked_device_us);
      row->set_decayed_device_us(history.decayed_device_us);
    }
    r.set_history_tick(s.history_tick_);
    r.set_round(s.round_);
    return {"meta", "", DeterministicBytes(r)};
  }
  // All of it but the round. False: a ledger's class is unknown.
  static bool LoadMeta(const pb::MetaRecord& r, State* s) {
    s->next_job_number_ = r.next_job_number();
    s->queue_version_ = r.queue_version();
    s->now_ns_ = r.now_ns();
    s->epoch_ = r.epoch();
    s->adopted_epoch_ = r.adopted_epoch();
    s->restoring_ = r.restoring();
    s->restart_backoff_ns_ = r.restart_backoff_ns();
    s->listens_since_ns_ = r.listens_since_ns();
    std::map<std::pair<std::string, int>, int64_t> ledger;
    for (const pb::LedgerRow& l : r.ledger()) {
      const int ledger_class = LedgerClassOf(l.class_());
      if (ledger_class < 0) return false;
      ledger[{l.queue(), ledger_class}] = l.device_us();
    }
    s->ledger_ =
        std::make_shared<const std::map<std::pair<std::string, int>, int64_t>>(std::move(ledger));
    std::map<std::string, QueueHistory> history;
    for (const pb::QueueHistoryRow& h : r.history())
      history[h.queue()] = {h.booked_device_us(), h.decayed_device_us()};
    s->history_ = std::make_shared<const std::map<std::string, QueueHistory>>(std::move(history));
    s->history_tick_ = r.history_tick();
    s->ledger_since_ns_ = r.ledger_since_ns();
    s->ledger_until_ns_ = r.ledger_until_ns();
    s->ledger_capacity_device_us_ = r.ledger_capacity_device_us();
    return true;
  }
  static RowChange Job(const State& s, uint64_t number) {
    const JobRow* row = s.jobs_.Find(number);
    if (row == nullptr) return {"job", JobRowId(number), std::nullopt};
    std::string bytes = DeterministicBytes(ToRecord(s, *row));
    AppendField(pb::JobRecord::kSpecFieldNumber, *row->spec_bytes, &bytes);
    return {"job", JobRowId(number), std::move(bytes)};
  }
  static RowChange Host(const State& s, HostId id) {
    return {"host", s.HostName(id), DeterministicBytes(ToRecord(s, s.host(id)))};
  }
};

ChangedRows State::TakeChanges() {
  ChangedRows changed{configuration_changed_, meta_changed_, trust_changed_};
  std::map<std::string, HostId> hosts;
  for (const HostId id : changed_hosts_) hosts[HostName(id)] = id;
  for (const auto& [name, id] : hosts) changed.hosts.push_back(id);
  changed.jobs.assign(changed_jobs_.begin(), changed_jobs_.end());
  changed.certificates.assign(changed_certificates_.begin(), changed_certificates_.end());
  meta_changed_ = configuration_changed_ = trust_changed_ = false;
  changed_jobs_.clear();
  changed_hosts_.clear();
  changed_certificates_.clear();
  return changed;
}

std::vector<RowChange> State::RowsOf(const ChangedRows& changed) const {
  std::vector<RowChange> rows;
  if (changed.configuration) rows.push_back(StateRecords::Configuration(*this));
  if (changed.trust) rows.push_back(StateRecords::TrustRow(*this));
  for (const std::string& serial : changed.certificates)
    rows.push_back(StateRecords::Certificate(*this, serial));
  for (const HostId id : changed.hosts) rows.push_back(StateRecords::Host(*this, id));
  for (const uint64_t number : changed.jobs) rows.push_back(StateRecords::Job(*this, number));
  if (changed.meta) rows.push_back(StateRecords::Meta(*this));
  return rows;
}

std::vector<RowChange> State::AllRows() const {
  std::vector<RowChange> rows = {StateRecords::Configuration(*this)};
  if (!trust().trust_id.empty()) rows.push_back(StateRecords::TrustRow(*this));
  for (const auto& [serial, certificate] : trust().certificates)
    rows.push_back(StateRecords::Certificate(*this, serial));
  std::map<std::string, HostId> hosts;
  for (const HostId id : *host_order_) hosts[HostName(id)] = id;
  for (const auto& [name, id] : hosts) rows.push_back(StateRecords::Host(*this, id));
  for (const uint64_t number : AllJobs()) rows.push_back(StateRecords::Job(*this, number));
  rows.push_back(StateRecords::Meta(*this));
  return rows;
}

absl::StatusOr<JobRow> State::ParseJob(const std::string& bytes) const {
  pb::JobRecord record;
  if (!record.ParseFromString(bytes)) return absl::DataLossError("can't be parsed");
  JobRow job;
  if (absl::Status status = FromRecord(*this, record, &job); !status.ok()) return status;
  return job;
}

namespace {

absl::Status Damaged(const RowChange& row, const std::string& why) {
  return absl::DataLossError(absl::StrCat("row ", row.kind, " '", row.id, "': ", why));
}

void Configure(const pb::ConfigurationRecord& r, Applier* applier) {
  applier->SetQueues(r.queues());
  applier->SetClusters(r.clusters());
  for (const pb::DrainedCluster& d : r.drained())
    applier->SetClusterDrained(d.name(), true, d.reason());
  for (const pb::Binding& b : r.bindings()) applier->SetBinding(b, false);
}

}  // namespace

absl::StatusOr<State> State::Load(const std::vector<RowChange>& rows) {
  State s;
  Applier applier(&s);
  // Clusters first, then hosts, then jobs, which name them.
  std::vector<const RowChange*> hosts, jobs;
  uint64_t round = 0;
  bool configured = false;
  for (const RowChange& row : rows) {
    if (!row.bytes.has_value()) continue;
    if (row.kind == "host") {
      hosts.push_back(&row);
    } else if (row.kind == "job") {
      jobs.push_back(&row);
    } else if (row.kind == "configuration") {
      pb::ConfigurationRecord r;
      if (!r.ParseFromString(*row.bytes)) return Damaged(row, "can't be parsed");
      Configure(r, &applier);
      configured = true;
    } else if (row.kind == "trust") {
      pb::TrustRecord r;
      if (!r.ParseFromString(*row.bytes)) return Damaged(row, "can't be parsed");
      applier.SetTrust(r);
    } else if (row.kind == "certificate") {
      pb::IssuedCertificate r;
      if (!r.ParseFromString(*row.bytes)) return Damaged(row, "can't be parsed");
      applier.SetCertificate(r);
    } else if (row.kind == "meta") {
      pb::MetaRecord r;
      if (!r.ParseFromString(*row.bytes)) return Damaged(row, "can't be parsed");
      if (r.has_clusters()) {  // an older store: the next step writes the row that it lacks
        pb::ConfigurationRecord configuration;
        *configuration.mutable_queues() = r.queues();
        *configuration.mutable_clusters() = r.clusters();
        *configuration.mutable_drained() = r.drained();
        Configure(configuration, &applier);
      }
      if (!StateRecords::LoadMeta(r, &s)) return Damaged(row, "unknown ledger class");
      round = r.round();
    } else {
      return Damaged(row, "unknown kind");
    }
  }
  const auto by_id = [](const RowChange* a, const RowChange* b) { return a->id < b->id; };
  std::sort(hosts.begin(), hosts.end(), by_id);
  std::sort(jobs.begin(), jobs.end(), by_id);
  for (const RowChange* row : hosts) {
    pb::HostRecord r;
    if (!r.ParseFromString(*row->bytes)) return Damaged(*row, "can't be parsed");
    const HostId id = applier.FindOrAddHost(r.cluster(), r.host());
    if (id == kNoHost) return Damaged(*row, absl::StrCat("names unknown cluster ", r.cluster()));
    FromRecord(r, s.hosts_.Mutable(static_cast<size_t>(id)));
  }
  applier.OrderHosts();
  for (const RowChange* row : jobs) {
    absl::StatusOr<JobRow> job = s.ParseJob(*row->bytes);
    if (!job.ok()) return Damaged(*row, std::string(job.status().message()));
    applier.InsertLoaded(*std::move(job));
  }
  for (const HostId id : *s.host_order_) applier.RefreshHost(id);
  s.round_ = round;  // reading the configuration is no outside event
  s.meta_changed_ = false;
  s.configuration_changed_ = !configured;
  s.trust_changed_ = false;
  s.changed_jobs_.clear();
  s.changed_hosts_.clear();
  s.changed_certificates_.clear();
  return s;
}

}  // namespace muster
