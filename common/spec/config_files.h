// Operators' and clients' files: clusters, queues, musterd's configuration, declared inventories,
// client contexts. All strict: unknown or duplicate fields, wrong types and values out of range are
// problems with places, all at once. Each function returns true and fills *out, or returns false
// and adds to *problems (sorted by place). Pure.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/units.h"
#include "common/spec/problem.h"
#include "common/spec/spec.h"
#include "muster/v1/cluster.pb.h"
#include "muster/v1/queue.pb.h"

namespace muster {

// clusters.yaml (deploy/examples). In `topology`, block → rack → list of hosts. A host is "h07", a
// range "h[01-08]" (numbers keep their width), or a map {host: "h[05-06]", sku: a100x4} that names
// another SKU than the cluster's. `open: true`: any host may join. A SKU with `declared: true` is a
// stand-in. Hosts are listed in file order, at most 100,000 in all.
bool ParseClusterFile(std::string_view text, std::string_view filename, pb::ClusterFile* out,
                      std::vector<Problem>* problems);

// The SKU of a cluster's host; null if the file has none of that name.
const pb::Sku* SkuOf(const pb::ClusterFile& file, const pb::ClusterSpec& cluster,
                     const pb::HostSpec& host);
// What a host of this SKU has: healthy devices with indexes from 0 and uuids UUIDS0, UUIDS1, …
// (none if `uuids` is empty).
void FillInventory(const pb::Sku& sku, std::string_view uuids, pb::Inventory* out);
// As an agent of this release on a host that lets it: every kind of job starts there.
void AnnounceAll(pb::Inventory* inventory);
// How an inventory contradicts the SKU, such as "5 devices instead of 2"; empty if it doesn't. A
// tenth of memory or disk, less or more, is none: firmware and file systems take their part.
std::string HowDiffers(const pb::Sku& sku, const pb::Inventory& inventory);
// Takes out of the inventory what is above the SKU: devices of another flavour, the last of too
// many, and CPUs, memory and disk beyond it, where the SKU says how much.
void KeepTo(const pb::Sku& sku, pb::Inventory* inventory);
// Which SKU each host of a clusters file is of. Thread-safe.
class HostSkus {
 public:
  explicit HostSkus(pb::ClusterFile file);
  HostSkus(const HostSkus&) = delete;
  HostSkus& operator=(const HostSkus&) = delete;

  // Keeps the inventory to the host's SKU, and returns how it differed; empty if the file says no
  // SKU: then all of it counts. A host that joined an open cluster is of the cluster's.
  std::string Keep(const std::string& cluster, const std::string& host,
                   pb::Inventory* inventory) const;

 private:
  struct Cluster {
    const pb::Sku* sku = nullptr;
    std::map<std::string, const pb::Sku*> others;  // of hosts that name one of their own
  };
  const pb::ClusterFile file_;
  std::map<std::string, Cluster> clusters_;  // their SKUs are file_'s
};

// queues.yaml. A quota's guarantee is a number of devices, or a map with one per cluster (then
// guarantee_milli is their sum). Refused: guarantee above limit, children's guarantees above their
// parent's (in total, and per cluster where both say it), weights out of range, same names among
// siblings. `clusters` (names) and `flavours` are checked where not empty.
struct QueueContext {
  std::vector<std::string> clusters;
  std::vector<std::string> flavours;
};
bool ParseQueueFile(std::string_view text, std::string_view filename, const QueueContext& context,
                    pb::QueueTree* out, std::vector<Problem>* problems);
// The same rules for a tree that arrives as a proto; paths such as
// queues[1].quota.h100-80g.guarantee.
std::vector<FieldProblem> CheckQueueTree(const pb::QueueTree& tree,
                                         const QueueContext& context = {});
// PlaceProblems for a queues file.
std::vector<Problem> PlaceQueueProblems(std::string_view text, std::string_view filename,
                                        const std::vector<FieldProblem>& found);
std::string QueueTreeToYaml(const pb::QueueTree& tree);

// musterd.yaml. `http` and `auth` are refused with "not yet"; `listen` must be unix:///PATH,
// `metrics_listen` loopback; a network is served by `tls` only.
struct MusterdUser {
  std::string name;
  uint32_t uid = 0;
  std::vector<std::string> groups;
};
struct TlsConfig {
  std::string listen, join;            // ADDRESS:PORT; empty: no network is served
  std::vector<std::string> addresses;  // what hosts and users are told, HOST:PORT
  std::string join_address;            // the same of `join`
  std::string master_key;              // path
  int64_t host_life_ns = 7 * kDay, user_life_ns = 12 * kHour, server_life_ns = 30 * kDay;
};
// An identity provider (OpenID Connect) whose users may log in.
struct OidcConfig {
  std::string issuer, client_id;
  std::vector<std::string> audiences;  // that count beside client_id
  std::vector<std::string> scopes = {"openid", "profile", "email"};
  std::string name_claim = "preferred_username";
  std::string domain;  // the claim is NAME@domain; empty: NAME
  std::string groups_claim;
  std::vector<std::string> groups;  // of the claim those that count
  std::string ca;                   // path; empty: the authorities that the machine trusts
  int64_t leeway_ns = kMinute, max_age_ns = 10 * kMinute, log_in_again_ns = 7 * kDay;
  bool without_nonce = false, existing_users = false;
};
struct MusterdConfig {
  std::string listen;          // unix:///path
  std::string metrics_listen;  // 127.0.0.1:PORT; empty: no metrics
  std::string data_dir;
  std::string clusters;  // path; empty: none
  std::string queues;    // path; read once, into an empty store
  bool single_user = false;
  bool operators_exec = true;  // false: owners alone run commands beside their jobs
  TlsConfig tls;
  std::vector<OidcConfig> oidc;    // in file order
  std::vector<MusterdUser> users;  // beside those of the machine; by name
  std::string master_key;  // path; also tls.master_key; empty: systemd's credential, or none
  int64_t packed_per_user_bytes = int64_t{1} << 30;  // directories that come along with jobs
  int32_t jobs_per_user = 100'000;                   // unfinished ones
  int64_t audit_retention_ns = 400 * kDay;
  int64_t audit_bytes = int64_t{4} << 30;  // of all its files
  SpecDefaults defaults;
  // scheduling:
  std::string placement = "v";  // v, fgd or best_fit
  int64_t grow_interval_ns = 10 * kMinute;
  int64_t restart_cost_ns = 10 * kSecond;
  int64_t starve_after_ns = 30 * kMinute;
  int64_t min_runtime_ns = 5 * kMinute;
  int64_t spill_cost_ns = 60 * kSecond;
  int64_t lease_ns = 45 * kSecond;
  int64_t heartbeat_ns = 5 * kSecond;
  int64_t restart_backoff_ns = 1 * kSecond;
  int64_t history_retention_ns = 7 * kDay;
  int64_t journal_retention_ns = 1 * kDay;
};
bool ParseMusterdConfig(std::string_view text, std::string_view filename, MusterdConfig* out,
                        std::vector<Problem>* problems);

// A host's name, or several as clusters.yaml has them: "h[01-04]" gives h01 … h04. False: `*why`
// says what is wrong.
bool ExpandHosts(const std::string& pattern, std::vector<std::string>* names, std::string* why);

// Empty if `listen` may be served (unix:///absolute/path of at most 107 bytes); else why not, with
// a remedy.
std::string WhyNotListen(std::string_view listen);
// Empty if `text` is HOST:PORT, a name or IPv4 address and a port from 0 to 65535; else why not.
std::string WhyNotHostPort(std::string_view text);
// Empty if metrics may be served there (127.A.B.C:PORT; port 0: any that is free); else why not,
// with a remedy.
std::string WhyNotMetricsListen(std::string_view listen);

// host.yaml, `muster-agent --inventory`: {flavour, gpus, nvlink_island, gpu_memory, cpus, memory,
// disk, address}. The result is always marked declared; devices get indexes from 0 and uuids
// "declared-0", ….
bool ParseHostInventory(std::string_view text, std::string_view filename, pb::Inventory* out,
                        std::vector<Problem>* problems);

// ~/.config/muster/config.yaml.
struct ClientContext {
  std::string server;  // unix:///path, or
  std::string login;   // path of what `muster login` wrote: who I am, and where the scheduler is
  std::string queue;   // default for job files
};
struct ClientConfig {
  std::string current_context;
  std::map<std::string, ClientContext> contexts;
};
// `logins`: names of contexts besides, which `muster login` made.
bool ParseClientConfig(std::string_view text, std::string_view filename,
                       const std::vector<std::string>& logins, ClientConfig* out,
                       std::vector<Problem>* problems);

}  // namespace muster
