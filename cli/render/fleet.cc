#include "cli/render/fleet.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/units.h"

namespace muster {
namespace {

std::string HostStateName(const pb::Host& host) {
  std::string text;
  switch (host.state()) {
    case pb::HOST_UP:
      text = "up";
      break;
    case pb::HOST_SILENT:
      text = "silent";
      break;
    case pb::HOST_UNREACHABLE:
      text = "unreachable";
      break;
    case pb::HOST_NEVER_SEEN:
      text = "never seen";
      break;
    default:
      text = "unknown";
  }
  if (host.drained()) absl::StrAppend(&text, ", drained");
  for (const pb::Quarantine& row : host.quarantines()) {
    if (row.device() < 0 && !row.withheld()) absl::StrAppend(&text, ", quarantined");
  }
  return text;
}

// "device 3 in quarantine: blamed 2 times in 24h, last: …"
std::string QuarantineLine(const pb::Quarantine& row) {
  return absl::StrCat(row.device() < 0 ? "" : absl::StrCat("device ", row.device(), " "),
                      row.withheld()
                          ? "would be in quarantine, but too much of the cluster is already"
                          : "in quarantine",
                      ": ", Plain(row.reason()));
}

std::string WhyNotHealthy(const pb::Host& host, const pb::Device& device) {
  for (const pb::Quarantine& row : host.quarantines()) {
    if (!row.withheld() && (row.device() < 0 || row.device() == device.index()))
      return "NO, in quarantine";
  }
  return device.fault().empty() ? "NO" : absl::StrCat("NO: ", device.fault());
}

std::string BlameLine(const pb::Blame& blame, int64_t now_ns) {
  const std::string who = blame.job() != 0
                              ? absl::StrCat("job ", blame.job(), " ", Plain(blame.task()),
                                             " attempt ", blame.attempt())
                          : blame.attempt() != 0 ? "another's job"
                                                 : "its host";
  const char* how = blame.kind() == pb::BLAME_CERTAIN ? "certain"
                    : blame.kind() == pb::BLAME_SLOW  ? "slow"
                                                      : "by its log";
  return absl::StrCat("  ", FormatSpan(now_ns - blame.at_ns()), " ago  ",
                      blame.device() < 0 ? "" : absl::StrCat("device ", blame.device(), "  "), who,
                      " (", how, "): ", Plain(blame.detail()), "\n");
}

}  // namespace

std::string HostNotes(const pb::Host& host, int64_t now_ns) {
  std::string text;
  for (const pb::Quarantine& row : host.quarantines()) {
    absl::StrAppend(&text, QuarantineLine(row), "\n  since ", FormatSpan(now_ns - row.since_ns()),
                    row.release_ns() > 0 ? absl::StrCat(", released by itself in ",
                                                        FormatSpan(row.release_ns() - now_ns))
                                         : "",
                    "; muster host release ", host.name(),
                    row.device() < 0 ? "" : absl::StrCat(" ", row.device()), " ends it\n");
    if (!row.check_detail().empty())
      absl::StrAppend(&text, "  its host failed the last check: ", Plain(row.check_detail()), "\n");
    for (const pb::Blame& blame : row.evidence()) absl::StrAppend(&text, BlameLine(blame, now_ns));
  }
  if (host.blames_size() > 0)
    absl::StrAppend(&text, "Blamed, not often enough for a quarantine:\n");
  for (const pb::Blame& blame : host.blames()) absl::StrAppend(&text, BlameLine(blame, now_ns));
  if (!host.only_user().empty())
    absl::StrAppend(&text, "Takes jobs of ", Plain(host.only_user()), " alone\n");
  if (!host.confirmed_off_by().empty())
    absl::StrAppend(&text, "Counts as off: said by ", Plain(host.confirmed_off_by()), "\n");
  if (!host.fence_detail().empty())
    absl::StrAppend(&text, "fence_command failed: ", Plain(host.fence_detail()), "\n");
  if (!host.inventory().low_disk().empty())
    absl::StrAppend(&text, "Takes nothing new: ", Plain(host.inventory().low_disk()), "\n");
  if (!host.inventory().isolation().empty())
    absl::StrAppend(&text, "Attempts are kept apart by ", Plain(host.inventory().isolation()),
                    "\n");
  return text.empty() ? text : absl::StrCat("\n", text);
}

Table QueuesTable(const std::vector<pb::Queue>& queues) {
  Table table({{"QUEUE"},
               {"FLAVOUR"},
               {"GUARANTEE", Table::kRight},
               {"ENTITLED", Table::kRight},
               {"IN USE", Table::kRight},
               {"LIMIT", Table::kRight, false, 1},
               {"WEIGHT", Table::kRight, false, 2},
               {"JOBS RUN", Table::kRight},
               {"JOBS WAIT", Table::kRight},
               {"ORDER", Table::kLeft, true},
               {"SUBMIT", Table::kLeft, true},
               {"HELD", Table::kLeft, true}});
  for (const pb::Queue& queue : queues) {
    std::string running = absl::StrCat(queue.running_jobs()),
                waiting = absl::StrCat(queue.waiting_jobs());
    std::string submit = absl::StrJoin(queue.spec().submit(), ","),
                held = queue.spec().held() ? "held" : "";
    const std::string order = queue.spec().order() == pb::SHORTEST ? "shortest" : "fifo";
    if (queue.use_size() == 0)
      table.AddRow({queue.path(), "", "", "", "", "", "", running, waiting, order, submit, held});
    bool first = true;
    for (const pb::QueueUse& use : queue.use()) {
      table.AddRow({queue.path(), FlavourName(use.flavour(), use.declared()),
                    FormatMilli(use.guarantee_milli()), FormatMilli(use.entitled_milli()),
                    FormatMilli(use.used_milli()),
                    use.limit_milli() < 0 ? "none" : FormatMilli(use.limit_milli()),
                    absl::StrCat(use.weight()), first ? running : "", first ? waiting : "", order,
                    submit, held});
      first = false;
    }
  }
  return table;
}

Table ClustersTable(const std::vector<pb::Cluster>& clusters) {
  Table table({{"CLUSTER"},
               {"STATE"},
               {"HOSTS UP", Table::kRight},
               {"FLAVOUR"},
               {"DEVICES", Table::kRight},
               {"IN USE", Table::kRight},
               {"FREE", Table::kRight},
               {"DRAINED", Table::kRight},
               {"WHY"}});
  for (const pb::Cluster& cluster : clusters) {
    std::string state = cluster.drained() ? "drained" : "open";
    std::string hosts = absl::StrCat(cluster.hosts_up(), " of ", cluster.hosts_known());
    if (cluster.capacity_size() == 0)
      table.AddRow({cluster.name(), state, hosts, "", "", "", "", "", cluster.drain_reason()});
    for (const pb::Capacity& c : cluster.capacity()) {
      const int64_t idle_milli = std::max<int64_t>(
          0, c.total_milli() - c.used_milli());  // nothing starts on what is drained
      const int64_t drained_milli =
          cluster.drained() ? idle_milli : std::min(idle_milli, c.drained_milli());
      table.AddRow({cluster.name(), state, hosts, FlavourName(c.flavour(), c.declared()),
                    FormatMilli(c.total_milli()), FormatMilli(c.used_milli()),
                    FormatMilli(idle_milli - drained_milli),
                    drained_milli > 0 || cluster.drained() ? FormatMilli(drained_milli) : "",
                    cluster.drain_reason()});
    }
  }
  return table;
}

Table HostsTable(const std::vector<pb::Host>& hosts, int64_t now_ns) {
  Table table({{"HOST"},
               {"STATE"},
               {"DEVICES"},
               {"IN USE", Table::kRight},
               {"CPUS FREE", Table::kRight},
               {"MEMORY FREE", Table::kRight},
               {"JOBS"},
               {"HEARD", Table::kRight},
               {"BLOCK", Table::kLeft, true},
               {"RACK", Table::kLeft, true},
               {"ADDRESS", Table::kLeft, true},
               {"AGENT", Table::kLeft, true},
               {"WHY"}});
  for (const pb::Host& host : hosts) {
    int64_t used_milli = 0;
    std::vector<uint64_t> jobs;
    for (const pb::DeviceUse& use : host.use()) {
      used_milli += use.used_milli();
      jobs.insert(jobs.end(), use.jobs().begin(), use.jobs().end());
    }
    std::sort(jobs.begin(), jobs.end());
    jobs.erase(std::unique(jobs.begin(), jobs.end()), jobs.end());
    const pb::Inventory& inventory = host.inventory();
    std::string devices =
        inventory.devices_size() == 0
            ? ""
            : absl::StrCat(inventory.devices_size(), " x ",
                           FlavourName(inventory.flavour(), inventory.declared()));
    std::string name = host.name().find('/') == std::string::npos
                           ? absl::StrCat(host.cluster(), "/", host.name())
                           : host.name();
    std::vector<std::string> whys;
    if (!host.drain_reason().empty()) whys.push_back(host.drain_reason());
    if (!host.differs().empty()) whys.push_back(absl::StrCat("not as its SKU: ", host.differs()));
    for (const pb::Quarantine& row : host.quarantines()) whys.push_back(QuarantineLine(row));
    const std::string why = absl::StrJoin(whys, "; ");
    table.AddRow({name, HostStateName(host), devices, FormatMilli(used_milli),
                  FormatMilli(host.cpus_free_milli()), FormatSize(host.memory_free_bytes()),
                  absl::StrJoin(jobs, ","),
                  host.last_heard_ns() > 0
                      ? absl::StrCat(FormatSpan(now_ns - host.last_heard_ns()), " ago")
                      : "",
                  host.block(), host.rack(), inventory.address(), inventory.agent_version(), why});
  }
  return table;
}

Table DevicesTable(const pb::Host& host) {
  Table table({{"DEVICE", Table::kRight},
               {"FLAVOUR"},
               {"UUID"},
               {"ISLAND", Table::kRight},
               {"MEMORY", Table::kRight},
               {"HEALTHY"},
               {"IN USE", Table::kRight},
               {"JOBS"}});
  for (const pb::Device& device : host.inventory().devices()) {
    int64_t used_milli = 0;
    std::string jobs;
    for (const pb::DeviceUse& use : host.use()) {
      if (use.index() != device.index()) continue;
      used_milli = use.used_milli();
      jobs = absl::StrJoin(use.jobs(), ",");
    }
    table.AddRow({absl::StrCat(device.index()),
                  FlavourName(host.inventory().flavour(), host.inventory().declared()),
                  device.uuid(), absl::StrCat(device.island()),
                  device.memory_bytes() > 0 ? FormatSize(device.memory_bytes()) : "",
                  device.healthy() ? "yes" : WhyNotHealthy(host, device), FormatMilli(used_milli),
                  jobs});
  }
  return table;
}

}  // namespace muster
