// Places of gangs and slices: tables with the reason, a brute-force twin, and what is kept against
// what is built anew.
#include "scheduler/decide/place/free_map.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "scheduler/decide/decide.h"
#include "scheduler/decide/model/inputs.h"
#include "scheduler/state/testing/builders.h"

namespace muster {
namespace {

using testing::JobBuilder;
using testing::Placed;
using testing::SystemBuilder;
using testing::TaskOf;

struct TestHost {
  std::string block, rack;
  std::vector<int> islands;  // devices of each; empty: no GPUs
  int64_t cpus = 64;
  std::vector<int64_t> used_milli;  // of its devices, as far as given
  int64_t used_cpus = 0;
  Abilities abilities = testing::kAllAbilities;
};

// One cluster `c` of hosts h00, h01, …; `used` is held by an attempt for each device.
struct Fleet {
  explicit Fleet(const std::vector<TestHost>& hosts) {
    pb::Event configure;
    pb::ClusterSpec* cluster =
        configure.mutable_clusters_configured()->mutable_file()->add_clusters();
    cluster->set_name("c");
    for (size_t h = 0; h < hosts.size(); ++h) {
      pb::HostSpec* spec = cluster->add_hosts();
      spec->set_name(Name(h));
      spec->set_block(hosts[h].block);
      spec->set_rack(hosts[h].rack);
    }
    system.Do(configure);
    system.Queue("q");
    for (size_t h = 0; h < hosts.size(); ++h) {
      pb::Event event;
      pb::HostHello* hello = event.mutable_host_hello();
      hello->set_cluster("c");
      hello->set_host(Name(h));
      hello->set_state_id("s");
      hello->set_boot_id("b");
      pb::Inventory* inventory = hello->mutable_inventory();
      if (!hosts[h].islands.empty()) inventory->set_flavour("gpu");
      for (size_t i = 0; i < hosts[h].islands.size(); ++i) {
        for (int d = 0; d < hosts[h].islands[i]; ++d) {
          pb::Device* device = inventory->add_devices();
          device->set_index(inventory->devices_size() - 1);
          device->set_island(static_cast<int>(i));
          device->set_healthy(true);
        }
      }
      inventory->set_cpus_milli(hosts[h].cpus * 1000);
      inventory->set_memory_bytes(int64_t{256} << 30);
      inventory->set_disk_bytes(int64_t{1} << 40);
      testing::Announce(hosts[h].abilities, inventory);
      system.Do(event);
    }
    for (size_t h = 0; h < hosts.size(); ++h) {
      for (size_t d = 0; d < hosts[h].used_milli.size(); ++d) {
        if (hosts[h].used_milli[d] == 0) continue;
        JobBuilder job("q");
        job.GpusMilli(hosts[h].used_milli[d]).task()->mutable_resources()->set_cpus_milli(1);
        Hold(&job, h, static_cast<int32_t>(d), hosts[h].used_milli[d]);
      }
      if (hosts[h].used_cpus > 0) {
        JobBuilder job("q");
        job.GpusMilli(0).Cpus(hosts[h].used_cpus);
        Hold(&job, h, -1, 0);
      }
    }
  }
  static std::string Name(size_t h) { return absl::StrCat("h", absl::StrCat(100 + h).substr(1)); }
  void Hold(JobBuilder* job, size_t h, int32_t device, int64_t milli) {
    const uint64_t number = job->SubmitTo(&system);
    pb::Event event =
        Placed(system.state, number, "c", {{Name(h), {}}}, 0, device < 0 ? "" : "gpu");
    pb::Placement* placement = event.mutable_attempt_placed()->mutable_placements(0);
    if (device >= 0) placement->add_devices(device);
    if (device >= 0 && milli < 1000) placement->add_device_milli(milli);
    system.Do(event);
  }
  // The pool that Decide would ask for.
  Pool PoolFor(bool gpus) const {
    Pool pool;
    for (const HostId id : system.state.hosts()) {
      if (!gpus || !system.state.host(id).inventory.flavour().empty()) pool.hosts.push_back(id);
    }
    return pool;
  }
  std::string Shown(const std::optional<HostSlices>& slices) const {
    if (!slices.has_value()) return "none";
    std::vector<std::string> parts;
    for (const HostSlice& part : *slices) {
      parts.push_back(absl::StrCat(system.state.host(part.host).name, "*", part.workers,
                                   part.devices.empty() ? "" : ":",
                                   absl::StrJoin(part.devices, ",")));
    }
    return absl::StrJoin(parts, " ");
  }

  SystemBuilder system;
};

pb::TaskSpec Task(int64_t gpus_milli, int64_t cpus = 1, pb::TopologyLevel preferred = pb::ISLAND,
                  pb::TopologyLevel required = pb::CLUSTER) {
  pb::TaskSpec task;
  task.mutable_resources()->set_gpus_milli(gpus_milli);
  if (gpus_milli > 0) task.mutable_resources()->add_gpu_types("gpu");
  task.mutable_resources()->set_cpus_milli(cpus * 1000);
  task.mutable_resources()->set_memory_bytes(1 << 20);
  task.mutable_topology()->set_preferred(preferred);
  task.mutable_topology()->set_required(required);
  return task;
}

TEST(Place, PutsGangsOnTheTightestLevelAndLeavesTheLargestBlocksWhole) {
  // Blocks a (racks 1, 2) and b (racks 3, 4), two hosts of 4 GPUs (two islands of 2) a rack.
  const auto host = [](const std::string& block, const std::string& rack,
                       std::vector<int64_t> used = {}) {
    return TestHost{block, rack, {2, 2}, 64, std::move(used)};
  };
  struct Case {
    const char* why;
    std::vector<TestHost> hosts;
    pb::TaskSpec task;
    int32_t workers;
    std::string wanted;
  };
  const std::vector<TestHost> empty = {host("a", "1"), host("a", "1"), host("a", "2"),
                                       host("a", "2"), host("b", "3"), host("b", "3"),
                                       host("b", "4"), host("b", "4")};
  std::vector<TestHost> used = empty;
  used[4] = host("b", "3", {1000, 0, 0, 0});
  std::vector<TestHost> cut = empty;
  cut[0] = host("a", "1", {1000, 0, 1000, 0});
  std::vector<TestHost> busy = empty;
  for (const int h : {0, 2, 4, 6}) busy[h].used_milli = {1000, 1000, 1000, 1000};
  std::vector<TestHost> no_cpus = used;
  no_cpus[5].used_cpus = 62;
  std::vector<TestHost> long_racks;  // two of four hosts
  for (int h = 0; h < 8; ++h) long_racks.push_back(host("a", h < 4 ? "1" : "2"));
  const auto taking = [](int64_t memory_gib, int64_t disk_gib) {  // hosts have 256 and 1024
    pb::TaskSpec task = Task(1000);
    task.mutable_resources()->set_memory_bytes(memory_gib << 30);
    task.mutable_resources()->set_disk_bytes(disk_gib << 30);
    return task;
  };
  const std::vector<Case> cases = {
      {"two fit in one island", empty, Task(1000), 2, "h00*2:0,1"},
      {"an island that is broken anyhow is used up first", used, Task(1000), 1, "h04*1:1"},
      {"four take a whole host", used, Task(1000), 4, "h00*4:0,1,2,3"},
      {"three on the host that has just three", used, Task(1000), 3, "h04*3:1,2,3"},
      {"one island is required: h00 has two halves only", cut,
       Task(2000, 1, pb::ISLAND, pb::ISLAND), 1, "h01*1:0,1"},
      {"an island doesn't hold three", empty, Task(1000, 1, pb::ISLAND, pb::ISLAND), 3, "none"},
      {"a host doesn't hold five", empty, Task(1000, 1, pb::ISLAND, pb::HOST), 5, "none"},
      {"the rack with the least free that holds seven", used, Task(1000), 7,
       "h04*3:1,2,3 h05*4:0,1,2,3"},
      {"eight don't fit in the broken rack: the first whole one", used, Task(1000), 8,
       "h00*4:0,1,2,3 h01*4:0,1,2,3"},
      {"required rack, none holds nine", empty, Task(1000, 1, pb::ISLAND, pb::RACK), 9, "none"},
      {"the block with the least free, its emptiest rack and one host of the other", used,
       Task(4000), 3, "h05*1:0,1,2,3 h06*1:0,1,2,3 h07*1:0,1,2,3"},
      {"over both blocks evenly by hosts", busy, Task(4000), 4,
       "h01*1:0,1,2,3 h03*1:0,1,2,3 h05*1:0,1,2,3 h07*1:0,1,2,3"},
      {"over two racks of four hosts three each", long_racks, Task(4000), 6,
       "h00*1:0,1,2,3 h01*1:0,1,2,3 h02*1:0,1,2,3 h04*1:0,1,2,3 h05*1:0,1,2,3 h06*1:0,1,2,3"},
      {"over two blocks of four hosts three each", empty, Task(4000), 6,
       "h00*1:0,1,2,3 h01*1:0,1,2,3 h02*1:0,1,2,3 h04*1:0,1,2,3 h05*1:0,1,2,3 h06*1:0,1,2,3"},
      {"a host has memory for two of the four", empty, taking(100, 0), 4, "h00*2:0,1 h01*2:0,1"},
      {"a rack has memory for four of the five", empty, taking(100, 0), 5,
       "h00*2:0,1 h01*2:0,1 h02*1:0"},
      {"no host has the memory", empty, taking(257, 0), 1, "none"},
      {"a host has disk for three of the four", empty, taking(1, 300), 4, "h00*3:0,1,2 h01*1:0"},
      {"no host has the disk", empty, taking(1, 1025), 1, "none"},
      {"required block, none holds three hosts", busy, Task(4000, 1, pb::ISLAND, pb::BLOCK), 3,
       "none"},
      {"the rack that looks tightest lacks CPUs", no_cpus, Task(1000, 4), 7,
       "h00*4:0,1,2,3 h01*3:0,1,2"},
      {"wishes a rack, no tighter: not a whole host elsewhere", used, Task(1000, 1, pb::RACK), 4,
       "h05*4:0,1,2,3"},
      {"shares fill the device that is shared already",
       {host("a", "1"), host("a", "1", {0, 400, 0, 700})},
       Task(300),
       1,
       "h01*1:3"},
      {"no device has so much of it left",
       {host("a", "1", {500, 500, 500, 500})},
       Task(600),
       1,
       "none"},
      {"work without GPUs stays off the GPU hosts",
       {host("a", "1"), TestHost{"a", "1", {}, 16}},
       Task(0, 8),
       1,
       "h01*1"},
      {"the host with the fewest CPUs that hold it",
       {TestHost{"a", "1", {}, 64}, TestHost{"a", "1", {}, 16}, TestHost{"a", "1", {}, 8}},
       Task(0, 12),
       1,
       "h01*1"},
      {"only the GPU host has the CPUs",
       {host("a", "1"), TestHost{"a", "1", {}, 16}},
       Task(0, 32),
       1,
       "h00*1"},
      {"CPU gangs fill hosts in turn",
       {TestHost{"a", "1", {}, 8}, TestHost{"a", "1", {}, 4}, TestHost{"a", "1", {}, 8}},
       Task(0, 1),
       11,
       "h00*8 h01*3"},
      {"nothing holds it", {TestHost{"a", "1", {}, 8}}, Task(0, 9), 1, "none"},
  };
  for (const Case& c : cases) {
    const Fleet fleet(c.hosts);
    FreeMap map(fleet.system.state, PlacementPolicy::kBestFit);
    std::string free;
    for (const HostId id : fleet.system.state.hosts())
      absl::StrAppend(&free, " [", absl::StrJoin(map.Peek(id).device_milli, ","), "]");
    EXPECT_EQ(fleet.Shown(
                  map.Place(c.task, c.workers, fleet.PoolFor(c.task.resources().gpus_milli() > 0))),
              c.wanted)
        << c.why << ":" << free;
  }
}

TEST(Place, AvoidsHostsThatFailedTheJobWhileThereIsAnotherPlace) {
  const Fleet fleet({TestHost{"", "", {2}}, TestHost{"", "", {2}}, TestHost{"", "", {2}}});
  FreeMap map(fleet.system.state);
  const Pool pool = fleet.PoolFor(true);
  const HostId first = pool.hosts[0];
  EXPECT_EQ(fleet.Shown(map.Place(Task(1000), 1, pool)), "h00*1:0");
  EXPECT_EQ(fleet.Shown(map.Place(Task(1000), 1, pool, {first})), "h01*1:0");
  EXPECT_EQ(fleet.Shown(map.Place(Task(1000), 4, pool, {first})), "h01*2:0,1 h02*2:0,1");
  EXPECT_EQ(fleet.Shown(map.Place(Task(1000), 6, pool, {first})), "h00*2:0,1 h01*2:0,1 h02*2:0,1")
      << "no place without it";
}

TEST(Place, TakesOnlyHostsWhoseAgentsDoWhatTheTaskNeeds) {
  const Fleet fleet({TestHost{"", "", {2}}, TestHost{"", "", {2}, 64, {}, 0, 0},
                     TestHost{"", "", {2}, 64, {}, 0, kGivesSecrets | kEntersImages}});
  FreeMap map(fleet.system.state);
  const Pool pool = fleet.PoolFor(true);
  const auto place = [&](int workers, Abilities needs, const std::vector<HostId>& avoid = {}) {
    return fleet.Shown(map.Place(Task(1000), workers, pool, avoid, needs));
  };
  EXPECT_EQ(place(6, 0), "h00*2:0,1 h01*2:0,1 h02*2:0,1");
  EXPECT_EQ(place(1, kEntersImages, {pool.hosts[0]}), "h02*1:0");
  EXPECT_EQ(place(1, kUnpacks, {pool.hosts[0]}), "h00*1:0") << "it avoids, but no other can";
  EXPECT_EQ(place(4, kGivesSecrets), "h00*2:0,1 h02*2:0,1");
  EXPECT_EQ(place(5, kGivesSecrets), "none");
  EXPECT_EQ(place(3, kGivesSecrets | kUnpacks), "none");
  const HostSlices on_old = {{pool.hosts[1], 1, {0}, {}}};
  EXPECT_TRUE(map.Fits(Task(1000), on_old));
  EXPECT_FALSE(map.Fits(Task(1000), on_old, false, kGivesSecrets));
}

TEST(Place, WorkWithoutGpusTakesOnlyHostsWhoseAgentsDoWhatItNeeds) {
  const Fleet fleet({TestHost{"", "", {}, 4, {}, 0, 0}, TestHost{"", "", {}, 8}});
  FreeMap map(fleet.system.state);
  const Pool pool = fleet.PoolFor(false);
  EXPECT_EQ(fleet.Shown(map.Place(Task(0, 2), 1, pool)), "h00*1");
  EXPECT_EQ(fleet.Shown(map.Place(Task(0, 2), 1, pool, {}, kUnpacks)), "h01*1");
  EXPECT_EQ(fleet.Shown(map.Place(Task(0, 2), 5, pool, {}, kUnpacks)), "none");
}

TEST(Place, AnAgentThatIsUpgradedIsSeen) {
  Fleet fleet({TestHost{"", "", {2}, 64, {}, 0, 0}});
  FreeMap map(fleet.system.state);
  const Pool pool = fleet.PoolFor(true);
  EXPECT_EQ(fleet.Shown(map.Place(Task(1000), 1, pool, {}, kUnpacks)), "none");
  fleet.system.Hello("c", "h00", 2);
  map.Refresh(fleet.system.state, pool.hosts[0]);
  EXPECT_EQ(fleet.Shown(map.Place(Task(1000), 1, pool, {}, kUnpacks)), "h00*1:0");
  EXPECT_EQ(map.Difference(fleet.system.state), "");
}

TEST(Place, NamesTheHostsThatFailedAJob) {
  JobRow job;
  job.tasks.resize(1);
  const auto attempt = [&](pb::Cause cause, const std::vector<HostId>& hosts,
                           bool ended = true) -> AttemptRow& {
    AttemptRow& row = job.tasks[0].attempts.emplace_back();
    row.cause = cause;
    row.end_ns = ended ? 1 : 0;
    for (const HostId id : hosts) row.parts.emplace_back().host = id;
    return row;
  };
  attempt(pb::PROGRAM_ERROR, {1});
  attempt(pb::HOST_LOST, {2, 3}).parts[1].lost = true;
  attempt(pb::LAUNCH_FAILED, {9, 4}).parts[0].cause = pb::LAUNCH_FAILED;
  attempt(pb::HOST_LOST, {5});
  attempt(pb::HOST_LOST, {6}, false);
  attempt(pb::DEVICE_FAILURE, {7, 8}).failed_host = 8;
  EXPECT_EQ(HostsToAvoid(job), (std::vector<HostId>{3, 5, 8, 9}));
}

TEST(Place, ARestartAvoidsTheHostThatCouldNotLaunchIt) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 1).Queue("q");
  const uint64_t job = JobBuilder("q").SubmitTo(&system);
  const auto decide = [&] {
    for (const pb::Event& event : Decide(system.state, system.now_ns, SchedulingOptions()).events)
      system.Do(event);
    return TaskOf(system.state, job).attempts.back().parts[0].host;
  };
  const HostId first = decide();
  pb::Event failed = testing::Report(system.state, job, 0, 1, 0, pb::GONE);
  failed.mutable_attempt_reported()->mutable_report()->set_cause(pb::LAUNCH_FAILED);
  system.Do(failed);
  system.Step(3600);
  EXPECT_NE(decide(), first);
  EXPECT_EQ(TaskOf(system.state, job).attempts.back().number, 2);
}

TEST(Place, AFaultOfTheInfrastructureIsTriedAgainOnHostsThatHaveNotTheSame) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 3, 1).Queue("q");
  const uint64_t job = JobBuilder("q").SubmitTo(&system);
  std::set<HostId> tried;
  for (int attempt = 1; attempt <= 3; ++attempt) {
    for (const pb::Event& event : Decide(system.state, system.now_ns, SchedulingOptions()).events)
      system.Do(event);
    ASSERT_EQ(TaskOf(system.state, job).attempts.back().number, attempt);
    tried.insert(TaskOf(system.state, job).attempts.back().parts[0].host);
    testing::StartAll(&system, job);
    pb::Event failed = testing::Report(system.state, job, 0, attempt, 0, pb::GONE, 1);
    for (pb::WorkerExit& exit :
         *failed.mutable_attempt_reported()->mutable_report()->mutable_exits())
      exit.set_cause(pb::STORAGE_FAILURE);
    system.Do(failed);
    system.Step(3600 * attempt);
  }
  EXPECT_EQ(tried.size(), 3u);
}

// ---- the twin: counts workers one by one ----

struct TwinHost {
  std::vector<std::vector<int64_t>> islands;
  int64_t cpus_milli, memory_bytes;
  std::string block, rack;
};

bool TakeOne(TwinHost* host, const pb::Resources& wants, bool one_island_only, size_t island) {
  if (host->cpus_milli < wants.cpus_milli() || host->memory_bytes < wants.memory_bytes())
    return false;
  int64_t left = wants.gpus_milli() / 1000;
  const int64_t share = left == 0 ? wants.gpus_milli() : 0;
  for (size_t i = 0; i < host->islands.size(); ++i) {
    if (one_island_only && i != island) continue;
    for (int64_t& milli : host->islands[i]) {
      if (left > 0 && milli == 1000) {
        milli = 0;
        --left;
      }
    }
  }
  if (left > 0) return false;
  if (share > 0) {
    bool found = false;
    for (auto& devices : host->islands) {
      for (int64_t& milli : devices) found = found || milli >= share;
    }
    if (!found) return false;
    host->islands.clear();  // one share a host and gang
  }
  host->cpus_milli -= wants.cpus_milli();
  host->memory_bytes -= wants.memory_bytes();
  return true;
}

int32_t CountOn(TwinHost host, const pb::Resources& wants, int32_t most, int island = -1) {
  int32_t workers = 0;
  while (workers < most && TakeOne(&host, wants, island >= 0, static_cast<size_t>(island)))
    ++workers;
  return workers;
}

// Of the workers as many as blocks of ranks leave that are to be together at the level, or at a
// tighter one. `wishes`: these count, too.
int32_t InBlocks(int32_t workers, const pb::TaskSpec& task, pb::TopologyLevel level, bool wishes) {
  const int64_t gpus = std::max<int64_t>(1, task.resources().gpus_milli() / 1000);
  for (const pb::RankBlock& block : task.topology().blocks()) {
    const auto size = static_cast<int32_t>(std::max<int64_t>(1, block.gpus() / gpus));
    if ((block.required() != 0 && block.required() <= level) ||
        (wishes && block.preferred() != 0 && block.preferred() <= level))
      workers -= workers % size;
  }
  return workers;
}

// Of the host's whole devices only those that make runs of one island, as blocks of ranks want
// them.
TwinHost InRuns(TwinHost host, const pb::TaskSpec& task, bool wishes) {
  int32_t run = 1;
  for (const pb::RankBlock& block : task.topology().blocks()) {
    if (block.required() == pb::ISLAND || (wishes && block.preferred() == pb::ISLAND))
      run = std::max(run, block.gpus());
  }
  if (run == 1) return host;
  int64_t whole = 0;
  for (const std::vector<int64_t>& island : host.islands) {
    const int64_t free = std::count(island.begin(), island.end(), 1000);
    whole += free - free % run;
  }
  host.islands = {std::vector<int64_t>(static_cast<size_t>(whole), 1000)};
  return host;
}

bool TwinHolds(const std::vector<TwinHost>& hosts, const pb::TaskSpec& task, int32_t workers,
               bool wishes = false) {
  const pb::Resources& wants = task.resources();
  if (task.topology().blocks_size() > 0) {
    // By counting: on hosts, then in racks of what its hosts have, then in blocks.
    std::map<std::string, std::map<std::string, int32_t>> found;
    for (const TwinHost& h : hosts)
      found[h.block][h.rack] +=
          InBlocks(CountOn(InRuns(h, task, wishes), wants, workers), task, pb::HOST, wishes);
    int32_t all = 0;
    for (const auto& [block, racks] : found) {
      int32_t in_block = 0;
      for (const auto& [rack, in_rack] : racks)
        in_block += InBlocks(in_rack, task, pb::RACK, wishes);
      all += InBlocks(in_block, task, pb::BLOCK, wishes);
    }
    return all >= workers;
  }
  std::map<std::string, int32_t> of_rack, of_block;
  int32_t all = 0;
  bool island = false, host = false, rack = false, block = false;
  for (const TwinHost& h : hosts) {
    const int32_t here = CountOn(h, wants, workers);
    host = host || here >= workers;
    for (size_t i = 0; i < h.islands.size(); ++i)
      island = island || CountOn(h, wants, workers, static_cast<int>(i)) >= workers;
    rack = rack || (of_rack[h.block + "/" + h.rack] += here) >= workers;
    block = block || (of_block[h.block] += here) >= workers;
    all += here;
  }
  switch (task.topology().required()) {
    case pb::ISLAND:
      return wants.gpus_milli() < 1000 ? host : island;
    case pb::HOST:
      return host;
    case pb::RACK:
      return rack;
    case pb::BLOCK:
      return block;
    default:
      return all >= workers;
  }
}

// Each run of so many GPUs, in the order of the parts, is in one domain of the level.
bool AreTogether(const State& state, const HostSlices& slices, int32_t gpus,
                 pb::TopologyLevel level) {
  std::vector<std::string> at;
  for (const HostSlice& part : slices) {
    const HostRow& host = state.host(part.host);
    for (const int32_t device : part.devices) {
      at.push_back(level == pb::ISLAND
                       ? absl::StrCat(host.name, "/", host.inventory.devices(device).island())
                   : level == pb::HOST ? host.name
                   : level == pb::RACK ? absl::StrCat(host.block, "/", host.rack)
                                       : host.block);
    }
  }
  for (size_t g = 0; g < at.size(); ++g) {
    if (at[g] != at[g - g % static_cast<size_t>(gpus)]) return false;
  }
  return true;
}

TEST(Place, KeepsBlocksOfRanksTogetherExactlyWhereThatIsPossible) {
  std::mt19937 random(11);
  const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int found = 0, none = 0, kept = 0, given_up = 0;
  for (int round = 0; round < 1500; ++round) {
    std::vector<TestHost> hosts;
    const int count = 2 + upto(11);
    for (int h = 0; h < count; ++h) {
      TestHost host{absl::StrCat("b", h / 6), absl::StrCat("r", h / 2), {}, 4 + upto(12)};
      host.islands = {2 + upto(4)};
      for (int d = 0; d < host.islands[0]; ++d) host.used_milli.push_back(upto(5) == 0 ? 1000 : 0);
      hosts.push_back(host);
    }
    const Fleet fleet(hosts);
    std::vector<TwinHost> twin;
    for (const HostId id : fleet.system.state.hosts()) {
      const HostRow& row = fleet.system.state.host(id);
      TwinHost& host = twin.emplace_back();
      host.islands.emplace_back();
      for (const int64_t used : row.device_used_milli) host.islands[0].push_back(1000 - used);
      host.cpus_milli = row.inventory.cpus_milli() - row.cpus_used_milli;
      host.memory_bytes = row.inventory.memory_bytes() - row.memory_used_bytes;
      host.block = row.block;
      host.rack = row.rack;
    }
    FreeMap map(fleet.system.state);
    for (int t = 0; t < 8; ++t) {
      pb::TaskSpec task =
          Task(1000 * (1 + upto(2)), 1 + upto(2), static_cast<pb::TopologyLevel>(1 + upto(5)));
      int32_t block_workers = 1 + upto(3);
      for (int b = 1 + upto(3); b > 0; --b, block_workers *= 1 + upto(3)) {
        pb::RankBlock* block = task.mutable_topology()->add_blocks();
        block->set_gpus(block_workers * static_cast<int32_t>(task.resources().gpus_milli() / 1000));
        if (upto(3) > 0) block->set_required(static_cast<pb::TopologyLevel>(pb::HOST + upto(3)));
        if (block->required() == 0 || (block->required() > pb::HOST && upto(3) == 0))
          block->set_preferred(pb::HOST);
      }
      const int32_t largest = static_cast<int32_t>(LargestBlockOf(task));
      const int32_t workers = largest * (1 + upto(4));
      const std::optional<HostSlices> slices = map.Place(task, workers, fleet.PoolFor(true));
      ASSERT_EQ(slices.has_value(), TwinHolds(twin, task, workers))
          << "round " << round << " " << task.ShortDebugString() << " x " << workers;
      ++(slices.has_value() ? found : none);
      if (!slices.has_value()) continue;
      EXPECT_TRUE(map.Fits(task, *slices));
      EXPECT_EQ(WorkersIn(*slices), workers);
      bool wishes = true;
      for (const pb::RankBlock& block : task.topology().blocks()) {
        if (block.required() != 0) {
          EXPECT_TRUE(AreTogether(fleet.system.state, *slices, block.gpus(), block.required()))
              << task.ShortDebugString() << " on " << fleet.Shown(slices);
        }
        wishes = wishes && (block.preferred() == 0 || AreTogether(fleet.system.state, *slices,
                                                                  block.gpus(), block.preferred()));
      }
      if (TwinHolds(twin, task, workers, /*wishes=*/true)) {
        EXPECT_TRUE(wishes) << task.ShortDebugString() << " on " << fleet.Shown(slices);
        ++kept;
      } else {
        ++given_up;
      }
    }
  }
  EXPECT_GT(found, 2000);
  EXPECT_GT(none, 500);
  EXPECT_GT(kept, 1000);
  EXPECT_GT(given_up, 100);
}

// Hosts of two or three islands, and blocks of which some are in one; some of less than a worker.
TEST(Place, KeepsBlocksInIslandsExactlyWhereThatIsPossible) {
  std::mt19937 random(13);
  const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int found = 0, none = 0, kept = 0, given_up = 0, on_hosts_alone = 0;
  for (int round = 0; round < 1500; ++round) {
    std::vector<TestHost> hosts;
    for (int count = 2 + upto(7), h = 0; h < count; ++h) {
      TestHost host{absl::StrCat("b", h / 4), absl::StrCat("r", h / 2), {}, 4 + upto(12)};
      for (int i = 2 + upto(2); i > 0; --i) host.islands.push_back(2 + upto(4));
      for (const int size : host.islands) {
        for (int d = 0; d < size; ++d) host.used_milli.push_back(upto(5) == 0 ? 1000 : 0);
      }
      hosts.push_back(host);
    }
    const Fleet fleet(hosts);
    std::vector<TwinHost> twin;
    for (const HostId id : fleet.system.state.hosts()) {
      const HostRow& row = fleet.system.state.host(id);
      TwinHost& host = twin.emplace_back();
      std::map<int, std::vector<int64_t>> islands;
      for (int d = 0; d < row.inventory.devices_size(); ++d)
        islands[row.inventory.devices(d).island()].push_back(1000 - row.device_used_milli[d]);
      for (const auto& [island, devices] : islands) host.islands.push_back(devices);
      host.cpus_milli = row.inventory.cpus_milli() - row.cpus_used_milli;
      host.memory_bytes = row.inventory.memory_bytes() - row.memory_used_bytes;
      host.block = row.block;
      host.rack = row.rack;
    }
    FreeMap map(fleet.system.state);
    for (int t = 0; t < 8; ++t) {
      const int gpus = 1 << upto(3);
      pb::TaskSpec task =
          Task(1000 * gpus, 1 + upto(2), static_cast<pb::TopologyLevel>(1 + upto(5)));
      const auto add = [&](int size, int looser) {
        pb::RankBlock* block = task.mutable_topology()->add_blocks();
        block->set_gpus(size);
        if (upto(3) > 0)
          block->set_required(static_cast<pb::TopologyLevel>(pb::ISLAND + upto(1 + looser)));
        if (block->required() == 0 || (block->required() > pb::ISLAND && upto(3) == 0))
          block->set_preferred(pb::ISLAND);
      };
      if (gpus > 1 && upto(2) == 0) add(gpus / 2, 0);
      const int workers_of_block = 1 + upto(2);
      add(workers_of_block * gpus, 1);
      if (upto(2) == 0) add(2 * workers_of_block * gpus, 3);
      const int32_t workers = static_cast<int32_t>(LargestBlockOf(task)) * (1 + upto(3));
      const std::optional<HostSlices> slices = map.Place(task, workers, fleet.PoolFor(true));
      ASSERT_EQ(slices.has_value(), TwinHolds(twin, task, workers))
          << "round " << round << " " << task.ShortDebugString() << " x " << workers;
      ++(slices.has_value() ? found : none);
      if (!slices.has_value()) continue;
      EXPECT_TRUE(map.Fits(task, *slices));
      EXPECT_EQ(WorkersIn(*slices), workers);
      EXPECT_TRUE(muster::AreTogether(fleet.system.state, task, *slices));
      bool wishes = true;
      for (const pb::RankBlock& block : task.topology().blocks()) {
        if (block.required() != 0) {
          EXPECT_TRUE(AreTogether(fleet.system.state, *slices, block.gpus(), block.required()))
              << task.ShortDebugString() << " on " << fleet.Shown(slices);
        }
        wishes = wishes && (block.preferred() == 0 || AreTogether(fleet.system.state, *slices,
                                                                  block.gpus(), block.preferred()));
      }
      const bool possible = TwinHolds(twin, task, workers, /*wishes=*/true);
      EXPECT_TRUE(wishes || !possible) << task.ShortDebugString() << " on " << fleet.Shown(slices);
      ++(possible ? kept : given_up);
      // What no islands keep, hosts do where they can.
      pb::TaskSpec on_hosts = task;
      for (pb::RankBlock& block : *on_hosts.mutable_topology()->mutable_blocks()) {
        if (block.preferred() == pb::ISLAND) block.set_preferred(pb::HOST);
      }
      if (!TwinHolds(twin, on_hosts, workers, /*wishes=*/true)) continue;
      on_hosts_alone += possible ? 0 : 1;
      for (const pb::RankBlock& block : on_hosts.topology().blocks()) {
        EXPECT_TRUE(block.preferred() == 0 ||
                    AreTogether(fleet.system.state, *slices, block.gpus(), block.preferred()))
            << task.ShortDebugString() << " on " << fleet.Shown(slices);
      }
    }
  }
  EXPECT_GT(found, 1000);
  EXPECT_GT(none, 500);
  EXPECT_GT(kept, 500);
  EXPECT_GT(given_up, 50);
  EXPECT_GT(on_hosts_alone, 10);
}

TEST(Place, AWishForAnIslandIsOneForAHostBeforeItIsNone) {
  const auto host = [](std::vector<int> islands, std::vector<int64_t> used) {
    return TestHost{"b", "r", std::move(islands), 64, std::move(used)};
  };
  const TestHost empty = host({2, 2}, {}), halves = host({2, 2}, {1000, 0, 1000, 0}),
                 first = host({2, 2}, {0, 1000, 1000, 1000}),
                 last = host({2, 2}, {1000, 1000, 1000, 0}), whole = host({6}, {}),
                 apart = host({1, 1, 1, 1, 1, 1}, {});
  using Wishes = std::vector<std::pair<int, pb::TopologyLevel>>;
  const Wishes pairs = {{2, pb::ISLAND}}, layout = {{2, pb::ISLAND}, {4, pb::HOST}};
  const struct {
    const char* why;
    std::vector<TestHost> hosts;
    Wishes wishes;
    int32_t workers;
    const char* want;
  } cases[] = {
      {"an island holds each pair", {halves, empty}, pairs, 4, "h01*4:0,1,2,3"},
      {"islands have one each: a host", {halves, halves}, pairs, 2, "h00*2:1,3"},
      {"and two hosts for two pairs", {halves, halves}, pairs, 4, "h00*2:1,3 h01*2:1,3"},
      {"hosts have one each", {first, last}, pairs, 2, "h00*1:0 h01*1:3"},
      {"no island is so large: the larger block's wish stays",
       {apart, apart},
       layout,
       8,
       "h00*4:0,1,2,3 h01*4:0,1,2,3"},
      {"an island a host: as hosts", {whole, whole}, layout, 8, "h00*4:0,1,2,3 h01*4:0,1,2,3"},
  };
  for (const auto& c : cases) {
    const Fleet fleet(c.hosts);
    pb::TaskSpec task = Task(1000);
    for (const auto& [gpus, level] : c.wishes) {
      pb::RankBlock* block = task.mutable_topology()->add_blocks();
      block->set_gpus(gpus);
      block->set_preferred(level);
    }
    FreeMap map(fleet.system.state);
    EXPECT_EQ(fleet.Shown(map.Place(task, c.workers, fleet.PoolFor(true))), c.want) << c.why;
  }
}

// Where each host is one island a wish for an island changes nothing of a wish for a host.
TEST(Place, IslandsAsLargeAsHostsChangeNoPlace) {
  std::mt19937 random(17);
  const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int spread = 0;
  for (int round = 0; round < 300; ++round) {
    std::vector<TestHost> hosts;
    for (int count = 2 + upto(7), h = 0; h < count; ++h) {
      TestHost host{
          absl::StrCat("b", h / 4), absl::StrCat("r", h / 2), {4 + upto(5)}, 6 + upto(12)};
      for (int d = 0; d < host.islands[0]; ++d) host.used_milli.push_back(upto(4) == 0 ? 1000 : 0);
      hosts.push_back(host);
    }
    const Fleet fleet(hosts);
    FreeMap map(fleet.system.state);
    for (int t = 0; t < 8; ++t) {
      pb::TaskSpec task = Task(1000 * (1 + upto(2)), 1 + upto(2));
      const int gpus = static_cast<int>(task.resources().gpus_milli() / 1000);
      for (const int size : {2, 4}) {
        pb::RankBlock* block = task.mutable_topology()->add_blocks();
        block->set_gpus(size * gpus);
        block->set_preferred(size == 2 ? pb::ISLAND : pb::HOST);
      }
      const int32_t workers = 4 * (1 + upto(4));
      const std::string in_islands = fleet.Shown(map.Place(task, workers, fleet.PoolFor(true)));
      task.mutable_topology()->mutable_blocks(0)->set_preferred(pb::HOST);
      EXPECT_EQ(in_islands, fleet.Shown(map.Place(task, workers, fleet.PoolFor(true))));
      spread += in_islands.find(' ') != std::string::npos ? 1 : 0;
    }
  }
  EXPECT_GT(spread, 100);
}

// Two hosts with two islands of two, and workers of one GPU, or of four.
TEST(Place, WhatIslandsHaveTornIsNotTogether) {
  const Fleet fleet(std::vector<TestHost>(2, TestHost{"b", "r", {2, 2}}));
  const HostId h00 = fleet.system.state.hosts()[0], h01 = fleet.system.state.hosts()[1];
  const struct {
    const char* why;
    int gpus;  // of a worker
    HostSlices slices;
    bool together;
  } cases[] = {
      {"each in its own island", 1, {{h00, 4, {2, 3, 0, 1}, {}}, {h01, 2, {2, 3}, {}}}, true},
      {"over two islands", 1, {{h00, 2, {1, 2}, {}}}, false},
      {"the second over two islands", 1, {{h00, 4, {0, 1, 2, 3}, {}}, {h01, 2, {1, 2}, {}}}, false},
      {"islands of one number on two hosts", 1, {{h00, 1, {0}, {}}, {h01, 1, {0}, {}}}, false},
      {"both halves of a worker", 4, {{h00, 1, {0, 1, 2, 3}, {}}}, true},
      {"a worker's devices not in its order", 4, {{h00, 1, {0, 2, 1, 3}, {}}}, false},
      {"a device that the host hasn't any more", 1, {{h00, 2, {3, 4}, {}}}, false},
  };
  for (const auto& c : cases) {
    pb::TaskSpec task = Task(1000 * c.gpus);
    pb::RankBlock* block = task.mutable_topology()->add_blocks();
    block->set_gpus(2);
    block->set_required(pb::ISLAND);
    EXPECT_EQ(muster::AreTogether(fleet.system.state, task, c.slices), c.together) << c.why;
    block->clear_required();
    block->set_preferred(pb::ISLAND);
    EXPECT_TRUE(muster::AreTogether(fleet.system.state, task, c.slices)) << c.why << ", by a wish";
  }
}

TEST(Place, SaysNoneExactlyWhenThereIsNoPlace) {
  std::mt19937 random(7);
  const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int found = 0, none = 0;
  for (int round = 0; round < 400; ++round) {
    std::vector<TestHost> hosts;
    const int count = 1 + upto(6);
    for (int h = 0; h < count; ++h) {
      TestHost host{absl::StrCat("b", h / 4), absl::StrCat("r", h / 2), {}, 4 + upto(12)};
      for (int i = upto(3); i > 0; --i) host.islands.push_back(1 + upto(3));
      for (const int size : host.islands) {
        for (int d = 0; d < size; ++d)
          host.used_milli.push_back(upto(3) == 0 ? 1000 : upto(4) == 0 ? 100 * (1 + upto(9)) : 0);
      }
      hosts.push_back(host);
    }
    const Fleet fleet(hosts);
    std::vector<TwinHost> twin;
    std::vector<HostId> ids = fleet.system.state.hosts();
    for (const HostId id : ids) {
      const HostRow& row = fleet.system.state.host(id);
      TwinHost& host = twin.emplace_back();
      std::map<int, std::vector<int64_t>> islands;
      for (int d = 0; d < row.inventory.devices_size(); ++d)
        islands[row.inventory.devices(d).island()].push_back(1000 - row.device_used_milli[d]);
      for (auto& [island, devices] : islands) host.islands.push_back(devices);
      host.cpus_milli = row.inventory.cpus_milli() - row.cpus_used_milli;
      host.memory_bytes = row.inventory.memory_bytes() - row.memory_used_bytes;
      host.block = row.block;
      host.rack = row.rack;
    }
    for (const PlacementPolicy policy :
         {PlacementPolicy::kV, PlacementPolicy::kFgd, PlacementPolicy::kBestFit}) {
      FreeMap map(fleet.system.state, policy);
      for (int t = 0; t < 12; ++t) {
        const int64_t gpus[] = {0, 300, 700, 1000, 1000, 2000, 3000};
        const pb::TopologyLevel required = static_cast<pb::TopologyLevel>(1 + upto(5));
        pb::TaskSpec task = Task(gpus[upto(7)], 1 + upto(4),
                                 static_cast<pb::TopologyLevel>(1 + upto(required)), required);
        const bool share = task.resources().gpus_milli() % 1000 != 0;
        const int32_t workers = share ? 1 : 1 + upto(7);
        std::vector<TwinHost> allowed;
        for (size_t h = 0; h < twin.size(); ++h) {
          if (task.resources().gpus_milli() == 0 || !hosts[h].islands.empty())
            allowed.push_back(twin[h]);
        }
        const Pool pool = fleet.PoolFor(task.resources().gpus_milli() > 0);
        const std::optional<HostSlices> slices = map.Place(task, workers, pool);
        ASSERT_EQ(slices.has_value(), TwinHolds(allowed, task, workers))
            << "round " << round << " " << task.ShortDebugString() << " x " << workers;
        ++(slices.has_value() ? found : none);
        if (!slices.has_value()) continue;
        EXPECT_TRUE(map.Fits(task, *slices));
        int32_t placed = 0;
        std::set<std::string> racks, blocks;
        for (const HostSlice& part : *slices) {
          placed += part.workers;
          const HostRow& row = fleet.system.state.host(part.host);
          racks.insert(row.block + "/" + row.rack);
          blocks.insert(row.block);
          EXPECT_EQ(std::set<int32_t>(part.devices.begin(), part.devices.end()).size(),
                    part.devices.size());
          EXPECT_EQ(
              part.devices.size(),
              share ? 1
                    : static_cast<size_t>(part.workers * (task.resources().gpus_milli() / 1000)));
        }
        EXPECT_EQ(placed, workers);
        if (required <= pb::HOST) {
          EXPECT_EQ(slices->size(), 1u);
        }
        if (required <= pb::RACK) {
          EXPECT_EQ(racks.size(), 1u);
        }
        if (required <= pb::BLOCK) {
          EXPECT_EQ(blocks.size(), 1u);
        }
      }
    }
  }
  EXPECT_GT(found, 3000);
  EXPECT_GT(none, 3000);
}

TEST(FreeMap, KeptThroughRandomChangesItEqualsOneBuiltAnew) {
  std::mt19937 random(11);
  const auto upto = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  std::vector<TestHost> hosts;
  for (int h = 0; h < 12; ++h)
    hosts.push_back({absl::StrCat("b", h / 6), absl::StrCat("r", h / 3),
                     h % 4 == 3 ? std::vector<int>{} : std::vector<int>{2, 2}, 32});
  Fleet fleet(hosts);
  for (const PlacementPolicy policy : {PlacementPolicy::kV, PlacementPolicy::kBestFit}) {
    TaskMix mix;
    mix.Rebuild(fleet.system.state);
    FreeMap map(fleet.system.state, policy, &mix);
    std::vector<std::pair<uint64_t, HostId>> running;
    for (int round = 0; round < 150; ++round) {
      // A decision that tries and undoes, with marks inside of marks.
      {
        const FreeMap::Trial trial(&map);
        std::vector<std::pair<pb::TaskSpec, HostSlices>> taken;
        const size_t mark = map.Mark();
        for (int step = 0; step < 20; ++step) {
          const int64_t gpus[] = {0, 300, 1000, 2000};
          const pb::TaskSpec task = Task(gpus[upto(4)], 1 + upto(3));
          const bool share = task.resources().gpus_milli() == 300;
          const int what = upto(6);
          if (what == 0 && !taken.empty()) {
            const size_t i = static_cast<size_t>(upto(static_cast<int>(taken.size())));
            map.GiveBack(taken[i].first, taken[i].second);
            taken.erase(taken.begin() + static_cast<int64_t>(i));
          } else if (what == 1) {
            map.UndoTo(mark);
            taken.clear();
          } else if (what == 2) {
            map.Close(fleet.system.state.hosts()[static_cast<size_t>(upto(12))]);
          } else if (auto slices = map.Place(task, share ? 1 : 1 + upto(5),
                                             fleet.PoolFor(task.resources().gpus_milli() > 0))) {
            map.Take(task, *slices);
            taken.emplace_back(task, *slices);
          }
          for (const bool on_gpus : {true, false}) {
            int64_t sum = 0;
            for (const HostId id : fleet.PoolFor(on_gpus).hosts) {
              const HostFree free = map.Peek(id);
              if (!free.usable) continue;
              for (const int64_t milli : free.device_milli) sum += on_gpus ? milli : 0;
              sum += on_gpus ? 0 : std::max<int64_t>(0, free.cpus_milli);
            }
            ASSERT_EQ(map.FreeMilli(fleet.PoolFor(on_gpus), on_gpus), sum);
          }
        }
      }
      ASSERT_EQ(map.Difference(fleet.system.state), "") << round;
      // An event: a start, an end, a drain.
      const HostId id = fleet.system.state.hosts()[static_cast<size_t>(upto(12))];
      const std::string name = fleet.system.state.host(id).name;
      const std::vector<int64_t>& devices = fleet.system.state.host(id).device_used_milli;
      if (upto(8) == 0) {
        fleet.system.Drain("c/" + name, !fleet.system.state.host(id).drained);
        map.Refresh(fleet.system.state, id);
      } else if (!running.empty() && upto(2) == 0) {
        const auto [job, host] = running.back();
        running.pop_back();
        testing::ReportAll(&fleet.system, job, pb::GONE, 0);
        map.Refresh(fleet.system.state, host);
      } else if (!devices.empty() && !fleet.system.state.host(id).drained) {
        const auto device = std::find(devices.begin(), devices.end(), 0);
        if (device != devices.end()) {
          JobBuilder job("q");
          job.Gpus(1);
          fleet.Hold(&job, static_cast<size_t>(std::stoi(name.substr(1))),
                     static_cast<int32_t>(device - devices.begin()), 1000);
          running.emplace_back(fleet.system.state.next_job_number() - 1, id);
          map.Refresh(fleet.system.state, id);
          mix.Refresh(fleet.system.state, running.back().first);
        }
      }
      ASSERT_EQ(map.Difference(fleet.system.state), "") << round;
    }
    for (const auto& [job, host] : running) testing::ReportAll(&fleet.system, job, pb::GONE, 0);
  }
}

TEST(FreeMap, AHostThatJoinsOrChangesItsFlavourIsFound) {
  SystemBuilder system;
  system.Cluster("c").Hosts("c", 2, 2).Queue("q");
  FreeMap map(system.state);
  system.Hosts("c", 1, 4);
  map.Refresh(system.state, system.state.hosts().back());
  EXPECT_EQ(map.Difference(system.state), "");
  system.Hello("c", system.state.host(0).name, 4, "other");
  map.Refresh(system.state, 0);
  EXPECT_EQ(map.Difference(system.state), "");
}

}  // namespace
}  // namespace muster
