#include <functional>
#include <string>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/commands/commands.h"
#include "cli/interrupt.h"
#include "cli/render/explain.h"
#include "cli/render/fleet.h"

namespace muster {
namespace {

constexpr char kYesHelp[] = "Don't ask; without a terminal nothing is asked";

int ListClusters(Session& session) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  absl::StatusOr<pb::ListClustersResponse> response = (*client)->ListClusters();
  if (!response.ok()) return session.Fail(response.status());
  std::vector<pb::Cluster> clusters(response->clusters().begin(), response->clusters().end());
  std::vector<const google::protobuf::Message*> rows;
  std::vector<std::string> names;
  for (const pb::Cluster& cluster : clusters) {
    rows.push_back(&cluster);
    names.push_back(cluster.name());
  }
  return session.Show(ClustersTable(clusters), *response, rows, names);
}

int ShowCluster(Session& session, const std::string& name) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  absl::StatusOr<pb::Cluster> cluster = (*client)->GetCluster(name);
  if (!cluster.ok()) return session.Fail(cluster.status());
  return session.Show(ClustersTable({*cluster}), *cluster, {&*cluster}, {cluster->name()});
}

int ListHosts(Session& session, const std::string& cluster) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  absl::StatusOr<pb::ListHostsResponse> response = (*client)->ListHosts(cluster);
  if (!response.ok()) return session.Fail(response.status());
  std::vector<pb::Host> hosts(response->hosts().begin(), response->hosts().end());
  std::vector<const google::protobuf::Message*> rows;
  std::vector<std::string> names;
  for (const pb::Host& host : hosts) {
    rows.push_back(&host);
    names.push_back(host.name());
  }
  return session.Show(HostsTable(hosts, session.now_ns()), *response, rows, names);
}

int ShowHost(Session& session, const std::string& name) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  absl::StatusOr<pb::Host> host = (*client)->GetHost(name);
  if (!host.ok()) return session.Fail(host.status());
  std::string text = absl::StrCat(
      HostsTable({*host}, session.now_ns()).Render(session.out_screen()), "\n",
      DevicesTable(*host).Render(session.out_screen()), HostNotes(*host, session.now_ns()));
  return session.ShowOne(text, *host, host->name());
}

// On a terminal it shows first what `simulate` says of it, and asks.
int Drain(Session& session, const std::string& target, const std::string& reason, bool yes) {
  Interrupt interrupt;
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  if (session.asks() && !yes) {
    pb::SimulateRequest request;
    request.add_drain(target);
    absl::StatusOr<pb::SimulateResponse> simulated = (*client)->Simulate(request);
    if (!simulated.ok()) return session.Fail(simulated.status());
    session.Err(RenderSimulation(*simulated, session.err_screen()));
    if (!session.Confirms(absl::StrCat("Drain ", target, "? [y/N] "), interrupt, /*enter=*/false)) {
      session.Err("Nothing was drained.\n");
      return interrupt.pending() ? kExitInterrupted : kExitOk;
    }
  }
  absl::StatusOr<pb::DrainResponse> response = (*client)->Drain(target, reason);
  if (!response.ok()) return session.Fail(response.status());
  std::string text = absl::StrCat(target, " is drained: nothing new starts there.");
  if (response->jobs_size() > 0)
    absl::StrAppend(&text, " These are stopped and move: ", absl::StrJoin(response->jobs(), ", "),
                    ".");
  return session.ShowOne(absl::StrCat(text, "  Undo: muster ",
                                      target.find('/') == std::string::npos ? "cluster" : "host",
                                      " resume ", target, "\n"),
                         *response, target);
}

// What else keeps work from what was resumed: the host's cluster, or hosts of the cluster. Nothing
// where that can't be told.
std::string StillDrained(Client& client, const std::string& target) {
  const size_t slash = target.find('/');
  if (slash != std::string::npos) {
    const std::string cluster = target.substr(0, slash);
    const absl::StatusOr<pb::Cluster> whole = client.GetCluster(cluster);
    return whole.ok() && whole->drained()
               ? absl::StrCat(" once its cluster does, which is drained",
                              whole->drain_reason().empty() ? "" : ": ",
                              Plain(whole->drain_reason()), ".  muster cluster resume ", cluster)
               : "";
  }
  const absl::StatusOr<pb::ListHostsResponse> hosts = client.ListHosts(target);
  std::vector<std::string> drained;
  if (!hosts.ok()) return "";
  for (const pb::Host& host : hosts->hosts()) {
    if (host.drained()) drained.push_back(host.name());
  }
  if (drained.empty()) return "";
  if (static_cast<int>(drained.size()) == hosts->hosts_size())
    return absl::StrCat(
        " once its hosts do, which are all drained themselves.  muster host resume ", drained[0]);
  return absl::StrCat(
      " but for ", drained.size() == 1 ? drained[0] : absl::StrCat(drained.size()),
      drained.size() == 1 ? ", which is drained itself" : " hosts that are drained themselves",
      ".  muster host resume ", drained[0]);
}

int Resume(Session& session, const std::string& target) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  absl::Status status = (*client)->Resume(target);
  if (!status.ok()) return session.Fail(status);
  const std::string but = StillDrained(**client, target);
  return session.ShowOne(absl::StrCat(target, " takes work again", but.empty() ? "." : but, "\n"),
                         pb::ResumeResponse(), target);
}

// On a terminal it asks, as a drain does.
int ConfirmOff(Session& session, const std::string& host, bool yes) {
  Interrupt interrupt;
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const std::string question =
      absl::StrCat("Is ", host, " switched off? What still runs there would run twice. [y/N] ");
  if (session.asks() && !yes && !session.Confirms(question, interrupt, /*enter=*/false)) {
    session.Err("Nothing was changed.\n");
    return interrupt.pending() ? kExitInterrupted : kExitOk;
  }
  absl::StatusOr<pb::ConfirmOffResponse> response = (*client)->ConfirmOff(host);
  if (!response.ok()) return session.Fail(response.status());
  std::string text = absl::StrCat(host, " counts as off until it speaks again.");
  if (response->jobs_size() > 0)
    absl::StrAppend(&text, " These may start elsewhere: ", absl::StrJoin(response->jobs(), ", "),
                    ".");
  return session.ShowOne(text + "\n", *response, host);
}

int Release(Session& session, const std::string& host, std::optional<int32_t> device) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  absl::StatusOr<pb::ReleaseQuarantineResponse> response =
      (*client)->ReleaseQuarantine(host, device);
  if (!response.ok()) return session.Fail(response.status());
  std::vector<std::string> what;
  for (const pb::Quarantine& row : response->released())
    what.push_back(row.device() < 0 ? "the host" : absl::StrCat("device ", row.device()));
  return session.ShowOne(
      absl::StrCat(host, ": ", absl::StrJoin(what, ", "),
                   " may get work again; what spoke against it counts no more.\n"),
      *response, host);
}

// What `muster host` was told to do.
struct HostCommand {
  std::string verb;
  std::string behind = "";  // what stands behind the host's name: " 3"
  bool of_clusters = true;  // whether `muster cluster` has the verb, too
};

// "" of what may be a host's name. The verbs take clusters, too, so `muster host drain lab` would
// drain all of them.
std::string WhyNoHost(Client& client, const HostCommand& command, const std::string& name) {
  if (absl::StrContains(name, "/")) return "";
  const absl::StatusOr<pb::ListHostsResponse> hosts = client.ListHosts("");
  if (!hosts.ok()) return "";  // not the caller's to see, perhaps: the server refuses
  std::vector<std::string> meant;
  bool is_cluster = false;
  for (const pb::Host& host : hosts->hosts()) {
    if (absl::EndsWith(host.name(), absl::StrCat("/", name))) meant.push_back(host.name());
    is_cluster = is_cluster || absl::StartsWith(host.name(), absl::StrCat(name, "/"));
  }
  if (meant.size() == 1)
    return absl::StrCat(name, ": hosts are named with their cluster: muster host ", command.verb,
                        " ", meant[0], command.behind);
  if (!meant.empty())
    return absl::StrCat(name,
                        ": hosts are named with their cluster: ", absl::StrJoin(meant, " or "));
  if (is_cluster)
    return absl::StrCat(
        name, " is a cluster",
        command.of_clusters ? absl::StrCat(": muster cluster ", command.verb, " ", name) : "",
        ". Its hosts: muster host list ", name);
  return absl::StrCat("there is no host ", name, ". Those there are: muster host list");
}

// Checks first that a host is named.
int ToHost(Session& session, const HostCommand& command, const std::string& target,
           const std::function<int()>& act) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  const std::string why = WhyNoHost(**client, command, target);
  return why.empty() ? act() : session.Fail(absl::NotFoundError(why));
}

// Of `cluster/host` checks first that a host is named.
int ToOne(Session& session, bool of_host, const std::string& verb, const std::string& target,
          const std::function<int()>& act) {
  return of_host ? ToHost(session, {.verb = verb}, target, act) : act();
}

// `cluster` and `host` have the same three verbs.
void AddVerbs(CLI::App* noun, Session& session, const std::string& what,
              const std::function<int(const std::string&)>& show) {
  auto target = std::make_shared<std::string>();
  auto reason = std::make_shared<std::string>();
  CLI::App* show_command = noun->add_subcommand("show", "One of them");
  show_command->add_option(what, *target)->required();
  const bool of_host = what != "cluster";
  show_command->callback([&session, target, show, of_host] {
    session.command = [&session, target, show, of_host] {
      return ToOne(session, of_host, "show", *target, [&] { return show(*target); });
    };
  });
  auto yes = std::make_shared<bool>(false);
  CLI::App* drain =
      noun->add_subcommand("drain", "Start nothing new there; what runs is stopped and moves");
  drain->add_option(what, *target)->required();
  drain->add_option("--reason", *reason, "Shown to everybody who waits for it");
  drain->add_flag("-y,--yes", *yes, kYesHelp);
  drain->callback([&session, target, reason, yes, of_host] {
    session.command = [&session, target, reason, yes, of_host] {
      return ToOne(session, of_host, "drain", *target,
                   [&] { return Drain(session, *target, *reason, *yes); });
    };
  });
  CLI::App* resume = noun->add_subcommand("resume", "Take work again");
  resume->add_option(what, *target)->required();
  resume->callback([&session, target, of_host] {
    session.command = [&session, target, of_host] {
      return ToOne(session, of_host, "resume", *target, [&] { return Resume(session, *target); });
    };
  });
  for (CLI::App* command : {show_command, drain, resume}) command->fallthrough();
}

}  // namespace

void AddFleet(CLI::App& root, Session& session) {
  CLI::App* cluster = root.add_subcommand("cluster", "Clusters: list, show, drain, resume (sinfo)");
  cluster->require_subcommand(1);
  CLI::App* list = cluster->add_subcommand("list", "All of them, with their devices");
  list->fallthrough();
  list->callback([&session] { session.command = [&session] { return ListClusters(session); }; });
  AddVerbs(cluster, session, "cluster",
           [&session](const std::string& name) { return ShowCluster(session, name); });

  CLI::App* host = root.add_subcommand(
      "host", "Hosts: list, show, drain, resume, release, confirm-off, token, revoke");
  host->require_subcommand(1);
  auto of = std::make_shared<std::string>();
  CLI::App* hosts = host->add_subcommand("list", "All of them, with what runs there");
  hosts->fallthrough();
  hosts->add_option("cluster", *of, "Only this cluster's");
  hosts->callback(
      [&session, of] { session.command = [&session, of] { return ListHosts(session, *of); }; });
  auto off = std::make_shared<std::string>();
  auto is_off = std::make_shared<bool>(false);
  CLI::App* confirm = host->add_subcommand("confirm-off",
                                           "Say that nothing runs on a host that can't be reached: "
                                           "you have switched it off. Its tasks start elsewhere");
  confirm->fallthrough();
  confirm->add_option("cluster/host", *off)->required();
  confirm->add_flag("-y,--yes", *is_off, kYesHelp);
  confirm->callback([&session, off, is_off] {
    session.command = [&session, off, is_off] {
      return ToHost(session, {.verb = "confirm-off", .of_clusters = false}, *off,
                    [&] { return ConfirmOff(session, *off, *is_off); });
    };
  });
  auto kept = std::make_shared<std::string>();
  auto device = std::make_shared<std::optional<int32_t>>();
  CLI::App* release =
      host->add_subcommand("release", "End a quarantine: work may be placed there again");
  release->fallthrough();
  release->add_option("cluster/host", *kept)->required();
  release->add_option("device", *device, "Only this device, by its index");
  release->callback([&session, kept, device] {
    session.command = [&session, kept, device] {
      const std::string behind = device->has_value() ? absl::StrCat(" ", **device) : "";
      return ToHost(session, {.verb = "release", .behind = behind, .of_clusters = false}, *kept,
                    [&] { return Release(session, *kept, *device); });
    };
  });
  AddHostTokens(host, session);
  AddVerbs(host, session, "cluster/host",
           [&session](const std::string& name) { return ShowHost(session, name); });
}

}  // namespace muster
