#include "common/spec/config_files.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

std::string Summary(const std::vector<Problem>& problems) {
  std::string out;
  for (const Problem& p : problems) {
    absl::StrAppend(&out, out.empty() ? "" : "\n", p.line, ":", p.column, " ",
                    p.path.empty() ? "-" : p.path, ": ", p.message);
  }
  return out;
}

enum class File { kClusters, kQueues, kMusterd, kInventory, kClient };

std::string Problems(File file, std::string_view text) {
  std::vector<Problem> problems;
  bool good = false;
  if (file == File::kClusters) {
    pb::ClusterFile out;
    good = ParseClusterFile(text, "x.yaml", &out, &problems);
  } else if (file == File::kQueues) {
    pb::QueueTree out;
    good =
        ParseQueueFile(text, "x.yaml", {{"phx", "dal"}, {"h100-80g", "a100-80g"}}, &out, &problems);
  } else if (file == File::kMusterd) {
    MusterdConfig out;
    good = ParseMusterdConfig(text, "x.yaml", &out, &problems);
  } else if (file == File::kInventory) {
    pb::Inventory out;
    good = ParseHostInventory(text, "x.yaml", &out, &problems);
  } else {
    ClientConfig out;
    good = ParseClientConfig(text, "x.yaml", {}, &out, &problems);
  }
  EXPECT_EQ(good, problems.empty());
  return Summary(problems);
}

constexpr char kClusters[] = R"(skus:
  h100x8: {flavour: h100-80g, gpus: 8, nvlink_island: 4, cpus: 192, memory: 1872GiB, disk: 6TiB, nic: 8x400Gbps}
  a100x4: {flavour: a100-80g, gpus: 4, cpus: 96, memory: 600GiB}
  slots: {flavour: cpu-slot, gpus: 2, cpus: 2, memory: 4GiB, declared: true}
storages:
  lustre-phx: {path: /mnt/lustre/muster, clusters: [phx]}
  local: {path: /tmp/x, clusters: [up]}
  s3-shared: {url: "s3://acme/muster/", clusters: [phx, up]}
  s3-odd: {url: "s3://Acme_2/a//{user}", clusters: [up]}
clusters:
  - name: phx
    sku: h100x8
    job_storage: lustre-phx
    topology:
      b1: {r1: [h01, h02], r2: ["h[08-10]", {host: h05, sku: a100x4}]}
      b2: {r3: [{host: "g[1-2]", sku: a100x4}]}
  - {name: up, job_storage: local, open: true}
)";

constexpr char kQueues[] = R"(queues:
  - name: prod
    quota: {h100-80g: {guarantee: {phx: 32, dal: 8}, limit: 64, weight: 1}, a100-80g: {limit: 0}}
    submit: [team-serving]
    admin: [bob]
    held: true
  - name: research
    quota: {h100-80g: {guarantee: 24, weight: 3}}
    queues:
      - name: nlp
        quota: {h100-80g: {guarantee: 16.5, weight: 2}, cpu: {guarantee: 0.5}}
        min_runtime: 10m
        order: shortest
        max_wait: 12h
      - name: vision
        quota: {h100-80g: {guarantee: 7.5}}
        max_gpus_per_job: 64
  - name: scratch
    quota: {h100-80g: {weight: 0}, a100-80g: {}}
    submit: ["*"]
    max_time_limit: 1d
)";

TEST(HostSkusTest, AnInventoryThatContradictsTheHostsSkuIsToldHow) {
  pb::ClusterFile file;
  std::vector<Problem> problems;
  ASSERT_TRUE(ParseClusterFile(R"(
skus:
  a100x8: {flavour: a100-80g, gpus: 8, cpus: 96, memory: 1000GiB, disk: 2000GiB, nvlink_island: 8}
  slots2: {flavour: cpu-slot, gpus: 2, cpus: 2, memory: 4GiB, disk: 10GiB, declared: true}
storages: {nfs: {path: /nfs, clusters: [phx, home]}}
clusters:
  - {name: phx, sku: a100x8, job_storage: nfs, topology: {b: {r: [h1, {host: h2, sku: slots2}]}}}
  - {name: home, job_storage: nfs, open: true}
)",
                               "clusters.yaml", &file, &problems))
      << FormatProblems(problems, "clusters.yaml", {});
  const HostSkus skus(file);
  pb::Inventory eight, two;
  FillInventory(file.skus().at("a100x8"), "u", &eight);
  FillInventory(file.skus().at("slots2"), "u", &two);
  const std::string all_of_two = two.SerializeAsString();
  EXPECT_EQ(skus.Keep("phx", "h1", &eight), "");
  EXPECT_EQ(skus.Keep("phx", "h2", &two), "");
  EXPECT_EQ(skus.Keep("home", "box", &two), "") << "nothing is known of it";
  EXPECT_EQ(skus.Keep("nowhere", "h1", &two), "");
  EXPECT_EQ(two.SerializeAsString(), all_of_two);
  eight.set_memory_bytes(eight.memory_bytes() * 95 / 100);
  EXPECT_EQ(skus.Keep("phx", "h1", &eight), "") << "firmware takes some";
  eight.mutable_devices()->RemoveLast();
  eight.set_cpus_milli(64000);
  eight.set_memory_bytes(int64_t{512} << 30);
  EXPECT_EQ(skus.Keep("phx", "h1", &eight),
            "7 devices instead of 8, 64 cpus instead of 96, 512GiB memory instead of 1000GiB");
  two.set_flavour("");
  two.clear_devices();
  two.set_declared(false);
  two.set_disk_bytes(0);
  EXPECT_EQ(skus.Keep("phx", "h2", &two),
            "no flavour instead of cpu-slot, 0 devices instead of 2, devices instead of declared "
            "stand-ins, 0B disk instead of 10GiB");
}

TEST(ClusterFile, AClusterMayBeForOneUser) {
  constexpr char kFile[] = R"(
storages: {home: {path: /home, clusters: [anns]}}
clusters: [{name: anns, job_storage: home, open: true, only_user: %s}]
)";
  pb::ClusterFile file;
  std::vector<Problem> problems;
  ASSERT_TRUE(
      ParseClusterFile(absl::StrReplaceAll(kFile, {{"%s", "ann"}}), "c.yaml", &file, &problems))
      << Summary(problems);
  EXPECT_EQ(file.clusters(0).only_user(), "ann");
  EXPECT_FALSE(ParseClusterFile(absl::StrReplaceAll(kFile, {{"%s", "ann/bob"}}), "c.yaml", &file,
                                &problems));
  EXPECT_NE(Summary(problems).find("clusters[0].only_user"), std::string::npos);
}

TEST(KeepTo, WhatIsAboveTheSkuDoesNotCount) {
  pb::Sku gpus, cpus;
  gpus.set_flavour("h100-80g");
  gpus.set_gpus(2);
  gpus.set_cpus_milli(16'000);
  gpus.set_memory_bytes(int64_t{64} << 30);
  cpus.set_cpus_milli(16'000);
  const struct {
    const char* name;
    const pb::Sku& sku;
    const char* flavour;
    int devices;
    int64_t cpus_milli, memory_gib;
    // What counts of it, and how it differs:
    const char* counts_as;
    int count;
    int64_t count_cpus_milli, count_memory_gib;
    const char* how;
  } cases[] = {
      {"its SKU", gpus, "h100-80g", 2, 16'000, 64, "h100-80g", 2, 16'000, 64, ""},
      {"less", gpus, "h100-80g", 1, 8'000, 32, "h100-80g", 1, 8'000, 32,
       "1 device instead of 2, 8 cpus instead of 16, 32GiB memory instead of 64GiB"},
      {"more", gpus, "h100-80g", 5, 32'000, 128, "h100-80g", 2, 16'000, 64,
       "5 devices instead of 2, 32 cpus instead of 16, 128GiB memory instead of 64GiB"},
      {"a little more memory", gpus, "h100-80g", 2, 16'000, 66, "h100-80g", 2, 16'000, 64, ""},
      {"another flavour", gpus, "b200", 2, 16'000, 64, "", 0, 16'000, 64,
       "b200 instead of h100-80g"},
      {"devices where none should be", cpus, "b200", 2, 16'000, 64, "", 0, 16'000, 64,
       "b200 instead of no flavour, 2 devices instead of 0"},
      {"memory that the SKU says nothing of", cpus, "", 0, 16'000, 512, "", 0, 16'000, 512, ""},
  };
  for (const auto& test : cases) {
    pb::Inventory inventory;
    inventory.set_flavour(test.flavour);
    for (int i = 0; i < test.devices; ++i) inventory.add_devices()->set_index(i);
    inventory.set_cpus_milli(test.cpus_milli);
    inventory.set_memory_bytes(test.memory_gib << 30);
    inventory.set_disk_bytes(int64_t{1} << 40);
    EXPECT_EQ(HowDiffers(test.sku, inventory), test.how) << test.name;
    KeepTo(test.sku, &inventory);
    EXPECT_EQ(inventory.flavour(), test.counts_as) << test.name;
    ASSERT_EQ(inventory.devices_size(), test.count) << test.name;
    for (int i = 0; i < test.count; ++i) EXPECT_EQ(inventory.devices(i).index(), i) << test.name;
    EXPECT_EQ(inventory.cpus_milli(), test.count_cpus_milli) << test.name;
    EXPECT_EQ(inventory.memory_bytes(), test.count_memory_gib << 30) << test.name;
    EXPECT_EQ(inventory.disk_bytes(), int64_t{1} << 40) << test.name;
  }
}

TEST(ClusterFile, RangesTopologyAndOtherSkusAreRead) {
  pb::ClusterFile file;
  std::vector<Problem> problems;
  ASSERT_TRUE(ParseClusterFile(kClusters, "c.yaml", &file, &problems)) << Summary(problems);
  std::string hosts;
  for (const pb::HostSpec& host : file.clusters(0).hosts())
    absl::StrAppend(&hosts, host.block(), "/", host.rack(), "/", host.name(), ":", host.sku(), " ");
  EXPECT_EQ(hosts,
            "b1/r1/h01: b1/r1/h02: b1/r2/h08: b1/r2/h09: b1/r2/h10: b1/r2/h05:a100x4 "
            "b2/r3/g1:a100x4 b2/r3/g2:a100x4 ");
  EXPECT_EQ(file.skus().at("h100x8").nvlink_island(), 4);
  EXPECT_EQ(file.skus().at("a100x4").nvlink_island(), 4);
  EXPECT_TRUE(file.skus().at("slots").declared());
  EXPECT_TRUE(file.clusters(1).open());
  EXPECT_EQ(file.storages().at("lustre-phx").path(), "/mnt/lustre/muster");
  EXPECT_EQ(file.storages().at("s3-shared").url(), "s3://acme/muster");
  EXPECT_EQ(file.storages().at("s3-odd").url(), "s3://Acme_2/a//{user}");
}

TEST(QueueFile, TheTreeIsReadAndWrittenBack) {
  pb::QueueTree tree, again;
  std::vector<Problem> problems;
  // cpu is guaranteed below research, but not there: refused until research says so too.
  EXPECT_FALSE(ParseQueueFile(kQueues, "q.yaml", {}, &tree, &problems));
  EXPECT_EQ(Summary(problems),
            "11:74 queues[1].queues[0].quota.cpu.guarantee: the queues below research are "
            "guaranteed 0.5 cpu, more than research's 0; raise it or lower theirs");
  problems.clear();
  std::string fixed = kQueues;
  fixed.replace(fixed.find("weight: 3}}"), 11, "weight: 3}, cpu: {guarantee: 1}}");
  ASSERT_TRUE(ParseQueueFile(fixed, "q.yaml", {}, &tree, &problems)) << Summary(problems);
  const pb::Quota& prod = tree.queues(0).quota().at("h100-80g");
  EXPECT_EQ(prod.guarantee_milli(), 40'000);
  EXPECT_EQ(prod.guarantee_per_cluster().at("dal"), 8'000);
  EXPECT_EQ(prod.limit_milli(), 64'000);
  EXPECT_TRUE(tree.queues(0).quota().at("a100-80g").has_limit_milli());
  EXPECT_FALSE(tree.queues(0).quota().at("a100-80g").has_weight());
  EXPECT_EQ(tree.queues(1).queues(0).min_runtime_ns(), 10 * kMinute);
  EXPECT_EQ(tree.queues(1).queues(0).order(), pb::SHORTEST);
  EXPECT_EQ(tree.queues(1).queues(0).max_wait_ns(), 12 * kHour);
  EXPECT_EQ(tree.queues(0).order(), pb::QUEUE_ORDER_UNSPECIFIED);
  EXPECT_EQ(tree.queues(1).queues(1).max_gpus_per_job_milli(), 64'000);
  EXPECT_EQ(CheckQueueTree(tree).size(), 0u);
  ASSERT_TRUE(ParseQueueFile(QueueTreeToYaml(tree), "q.yaml", {}, &again, &problems))
      << QueueTreeToYaml(tree) << Summary(problems);
  EXPECT_EQ(tree.DebugString(), again.DebugString());
}

TEST(QueueFile, TreesThatArriveAsProtosObeyTheSameRules) {
  pb::QueueTree tree;
  pb::QueueSpec* queue = tree.add_queues();
  queue->set_name("a");
  (*queue->mutable_quota())["h100-80g"].set_guarantee_milli(-5);
  for (int i = 0; i < 20; ++i) queue = queue->add_queues(), queue->set_name("x");
  std::string out;
  for (const FieldProblem& p : CheckQueueTree(tree))
    absl::StrAppend(&out, p.path, ": ", p.message, "\n");
  EXPECT_THAT(out,
              testing::HasSubstr("queues[0].quota.h100-80g.guarantee: must be a number from 0 to"));
  EXPECT_THAT(out, testing::HasSubstr("nested deeper than 8 levels"));
}

TEST(QueueFile, TheDaemonsProblemsGetTheirPlacesInTheFile) {
  const std::vector<Problem> placed = PlaceQueueProblems(
      "queues:\n  - name: a\n    quota: {cpu-slot: {guarantee: 5, limit: 9}}\n", "q.yaml",
      {{"queues[0].quota.cpu-slot.guarantee", "too many"}, {"b", "has jobs"}});
  EXPECT_EQ(Summary(placed), "1:1 b: has jobs\n3:35 queues[0].quota.cpu-slot.guarantee: too many");
}

TEST(MusterdConfig, IsReadWithItsDefaults) {
  MusterdConfig config;
  std::vector<Problem> problems;
  ASSERT_TRUE(ParseMusterdConfig(
      "listen: unix:///run/m.sock\ndata_dir: /var/lib/muster\nsingle_user: true\n"
      "operators_exec: false\njobs_per_user: 500\naudit_retention: 30d\naudit_size: 1GiB\n"
      "defaults: {grace: 1m, retry_faults_for: 2h}\nscheduling: {placement: best_fit, lease: 20s, "
      "heartbeat: 2s}\n",
      "m.yaml", &config, &problems))
      << Summary(problems);
  EXPECT_TRUE(config.single_user);
  EXPECT_FALSE(config.operators_exec);
  EXPECT_EQ(config.jobs_per_user, 500);
  EXPECT_EQ(config.audit_retention_ns, 30 * kDay);
  EXPECT_EQ(config.audit_bytes, 1 << 30);
  EXPECT_EQ(config.defaults.grace_ns, kMinute);
  EXPECT_EQ(config.defaults.retry_faults_for_ns, 2 * kHour);
  EXPECT_EQ(config.defaults.max_restarts, 3);
  EXPECT_EQ(config.lease_ns, 20 * kSecond);
  EXPECT_EQ(config.grow_interval_ns, 10 * kMinute);
  EXPECT_EQ(config.placement, "best_fit");
  ASSERT_TRUE(ParseMusterdConfig("listen: unix:///run/m.sock\ndata_dir: /var/lib/muster\n",
                                 "m.yaml", &config, &problems))
      << Summary(problems);
  EXPECT_EQ(config.placement, "v");
  EXPECT_TRUE(config.operators_exec);
  EXPECT_EQ(config.audit_retention_ns, 400 * kDay);
  EXPECT_FALSE(ParseMusterdConfig(
      "listen: unix:///run/m.sock\ndata_dir: /var/lib/muster\naudit_size: 1MiB\n", "m.yaml",
      &config, &problems));
  EXPECT_THAT(Summary(problems), testing::HasSubstr("audit_size: must be 16MiB or more"));
  problems.clear();
  EXPECT_FALSE(ParseMusterdConfig(
      "listen: unix:///run/m.sock\ndata_dir: /var/lib/muster\nscheduling: {placement: worst}\n",
      "m.yaml", &config, &problems));
  EXPECT_THAT(Summary(problems), testing::HasSubstr("must be one of v, fgd, best_fit; got"));
}

TEST(MusterdConfig, ItsPathsAreAbsolute) {
  MusterdConfig config;
  std::vector<Problem> problems;
  EXPECT_FALSE(ParseMusterdConfig(
      "listen: unix:///run/m.sock\ndata_dir: store\nclusters: c.yaml\nqueues: /etc/q.yaml\n",
      "m.yaml", &config, &problems));
  EXPECT_EQ(Summary(problems),
            "2:11 data_dir: \"store\" is not absolute; start it with /\n"
            "3:11 clusters: \"c.yaml\" is not absolute; start it with /");
}

TEST(HostInventory, IsAlwaysDeclared) {
  pb::Inventory inventory;
  std::vector<Problem> problems;
  ASSERT_TRUE(ParseHostInventory(
      "{flavour: cpu-slot, gpus: 4, nvlink_island: 2, cpus: 2, memory: 4GiB, disk: 10GiB}",
      "h.yaml", &inventory, &problems))
      << Summary(problems);
  EXPECT_TRUE(inventory.declared());
  ASSERT_EQ(inventory.devices_size(), 4);
  EXPECT_EQ(inventory.devices(3).uuid(), "declared-3");
  EXPECT_EQ(inventory.devices(3).island(), 1);
  EXPECT_TRUE(inventory.devices(0).healthy());
  EXPECT_EQ(inventory.cpus_milli(), 2000);
}

TEST(ClientConfig, AContextIsASocketOrALogin) {
  ClientConfig config;
  std::vector<Problem> problems;
  ASSERT_TRUE(ParseClientConfig(
      "current_context: lab\ncontexts:\n  acme: {login: /home/ann/acme.identity, queue: "
      "research/nlp}\n"
      "  demo: {server: \"unix:///run/m.sock\"}\n",
      "c.yaml", {"lab"}, &config, &problems))
      << Summary(problems);
  EXPECT_EQ(config.contexts["acme"].queue, "research/nlp");
  EXPECT_EQ(config.contexts["acme"].login, "/home/ann/acme.identity");
  EXPECT_EQ(config.current_context, "lab");
  for (const char* bad : {"contexts: {a: {queue: q}}", "contexts: {a: {server: \"m1:7420\"}}",
                          "contexts: {a: {login: here}}", "current_context: lba",
                          "contexts: {a: {server: \"unix:///s\", login: /l}}"}) {
    EXPECT_FALSE(ParseClientConfig(bad, "c.yaml", {"lab"}, &config, &problems)) << bad;
  }
}

TEST(MusterdConfig, TheJoinAddressIsTheFirstOneUnlessItIsSaid) {
  MusterdConfig config;
  std::vector<Problem> problems;
  const std::string text =
      "listen: unix:///run/m.sock\ndata_dir: /d\ntls: {listen: \"0.0.0.0:7420\", join: "
      "\"0.0.0.0:7421\", addresses: [\"m1:7420\", \"m2:7420\"], master_key: /etc/key";
  ASSERT_TRUE(ParseMusterdConfig(text + "}\n", "m.yaml", &config, &problems)) << Summary(problems);
  EXPECT_EQ(config.tls.join_address, "m1:7421");
  EXPECT_EQ(config.tls.addresses.size(), 2u);
  EXPECT_EQ(config.tls.host_life_ns, 7 * kDay);
  ASSERT_TRUE(
      ParseMusterdConfig(text + ", join_address: \"m3:1\"}\n", "m.yaml", &config, &problems))
      << Summary(problems);
  EXPECT_EQ(config.tls.join_address, "m3:1");
}

TEST(MusterdConfig, IdentityProvidersHaveDefaultsThatAreStrict) {
  MusterdConfig config;
  std::vector<Problem> problems;
  const std::string text =
      "listen: unix:///run/m.sock\ndata_dir: /d\ntls: {listen: \"0.0.0.0:7420\", join: "
      "\"0.0.0.0:7421\", addresses: [\"m1:7420\"]}\noidc: [{issuer: \"https://a\", client_id: m}, "
      "{issuer: \"https://b\", client_id: m, name_claim: email, domain: b.org, max_age: 1h, "
      "scopes: [openid], audiences: [x], groups_claim: g, groups: [nlp], ca: /ca.pem, "
      "without_nonce: true, existing_users: true, log_in_again: 1d}]\n";
  ASSERT_TRUE(ParseMusterdConfig(text, "m.yaml", &config, &problems)) << Summary(problems);
  ASSERT_EQ(config.oidc.size(), 2u);
  EXPECT_FALSE(config.oidc[0].without_nonce);
  EXPECT_FALSE(config.oidc[0].existing_users);
  EXPECT_EQ(config.oidc[0].name_claim, "preferred_username");
  EXPECT_EQ(config.oidc[0].leeway_ns, kMinute);
  EXPECT_EQ(config.oidc[0].max_age_ns, 10 * kMinute);
  EXPECT_EQ(config.oidc[1].domain, "b.org");
  EXPECT_EQ(config.oidc[1].scopes, std::vector<std::string>{"openid"});
  EXPECT_EQ(config.oidc[1].log_in_again_ns, kDay);
  EXPECT_TRUE(config.oidc[1].existing_users);
}

TEST(Listen, OnlyAUnixSocketIsServed) {
  EXPECT_EQ(WhyNotListen("unix:///run/muster/musterd.sock"), "");
  EXPECT_THAT(WhyNotListen("unix://relative.sock"), testing::HasSubstr("absolute"));
  EXPECT_THAT(WhyNotListen("unix:///" + std::string(120, 'a')), testing::HasSubstr("at most 107"));
  EXPECT_THAT(WhyNotListen("127.0.0.1:7070"), testing::HasSubstr("use unix://"));
  EXPECT_THAT(WhyNotListen("0.0.0.0:7070"), testing::HasSubstr("by tls:"));
  EXPECT_THAT(WhyNotListen(""), testing::HasSubstr("use unix://"));
}

TEST(Listen, MetricsAreServedOnLoopbackOnly) {
  for (const char* good : {"127.0.0.1:9464", "127.0.0.1:0", "127.1.2.3:65535"})
    EXPECT_EQ(WhyNotMetricsListen(good), "") << good;
  const std::pair<const char*, const char*> kBad[] = {
      {"", "write 127.0.0.1:9464"},
      {"127.0.0.1", "names no port"},
      {"127.0.0.1:", "names no port"},
      {"127.0.0.1:65536", "names no port"},
      {"127.0.0.1:94x", "names no port"},
      {"127.0.0.1:1:2", "names no port"},
      {"127.0.0.1:80,0.0.0.0:80", "names no port"},
      {"127.0.0.256:80", "no address"},
      {"127.1:80", "no address"},
      {"+9464", "no address"},
      {"0.0.0.0:9464", "no loopback address"},
      {"10.0.0.1:9464", "no loopback address"},
      {"1127.0.0.1:9464", "no address"},
      {"localhost:9464", "write the address as 127.0.0.1"},
      {"[::1]:9464", "write the address as 127.0.0.1"},
      {"[::]:9464", "no address"},
      {"unix:///run/metrics.sock", "no address"},
  };
  for (const auto& [listen, why] : kBad)
    EXPECT_THAT(WhyNotMetricsListen(listen), testing::HasSubstr(why)) << listen;
}

struct BadCase {
  const char* name;
  File file;
  const char* text;
  const char* want;
};

class BadConfig : public testing::TestWithParam<BadCase> {};

TEST_P(BadConfig, IsRefusedWithPlaceAndRemedy) {
  EXPECT_EQ(Problems(GetParam().file, GetParam().text), GetParam().want);
}

const BadCase kBadCases[] = {
#include "common/spec/testing/bad_configs.inc"
};

INSTANTIATE_TEST_SUITE_P(ConfigFile, BadConfig, testing::ValuesIn(kBadCases),
                         [](const testing::TestParamInfo<BadCase>& info) {
                           return std::string(info.param.name);
                         });

TEST(ConfigFiles, TheSharedExamplesAreReadOrRefusedForWhatIsNotYetOnly) {
  if (!std::filesystem::exists("../shared/examples")) GTEST_SKIP() << "needs ../shared/examples";
  for (const auto& [name, file] :
       {std::pair("clusters.yaml", File::kClusters), std::pair("queues.yaml", File::kQueues),
        std::pair("musterd.yaml", File::kMusterd), std::pair("config.yaml", File::kClient)}) {
    const std::filesystem::path path = std::filesystem::path("../shared/examples") / name;
    ASSERT_TRUE(std::filesystem::exists(path)) << path;
    std::ifstream in(path);
    std::stringstream text;
    text << in.rdbuf();
    std::stringstream found(Problems(file, text.str()));
    // Those examples have one TCP door with certificates from files, and contexts that say so.
    // Decisions 085 and 086 have two doors, and an authority of musterd's own.
    const auto other =
        testing::AnyOf(testing::HasSubstr(" tls."), testing::HasSubstr(" contexts.acme."),
                       testing::HasSubstr(" listen: must be a Unix socket"));
    for (std::string line; std::getline(found, line);)
      EXPECT_THAT(line, testing::AnyOf(testing::HasSubstr(": not yet: "), other)) << path;
  }
}

}  // namespace
}  // namespace muster
