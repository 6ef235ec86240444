#include "scheduler/api/metrics.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/units.h"
#include "scheduler/ask/top.h"

namespace muster {
namespace {

constexpr char kCpu[] = "cpu";  // the flavour of work without GPUs, as in quotas
constexpr int64_t kBoundsNs[] = {100'000,       250'000,       500'000,       1'000'000,
                                 2'500'000,     5'000'000,     10'000'000,    25'000'000,
                                 50'000'000,    100'000'000,   250'000'000,   500'000'000,
                                 1'000'000'000, 2'500'000'000, 5'000'000'000, 10'000'000'000};

using Labels = std::initializer_list<std::pair<const char*, std::string>>;

std::string Seconds(int64_t ns) {
  std::string text = absl::StrFormat("%d.%09d", ns / kSecond, ns % kSecond);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text;
}

// Writes families one after the other, each with all of its samples.
class Exposition {
 public:
  void Family(const std::string& name, const char* type, const char* help) {
    name_ = name;
    absl::StrAppend(&text_, "# HELP ", name, " ", help, "\n# TYPE ", name, " ", type, "\n");
  }
  void Sample(Labels labels, const std::string& value, const char* suffix = "") {
    absl::StrAppend(&text_, name_, suffix);
    const char* before = "{";
    for (const auto& [label, of] : labels) {
      absl::StrAppend(&text_, before, label, "=\"");
      for (const char c : of) {
        if (c == '\\' || c == '"' || c == '\n') text_ += '\\';
        text_ += c == '\n' ? 'n' : c;
      }
      text_ += '"';
      before = ",";
    }
    absl::StrAppend(&text_, labels.size() == 0 ? " " : "} ", value, "\n");
  }
  void One(const char* name, const char* type, const char* help, const std::string& value) {
    Family(name, type, help);
    Sample({}, value);
  }
  void Histogram(const char* name, const char* help, const Durations& durations) {
    Family(name, "histogram", help);
    for (const int64_t bound_ns : kBoundsNs)
      Sample({{"le", Seconds(bound_ns)}}, absl::StrCat(durations.CountUpTo(bound_ns)), "_bucket");
    Sample({{"le", "+Inf"}}, absl::StrCat(durations.count()), "_bucket");
    Sample({}, Seconds(static_cast<int64_t>(durations.sum_ns())), "_sum");
    Sample({}, absl::StrCat(durations.count()), "_count");
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

// The first that is so: a host counts once.
const char* HostStateName(const State& state, const HostRow& host) {
  if (host.state == pb::HOST_NEVER_SEEN) return "never_seen";
  if (host.state == pb::HOST_UNREACHABLE) return IsRemoved(state, host) ? "removed" : "unreachable";
  if (host.state == pb::HOST_SILENT) return "silent";
  if (host.drained || state.clusters()[host.cluster].drained) return "drained";
  return host.quarantined() ? "quarantined" : "up";
}

void WriteQueues(const MetricsInput& input, Exposition* out) {
  pb::TopRequest request;
  request.set_by(pb::TopRequest::QUEUE);
  request.set_limit(std::numeric_limits<int32_t>::max());
  const pb::TopResponse top = DescribeTop(input.view->state, *input.view->plan, request,
                                          input.now_ns, [](const JobRow&) { return true; });
  const auto family = [&](const char* name, const char* help, auto value) {
    out->Family(name, "gauge", help);
    for (const pb::TopResponse::Row& row : top.rows()) {
      if (const std::string text = value(row); !text.empty())
        out->Sample(
            {{"queue", row.name()}, {"flavour", row.flavour().empty() ? kCpu : row.flavour()}},
            text);
    }
  };
  using Row = const pb::TopResponse::Row&;
  family("muster_queue_guaranteed_devices",
         "Devices (cores, where the flavour is cpu) that the queue is guaranteed.",
         [](Row row) { return FormatMilli(row.guarantee_milli()); });
  family("muster_queue_limit_devices",
         "Most devices that the queue may use; absent where it has no limit.",
         [](Row row) { return row.has_limit_milli() ? FormatMilli(row.limit_milli()) : ""; });
  family("muster_queue_entitled_devices",
         "Devices of the work that may run now by guarantees, weights, limits and demand.",
         [](Row row) { return FormatMilli(row.entitled_milli()); });
  family("muster_queue_used_devices", "Devices that the queue's tasks hold.",
         [](Row row) { return FormatMilli(row.used_milli()); });
  family("muster_queue_borrowed_devices", "Devices that they hold above the guarantee.",
         [](Row row) {
           return FormatMilli(std::max<int64_t>(0, row.used_milli() - row.guarantee_milli()));
         });
  family("muster_queue_waiting_devices",
         "Devices that its waiting tasks need to start, each counted for the first flavour that it "
         "allows.",
         [](Row row) { return FormatMilli(row.waiting_milli()); });
  family("muster_queue_running_tasks", "Tasks that hold devices.",
         [](Row row) { return absl::StrCat(row.running_tasks()); });
  family("muster_queue_waiting_tasks",
         "Tasks that want a placement; not those that wait for other tasks of their job.",
         [](Row row) { return absl::StrCat(row.waiting_tasks()); });
  family("muster_queue_oldest_wait_seconds", "How long the oldest of the waiting tasks waits.",
         [](Row row) { return Seconds(row.oldest_wait_ns()); });
}

void WriteHosts(const State& state, Exposition* out) {
  std::vector<std::map<std::string_view, int64_t>> hosts(state.clusters().size());
  for (const HostId id : state.hosts())
    ++hosts[state.host(id).cluster][HostStateName(state, state.host(id))];
  out->Family("muster_hosts", "gauge", "Hosts; each is in one state.");
  for (size_t c = 0; c < hosts.size(); ++c) {
    for (const char* name :
         {"up", "silent", "unreachable", "never_seen", "drained", "quarantined", "removed"}) {
      out->Sample({{"cluster", state.clusters()[c].name}, {"state", name}},
                  absl::StrCat(hosts[c][name]));
    }
  }
  out->Family("muster_devices", "gauge",
              "Devices of all hosts that are listed or were seen, but for removed ones; a shared "
              "one counts in parts.");
  for (const auto& [pool, use] : UseByPool(state)) {
    const int64_t down_milli = use.down_milli - use.quarantined_milli;
    for (const auto& [name, milli] :
         {std::pair("used", use.used_milli),
          std::pair("free", use.total_milli - use.used_milli - use.down_milli),
          std::pair("quarantined", use.quarantined_milli), std::pair("down", down_milli)}) {
      out->Sample({{"cluster", state.clusters()[pool.first].name},
                   {"flavour", pool.second},
                   {"state", name}},
                  FormatMilli(milli));
    }
  }
}

void WriteLogins(const ProviderCounts& counts, Exposition* out) {
  out->Family("muster_provider_logins_total", "counter",
              "Logins by identity providers: those that were given a certificate, those that were "
              "refused, and those whose provider's keys could not be read.");
  out->Sample({{"outcome", "issued"}}, absl::StrCat(counts.issued));
  out->Sample({{"outcome", "refused"}}, absl::StrCat(counts.refused));
  out->Sample({{"outcome", "unavailable"}}, absl::StrCat(counts.unavailable));
  out->Family("muster_provider_key_reads_total", "counter",
              "How often keys of identity providers were asked for.");
  out->Sample({{"outcome", "read"}}, absl::StrCat(counts.fetches - counts.failed_fetches));
  out->Sample({{"outcome", "failed"}}, absl::StrCat(counts.failed_fetches));
}

void WriteNetwork(const NetworkCounts& counts, Exposition* out) {
  out->One("muster_connections", "gauge", "Connections over the network.",
           absl::StrCat(counts.open));
  out->One("muster_connections_accepted_total", "counter", "Connections that came.",
           absl::StrCat(counts.accepted));
  out->One(
      "muster_connections_refused_total", "counter",
      "Connections that were closed at once: their address has too many or waits, or all have.",
      absl::StrCat(counts.refused));
  out->Family(
      "muster_connections_ended_total", "counter",
      "Connections that musterd ended; no_call: those that ended by themselves before a call, as "
      "at tls.listen without a certificate.");
  out->Sample({{"why", "no_call"}}, absl::StrCat(counts.without_call));
  out->Sample({{"why", "silent"}}, absl::StrCat(counts.silent));
  out->Sample({{"why", "unexplained"}}, absl::StrCat(counts.unexplained));
  out->Sample({{"why", "too_many"}}, absl::StrCat(counts.holders));
  out->Sample({{"why", "certificate"}}, absl::StrCat(counts.untrusted));
}

}  // namespace

std::string RenderMetrics(const MetricsInput& input) {
  Exposition out;
  const EngineStats& stats = input.stats;
  const auto counter = [&out](const char* name, const char* help, uint64_t value) {
    out.One(name, "counter", help, absl::StrCat(value));
  };

  out.Family("muster_build_info", "gauge", "Always 1; the label is musterd's version.");
  out.Sample({{"version", input.version}}, "1");
  out.One("muster_uptime_seconds", "gauge", "Time since musterd started.",
          Seconds(input.uptime_ns));
  out.One("muster_takes_submissions", "gauge",
          "1 while new jobs are taken; 0 where the store's disk is nearly full, or a later state "
          "of the store is known.",
          input.takes_submissions ? "1" : "0");
  out.One("muster_agent_sessions", "gauge", "Agents that are connected.",
          absl::StrCat(input.agent_sessions));
  counter("muster_unproved_hellos_total",
          "Agents that were refused, each time, as they claim to have seen a later state of the "
          "store and have no MAC of it.",
          input.unproved_hellos);
  out.Family(
      "muster_store_bytes", "gauge",
      "Size of the store's files: journal and rows, and what of them is in the write-ahead log.");
  out.Sample({{"file", "database"}}, absl::StrCat(input.database_bytes));
  out.Sample({{"file", "wal"}}, absl::StrCat(input.wal_bytes));

  out.One("muster_audit_bytes", "gauge", "Size of the audit's files.",
          absl::StrCat(input.audit_bytes));

  WriteQueues(input, &out);
  WriteHosts(input.view->state, &out);

  counter("muster_agent_rests_total",
          "How often a host that said too much was not read on for a moment.", input.agent_rests);
  counter("muster_submissions_total", "Jobs that were submitted; a repeated request counts once.",
          stats.submissions);
  counter("muster_starts_total", "Attempts of tasks that were placed.", stats.starts);
  counter("muster_evictions_total", "Attempts that were told to stop so that others can start.",
          stats.evictions);
  counter("muster_events_committed_total", "Events written to the journal.", stats.events);
  counter("muster_plans_committed_total", "Plans that were accepted and carried out.", stats.plans);
  counter(
      "muster_plans_refused_total",
      "Plans that the check refused: each is a fault of Muster's, kept in data_dir/refused-plans.",
      stats.refused_plans);
  if (input.logins.has_value()) WriteLogins(*input.logins, &out);
  if (input.network.has_value()) WriteNetwork(*input.network, &out);
  out.Histogram("muster_step_duration_seconds",
                "Time of an engine step from taking the events to answering the callers.",
                stats.step);
  out.Histogram("muster_decide_duration_seconds",
                "Part of it that deciding, checking and applying the plan took.", stats.decide);
  out.Histogram("muster_commit_duration_seconds", "Part of it that the store's commit took.",
                stats.commit);
  return out.Take();
}

}  // namespace muster
