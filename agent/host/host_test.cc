#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>

#include "agent/host/environment.h"
#include "agent/host/inventory.h"
#include "agent/host/processes.h"
#include "agent/host/shim_files.h"
#include "agent/host/state_dir.h"
#include "agent/host/testing/host_fixture.h"
#include "agent/host/unit.h"
#include "agent/shim/cgroup.h"
#include "agent/shim/durable.h"
#include "agent/shim/format.h"
#include "agent/shim/isolate.h"
#include "agent/shim/log_writer.h"
#include "common/base/clock.h"
#include "common/base/files.h"
#include "common/base/ids.h"
#include "common/base/testing/eventually.h"
#include "common/base/units.h"
#include "common/pack/format.h"
#include "common/spec/spec.h"

namespace muster::agent {
namespace {

TEST(Environment, OfAnImageHasTheDriverAndShowsWhatIsTheJobs) {
  AttemptRecord record = Record();
  record.prepare.mutable_task()->set_image("/images/torch");
  record.prepare.mutable_task()->set_workdir("/usr/src/app");
  LaunchHost host = Host();
  std::vector<std::string> driver = {"/usr/lib64/libcuda.so.1"};
  host.driver = [&] { return driver; };
  auto spec = MakeShimSpec(record, host, "token", "/run/muster/p");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->image.path, "/images/torch");
  EXPECT_EQ(spec->workdir, "/usr/src/app");
  EXPECT_EQ(spec->image.driver, driver);
  EXPECT_EQ(EnvironmentOf(*spec, 0, 0)["LD_LIBRARY_PATH"], "/.muster/driver");
  EXPECT_EQ(EnvironmentOf(*spec, 0, 0)["PATH"],
            "/opt/muster/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:"
            "/.muster/driver");
  const std::vector<std::string> shown = {"/j", "/j/train/attempt-2", "/c", "/run/muster",
                                          "/home/u"};
  EXPECT_EQ(spec->image.shown, shown) << "a workdir among the system's own is the image's";
  shim::Spec told;
  std::string error;
  ASSERT_TRUE(shim::ParseSpec(shim::FormatSpec(*spec), &told, &error)) << error;
  EXPECT_EQ(shim::FormatImage(told.image), shim::FormatImage(spec->image));

  record.prepare.mutable_task()->set_workdir("/data/app");
  spec = MakeShimSpec(record, host, "token", "");
  EXPECT_EQ(spec->image.shown[3], "/data/app");
  driver = {"/usr/lib64/libcuda.so.1", "/usr/lib64/libcuda.so.580"};
  spec = MakeShimSpec(record, host, "token", "");
  EXPECT_EQ(spec->image.driver, driver) << "it was upgraded while the agent ran";
  driver.clear();
  spec = MakeShimSpec(record, host, "token", "");
  EXPECT_EQ(EnvironmentOf(*spec, 0, 0).count("LD_LIBRARY_PATH"), 0u) << "there is none any more";
  driver = {"/usr/lib64/libcuda.so.1"};
  host.declared = true;  // no device, no driver
  spec = MakeShimSpec(record, host, "token", "");
  EXPECT_TRUE(spec->image.driver.empty());
  EXPECT_EQ(EnvironmentOf(*spec, 0, 0).count("LD_LIBRARY_PATH"), 0u);
  for (const char* bad : {"torch", "./torch"}) {
    record.prepare.mutable_task()->set_image(bad);
    EXPECT_EQ(MakeShimSpec(record, host, "token", "").status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(Driver, ItsLibrariesAreFoundWhereTheSystemHasThem) {
  char name[] = "/tmp/muster-driver-XXXXXX";
  const std::string root = ::mkdtemp(name);
  EXPECT_TRUE(DriverFiles(root).empty());
  const std::string first = root + "/usr/lib/x86_64-linux-gnu", second = root + "/usr/lib64";
  for (const std::string& directory : {first, second, root + "/usr/bin"})
    std::filesystem::create_directories(directory);
  for (const std::string& file :
       {first + "/libnvidia-ml.so.1", first + "/libc.so.6", first + "/libcuda.so",
        first + "/libcudart.so.12", second + "/libnvidia-ml.so.1"})
    std::ofstream(file) << "x";
  EXPECT_TRUE(DriverFiles(root).empty()) << "libnvidia-ml alone runs nothing";
  std::ofstream(second + "/libcuda.so.1") << "x";
  std::ofstream(root + "/usr/bin/nvidia-smi") << "x";
  std::filesystem::permissions(root + "/usr/bin/nvidia-smi", std::filesystem::perms(0755));
  const std::vector<std::string> found = {second + "/libcuda.so.1", first + "/libnvidia-ml.so.1",
                                          root + "/usr/bin/nvidia-smi"};
  EXPECT_EQ(DriverFiles(root), found);
  std::filesystem::remove_all(root);
}

void SetWorkers(int32_t min, int32_t max, v1::Prepare* prepare) {
  prepare->mutable_task()->mutable_workers()->set_min(min);
  prepare->mutable_task()->mutable_workers()->set_max(max);
}

TEST(Environment, IsTorchrunsAndMustersAndNothingElse) {
  const auto spec = MakeShimSpec(Record(), Host(), "token", "/tmp/p");
  ASSERT_TRUE(spec.ok()) << spec.status();
  const std::map<std::string, std::string> want = {
      {"CUDA_DEVICE_ORDER", "PCI_BUS_ID"},
      {"CUDA_VISIBLE_DEVICES", "6,7"},
      {"GROUP_RANK", "2"},
      {"GROUP_WORLD_SIZE", "4"},
      {"HOME", "/home/u"},
      {"LANG", "C.UTF-8"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "2"},
      {"LOGNAME", "u"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"MASTER_PORT", "20007"},
      {"MUSTER_ATTEMPT", "2"},
      {"MUSTER_CHECKPOINT_DIR", "/c"},
      {"MUSTER_CHECKPOINT_INTERVAL_S", "600"},
      {"MUSTER_CHECKPOINT_KEEP", "2"},
      {"MUSTER_EXPORT_STAGING", "/j/train/attempt-2/export-staging"},
      {"MUSTER_JOB", "42"},
      {"MUSTER_JOB_DIR", "/j"},
      {"MUSTER_PROGRESS_SOCKET", "/tmp/p"},
      {"MUSTER_REPORTS", "newest"},
      {"MUSTER_REQUEST_DIR", "/j/train/attempt-2/requests"},
      {"MUSTER_RESUME_FROM", "/c/9,/c/5"},
      {"MUSTER_RUN_ID", std::string(32, 'c') + ".train.2"},
      {"MUSTER_TASK", "train"},
      {"OMP_NUM_THREADS", "1"},
      {"PATH", "/opt/muster/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
      {"PYTHONUNBUFFERED", "1"},
      {"RANK", "5"},
      {"ROLE_RANK", "5"},
      {"ROLE_WORLD_SIZE", "8"},
      {"SHELL", "/bin/bash"},
      {"TORCHELASTIC_MAX_RESTARTS", "3"},
      {"TORCHELASTIC_RESTART_COUNT", "1"},
      {"TORCHELASTIC_RUN_ID", std::string(32, 'c') + ".train.2"},
      {"USER", "u"},
      {"WORLD_SIZE", "8"}};
  EXPECT_EQ(EnvironmentOf(*spec, 1, 1), want);
  EXPECT_EQ(EnvironmentOf(*spec, 0, 0)["CUDA_VISIBLE_DEVICES"], "4,5");
  EXPECT_EQ(EnvironmentOf(*spec, 0, 0)["RANK"], "2");
}

TEST(Environment, SaysThatEachReportCountsWhereTheJobIsTracked) {
  AttemptRecord record = Record();
  record.prepare.set_keep_reports(true);
  const auto spec = MakeShimSpec(record, Host(), "token", "/tmp/p");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(EnvironmentOf(*spec, 0, 0)["MUSTER_REPORTS"], "each");
}

TEST(Environment, ALoneProcessIsNoRankUnlessItsTaskAsksForIt) {
  struct Case {
    const char* what;
    std::function<void(v1::Prepare*)> change;
    const char* world;  // WORLD_SIZE; "": there is no variable of torchrun's at all
  };
  const Case cases[] = {
      {"one process", [](v1::Prepare*) {}, ""},
      {"of a gang's fixed size", [](v1::Prepare* p) { SetWorkers(1, 1, p); }, ""},
      {"of an elastic gang at its smallest", [](v1::Prepare* p) { SetWorkers(1, 4, p); }, "1"},
      {"of two workers", [](v1::Prepare* p) { p->set_gang_workers(2); }, "2"},
      {"of two processes", [](v1::Prepare* p) { p->set_processes_per_worker(2); }, "2"},
      {"a trainer", [](v1::Prepare* p) { p->mutable_task()->set_trainer_json("{}"); }, "1"},
      {"asked for", [](v1::Prepare* p) { p->mutable_task()->set_rank_variables(true); }, "1"},
  };
  for (const Case& c : cases) {
    AttemptRecord record = Record();
    v1::Prepare* prepare = &record.prepare;
    prepare->mutable_here()->set_first_group_rank(0);
    prepare->mutable_here()->set_workers(1);
    prepare->set_processes_per_worker(1);
    prepare->set_gang_workers(1);
    c.change(prepare);
    const auto spec = MakeShimSpec(record, Host(), "t", "");
    ASSERT_TRUE(spec.ok()) << c.what << ": " << spec.status();
    std::map<std::string, std::string> environment = EnvironmentOf(*spec, 0, 0);
    for (const char* name :
         {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
          "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID",
          "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"})
      EXPECT_EQ(environment.count(name), *c.world == '\0' ? 0u : 1u) << c.what << ": " << name;
    EXPECT_EQ(environment["WORLD_SIZE"], c.world) << c.what;  // "" where there is none
    EXPECT_EQ(environment["MUSTER_RUN_ID"], std::string(32, 'c') + ".train.2") << c.what;
    EXPECT_EQ(environment["CUDA_VISIBLE_DEVICES"], "4,5,6,7") << c.what;
    EXPECT_EQ(spec->workers[0].processes[0].rank, 0) << c.what;
  }
}

TEST(Environment, OnAnothersDevicesItsShimGivesAMark) {
  AttemptRecord record = Record();
  EXPECT_EQ(MakeShimSpec(record, Host(), "token", "")->holder_mark, "");
  (*record.prepare.mutable_member_env())["MUSTER_ON"] = std::string(32, 'f') + ".4";
  const auto spec = MakeShimSpec(record, Host(), "token", "");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->holder_mark, absl::StrCat("muster-on.", std::string(32, 'f'), ".4.",
                                            record.id.job_uid, ".", record.id.attempt));
  EXPECT_EQ(EnvironmentOf(*spec, 0, 0)["MUSTER_ON"], std::string(32, 'f') + ".4");
}

TEST(Environment, DeclaredDevicesShowNoGpu) {
  LaunchHost host = Host();
  host.declared = true;
  EXPECT_EQ(EnvironmentOf(*MakeShimSpec(Record(), host, "t", ""), 0, 0)["CUDA_VISIBLE_DEVICES"],
            "");
}

TEST(Environment, ThreadsAreTheProcesssPartOfTheWorkersCores) {
  AttemptRecord record = Record();
  const auto threads = [&](int64_t cpus_milli, int32_t processes) {
    record.prepare.mutable_task()->mutable_resources()->set_cpus_milli(cpus_milli);
    record.prepare.set_processes_per_worker(processes);
    return EnvironmentOf(*MakeShimSpec(record, Host(), "t", ""), 0, 0).at("OMP_NUM_THREADS");
  };
  EXPECT_EQ(threads(8000, 2), "4");
  EXPECT_EQ(threads(7500, 2), "3");
  EXPECT_EQ(threads(500, 1), "1");
  EXPECT_EQ(threads(0, 2), "1");
  record.prepare.mutable_task()->set_trainer_json("{}");
  EXPECT_EQ(threads(8000, 1), "1");
}

TEST(Environment, TheTasksVariablesWinOverTheJobsAndKeepTheirThreads) {
  AttemptRecord record = Record();
  (*record.prepare.mutable_job_env())["A"] = "job";
  (*record.prepare.mutable_job_env())["OMP_NUM_THREADS"] = "4";
  (*record.prepare.mutable_task()->mutable_env())["A"] = "task";
  const auto environment = EnvironmentOf(*MakeShimSpec(record, Host(), "t", ""), 0, 0);
  EXPECT_EQ(environment.at("A"), "task");
  EXPECT_EQ(environment.at("OMP_NUM_THREADS"), "4");
}

TEST(Environment, ReservedVariablesAreRefused) {
  for (const char* name :
       {"LD_PRELOAD", "LD_LIBRARY_PATH", "MUSTER_JOB", "RANK", "WORLD_SIZE", "MASTER_PORT",
        "CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
        "CUDA_MPS_PIPE_DIRECTORY", "TORCHELASTIC_RUN_ID", "A=B", ""}) {
    AttemptRecord record = Record();
    (*record.prepare.mutable_job_env())[name] = "x";
    EXPECT_FALSE(MakeShimSpec(record, Host(), "t", "").ok()) << name;
  }
  EXPECT_FALSE(IsReservedVariable("NCCL_DEBUG"));
  EXPECT_FALSE(IsReservedVariable("CUDA_LAUNCH_BLOCKING"));
}

TEST(Environment, ATrainerTaskRunsMusterTrainer) {
  AttemptRecord record = Record();
  record.prepare.mutable_task()->set_trainer_json("{}");
  const auto spec = MakeShimSpec(record, Host(), "t", "");
  EXPECT_EQ(spec->argv, (std::vector<std::string>{"/opt/muster/bin/muster-trainer", "train",
                                                  "--config", "/j/train/attempt-2/trainer.json"}));
}

TEST_F(HostTest, DeclaredInventory) {
  Write("good.yaml", "{flavour: cpu-slot, gpus: 2, cpus: 2, memory: 4GiB, disk: 10GiB}\n");
  const auto inventory = FindInventory(directory_ + "/good.yaml", directory_, nullptr);
  ASSERT_TRUE(inventory.ok()) << inventory.status();
  EXPECT_TRUE(inventory->declared());
  EXPECT_EQ(inventory->devices_size(), 2);
  EXPECT_EQ(inventory->memory_bytes(), int64_t{4} << 30);
}

TEST_F(HostTest, MalformedInventoriesAreRefusedWithTheirPlace) {
  const struct {
    const char* text;
    const char* says;
  } cases[] = {
      {"{flavour: cpu-slot, gpu: 2}", "gpu"},
      {"{flavour: cpu-slot, gpus: -1}", "gpus"},
      {"{flavour: cpu-slot, gpus: many}", "gpus"},
      {"{flavour: cpu-slot, gpus: 2, gpus: 3}", "gpus"},
      {"{flavour: cpu-slot, gpus: 2, memory: 4 apples}", "memory"},
      {"[1, 2]", "bad.yaml"},
      {"{flavour: ", "bad.yaml"},
  };
  for (const auto& c : cases) {
    Write("bad.yaml", c.text);
    const auto inventory = FindInventory(directory_ + "/bad.yaml", directory_, nullptr);
    ASSERT_FALSE(inventory.ok()) << c.text;
    EXPECT_NE(inventory.status().message().find(c.says), absl::string_view::npos)
        << inventory.status();
  }
  EXPECT_FALSE(FindInventory(directory_ + "/missing.yaml", directory_, nullptr).ok());
}

TEST_F(HostTest, AProbedMachineHasDevices) {
  const auto inventory = FindInventory("", directory_, nullptr);
  ASSERT_TRUE(inventory.ok());
  EXPECT_GT(inventory->devices_size(), 0);
  EXPECT_GT(inventory->cpus_milli(), 0);
  EXPECT_GT(inventory->memory_bytes(), 0);
}

TEST_F(HostTest, NvmlTellsOfDevicesAndOfTheirCriticalErrors) {
  EXPECT_EQ(Nvml::Load("libnvidia-ml-that-is-not-there.so"), nullptr);
  ::setenv("FAKE_NVML", directory_.c_str(), 1);
  Write("devices",
        "NVIDIA H100 80GB HBM3|GPU-a|85520809984\nNVIDIA H100 80GB HBM3|GPU-b|85520809984\n");
  Write("events", "0|8|13\n");  // before anybody watched
  const std::unique_ptr<Nvml> nvml = Nvml::Load(MUSTER_FAKE_NVML);
  ASSERT_NE(nvml, nullptr);
  const auto inventory = FindInventory("", directory_, nvml.get());
  ASSERT_TRUE(inventory.ok());
  EXPECT_EQ(inventory->flavour(), "h100-80g");
  ASSERT_EQ(inventory->devices_size(), 2);
  EXPECT_EQ(inventory->devices(1).uuid(), "GPU-b");
  EXPECT_TRUE(inventory->devices(1).healthy());
  EXPECT_FALSE(inventory->declared());
  EXPECT_FALSE(nvml->Uses().at(0).known) << "its driver doesn't tell";
  Write("uses", "1|37|1000\n");
  const std::vector<Nvml::Use> uses = nvml->Uses();
  ASSERT_EQ(uses.size(), 2u);
  EXPECT_FALSE(uses[0].known);
  ASSERT_TRUE(uses[1].known);
  EXPECT_EQ(uses[1].busy_percent, 37);
  EXPECT_EQ(uses[1].memory_used_bytes, 1000);
  EXPECT_EQ(uses[1].memory_bytes, 85520809984);
  ASSERT_TRUE(nvml->Watch());
  EXPECT_FALSE(nvml->Next(20'000'000).has_value());
  Write("events", "0|8|13\n1|8|79\n0|2|0\n");
  const std::optional<Nvml::Event> off = nvml->Next(kSecond), ecc = nvml->Next(kSecond);
  ASSERT_TRUE(off.has_value() && ecc.has_value());
  EXPECT_EQ(off->device, 1);
  EXPECT_EQ(off->xid, 79);
  EXPECT_EQ(ecc->device, 0);
  EXPECT_EQ(ecc->xid, 48);
  ::unsetenv("FAKE_NVML");
}

// An agent that is started elsewhere, without groups of its own, finds those of the one before, and
// what they hold below them.
TEST_F(HostTest, ControlGroupsAreEmptiedWhereverTheyWereMade) {
  const HostCgroups first("", directory_);
  if (first.described().rfind("no control groups", 0) == 0) GTEST_SKIP() << first.described();
  const shim::Cgroups groups = first.Make("attempt", 0);
  ASSERT_FALSE(groups.unified.empty());
  const std::string below = groups.unified + "/below";
  ASSERT_EQ(::mkdir(below.c_str(), 0755), 0);
  std::vector<pid_t> members;
  for (const std::string& group : {groups.unified, below}) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      if (shim::EnterCgroups({group, "", ""}) != 0) ::_exit(1);
      while (true) ::pause();
    }
    members.push_back(pid);
    EXPECT_TRUE(Eventually([&] {
      return ReadFile(group + "/cgroup.procs").value_or("").find(absl::StrCat(pid)) !=
             std::string::npos;
    }));
  }
  const HostCgroups second("none", directory_);
  EXPECT_EQ(second.described(), "no control groups, as told");
  EXPECT_TRUE(second.Kill("attempt"));
  EXPECT_FALSE(second.Kill("another"));
  for (const pid_t pid : members) {
    int status = 0;
    ::waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  }
  EXPECT_TRUE(Eventually([&] { return !second.Kill("attempt"); }));
  second.Remove("attempt");
  EXPECT_FALSE(std::filesystem::exists(groups.unified));
  first.Make("known", 0);
  first.Make("forgotten", 0);
  second.EndAllBut({"known"});
  const auto left = [&](const char* attempt) {
    std::string path = groups.unified;
    return std::filesystem::exists(path.replace(path.size() - 7, 7, attempt));
  };
  EXPECT_TRUE(left("known"));
  EXPECT_FALSE(left("forgotten"));
  second.EndAllBut({});
  EXPECT_FALSE(left("known"));
}

// systemd tells the main process of a unit that it is that, and kills a unit's control group with
// it unless the unit says otherwise.
TEST_F(HostTest, AUnitThatWouldKillTheJobsIsToldWithItsRemedy) {
  const struct {
    const char* what;
    const char* groups;
    bool main_process;
    const char* answer;  // of systemctl, with $* for what it was asked
    const char* told;
  } kCases[] = {
      {"the default", "0::/system.slice/muster-agent.service\n", true, "echo control-group",
       "muster-agent.service has KillMode=control-group"},
      {"its main process last", "0::/system.slice/muster-agent.service/agent\n", true, "echo mixed",
       "muster-agent.service has KillMode=mixed"},
      {"of version 1", "4:memory:/a.service\n1:name=systemd:/system.slice/m.service\n0::/\n", true,
       "echo control-group", "m.service has"},
      {"as shipped", "0::/system.slice/muster-agent.service\n", true, "echo process", ""},
      {"none", "0::/system.slice/muster-agent.service\n", true, "echo none", ""},
      {"asked as the system's", "0::/system.slice/m.service\n", true,
       "[ \"$*\" = '--system show --property=KillMode --value -- m.service' ] && echo mixed",
       "systemctl --system edit m.service"},
      {"asked as the user's", "0::/user.slice/user-7.slice/user@7.service/app.slice/m.service\n",
       true, "[ \"$1\" = --user ] && echo mixed", "systemctl --user edit m.service"},
      {"started by hand below a unit", "0::/system.slice/cron.service\n", false,
       "echo control-group", ""},
      {"no unit", "0::/user.slice/user-7.slice/session-3.scope\n", true, "echo control-group", ""},
      {"no answer", "0::/system.slice/m.service\n", true, "echo control-group; exit 1", ""},
  };
  UnitPlaces places{directory_ + "/cgroup", directory_ + "/systemctl"};
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.what);
    Write("cgroup", c.groups);
    Write("systemctl", absl::StrCat("#!/bin/sh\n", c.answer, "\n"));
    std::filesystem::permissions(places.systemctl, std::filesystem::perms(0755));
    ::setenv("SYSTEMD_EXEC_PID", absl::StrCat(::getpid() + (c.main_process ? 0 : 1)).c_str(), 1);
    const std::string why = WhyUnitEndsShims(places);
    EXPECT_EQ(why.empty(), *c.told == '\0') << why;
    EXPECT_NE(why.find(c.told), std::string::npos) << why;
  }
  std::filesystem::remove(places.systemctl);
  ::setenv("SYSTEMD_EXEC_PID", absl::StrCat(::getpid()).c_str(), 1);
  Write("cgroup", "0::/system.slice/m.service\n");
  EXPECT_EQ(WhyUnitEndsShims(places), "") << "a machine without systemctl";
  ::unsetenv("SYSTEMD_EXEC_PID");
}

TEST_F(HostTest, ThePackagesUnitRunsTheAgentOfItsStateDirectoryWhereSystemdRuns) {
  const auto places = [&](const char* booted, const char* unit) {
    UnitPlaces all;
    all.booted = directory_ + booted;
    all.unit = directory_ + unit;
    all.state_directory = "/var/lib/a";
    return all;
  };
  Write("booted", "");
  Write("unit", "");
  ::unsetenv("SYSTEMD_EXEC_PID");
  EXPECT_TRUE(IsOfPackagedUnit("/var/lib/a", places("/booted", "/unit")));
  EXPECT_TRUE(IsOfPackagedUnit("/var/lib/a/", places("/booted", "/unit")));
  EXPECT_FALSE(IsOfPackagedUnit("/var/lib/b", places("/booted", "/unit"))) << "another agent's";
  EXPECT_FALSE(IsOfPackagedUnit("/var/lib/a", places("/none", "/unit"))) << "a container";
  EXPECT_FALSE(IsOfPackagedUnit("/var/lib/a", places("/booted", "/none"))) << "no package";
  ::setenv("SYSTEMD_EXEC_PID", absl::StrCat(::getpid()).c_str(), 1);
  EXPECT_FALSE(IsOfPackagedUnit("/var/lib/a", places("/booted", "/unit"))) << "it is the unit's";
  ::unsetenv("SYSTEMD_EXEC_PID");
}

TEST_F(HostTest, ThePackagesUnitIsStartedAndItsAgentWaitedFor) {
  const struct {
    const char* what;
    const char* enable;  // what systemctl does, run in the test's directory
    const char* show;
    int64_t limit_ns;
    absl::StatusCode code;
    const char* told;
  } kCases[] = {
      {"up at once", "touch started", "test -e started && echo up as lab/h1: 8 h100-80g", 0,
       absl::StatusCode::kOk, "up as lab/h1: 8 h100-80g"},
      {"up when it is asked again", "true",
       "if test -e asked; then echo up as lab/h1; else touch asked; fi", kMinute,
       absl::StatusCode::kOk, "up as lab/h1"},
      {"not in time", "true", "echo not connected to m1: no route", 0,
       absl::StatusCode::kDeadlineExceeded, "not connected to m1: no route"},
      {"nothing told", "true", "echo", 0, absl::StatusCode::kDeadlineExceeded, "told nothing yet"},
      {"it can't be started", "echo masked >&2; exit 1", "echo up as lab/h1", kMinute,
       absl::StatusCode::kFailedPrecondition,
       "systemctl --system enable --now -- muster-agent.service: exit 1: masked"},
      {"no answer at first", "true",
       "if test -e failed; then echo up as lab/h1; else touch failed; exit 3; fi", kMinute,
       absl::StatusCode::kOk, "up as lab/h1"},
      {"it can't be asked", "true", "exit 3", 0, absl::StatusCode::kDeadlineExceeded, "exit 3"},
  };
  UnitPlaces places;
  places.systemctl = directory_ + "/systemctl";
  for (const auto& c : kCases) {
    SCOPED_TRACE(c.what);
    Write("systemctl",
          absl::StrCat("#!/bin/sh\ncd ", directory_, "\ncase \"$*\" in\n",
                       "'--system enable --now -- muster-agent.service') ", c.enable, ";;\n",
                       "'--system show --property=StatusText --value -- muster-agent.service') ",
                       c.show, ";;\n*) exit 9;;\nesac\n"));
    std::filesystem::permissions(places.systemctl, std::filesystem::perms(0755));
    const absl::StatusOr<std::string> up = StartPackagedUnit(c.limit_ns, places);
    EXPECT_EQ(up.status().code(), c.code) << up.status();
    const std::string told = up.ok() ? *up : std::string(up.status().message());
    EXPECT_NE(told.find(c.told), std::string::npos) << told;
  }
}

TEST_F(HostTest, AUnitsMainProcessSaysItsStatusAndNobodyElseDoes) {
  const std::string path = directory_ + "/notify";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  const int fd = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const auto heard = [&] {
    char text[256];
    const ssize_t got = ::recv(fd, text, sizeof text, 0);
    return got < 0 ? std::string("nothing") : std::string(text, static_cast<size_t>(got));
  };
  ::setenv("SYSTEMD_EXEC_PID", absl::StrCat(::getpid()).c_str(), 1);
  ::unsetenv("NOTIFY_SOCKET");
  SayInUnit("up");
  EXPECT_EQ(heard(), "nothing");
  ::setenv("NOTIFY_SOCKET", path.c_str(), 1);
  SayInUnit("up as lab/h1\nREADY=1");
  EXPECT_EQ(heard(), "STATUS=up as lab/h1 READY=1");
  ::setenv("SYSTEMD_EXEC_PID", absl::StrCat(::getpid() + 1).c_str(), 1);
  SayInUnit("up");
  EXPECT_EQ(heard(), "nothing");
  ::unsetenv("NOTIFY_SOCKET");
  ::unsetenv("SYSTEMD_EXEC_PID");
  ::close(fd);
}

TEST(Ports, RangesAndBusyPorts) {
  for (const char* text : {"", "20000", "80-90", "30000-20000", "20000-70000", "a-b"})
    EXPECT_FALSE(ParsePortRange(text).ok()) << text;
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  ASSERT_EQ(::listen(fd, 1), 0);
  ASSERT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int busy = ntohs(address.sin_port);
  EXPECT_FALSE(FindPort({busy, busy}, "seed", {}).ok());
  ::close(fd);
  EXPECT_TRUE(FindPort({busy, busy}, "seed", {}).ok());
  EXPECT_FALSE(FindPort({busy, busy}, "seed", {busy}).ok());
}

TEST_F(HostTest, PortsThatTheKernelGivesToClientsAreWarnedOf) {
  Write("ephemeral", "32768\t60999\n");
  const std::string kernels = directory_ + "/ephemeral";
  for (const PortRange& range :
       {PortRange{32768, 60999}, PortRange{20000, 32768}, PortRange{60999, 65535},
        PortRange{40000, 40000}, PortRange{1024, 65535}}) {
    EXPECT_NE(WhyPortsCollide(range, kernels), "") << range.first << "-" << range.last;
  }
  for (const PortRange& range : {PortRange(), PortRange{1024, 32767}, PortRange{61000, 65535}})
    EXPECT_EQ(WhyPortsCollide(range, kernels), "") << range.first << "-" << range.last;
  EXPECT_EQ(WhyPortsCollide({40000, 40000}, directory_ + "/nothing"), "");

  // An agent says so, of this machine.
  std::ifstream file("/proc/sys/net/ipv4/ip_local_port_range");
  PortRange here;
  ASSERT_TRUE(file >> here.first >> here.last);
  auto state = StateDirectory::Open(directory_ + "/s");
  const auto log_of = [&](const PortRange& range) {
    ::testing::internal::CaptureStderr();
    HostProcesses(state->get(), Host(), range);
    return ::testing::internal::GetCapturedStderr();
  };
  const std::string log = log_of({here.last, here.last});
  EXPECT_NE(log.find("badly chosen ports"), std::string::npos) << log;
  EXPECT_EQ(log_of({here.first - 2, here.first - 1}), "");
}

TEST_F(HostTest, WhatAnAttemptUsesOutlivesTheAgentAndIsReadAsItsShimLeftIt) {
  AttemptRecord record = Record();
  record.gpus.slots = {{5, 10}, {0, 0}, {7, 7}};
  record.gpus.memory_peak_bytes = 3;
  record.gpus.memory_bytes = 4;
  std::string attempt;
  {
    auto state = StateDirectory::Open(directory_ + "/s");
    ASSERT_TRUE((*state)->PersistPrepared(record, true).ok());
    ASSERT_TRUE((*state)->KeepGpus(record).ok());
    attempt = (*state)->AttemptDirectory(record.id);
  }
  auto state = StateDirectory::Open(directory_ + "/s");
  const auto records = (*state)->Load();
  ASSERT_TRUE(records.ok());
  EXPECT_EQ(records->at(0).gpus, record.gpus);
  const auto usage = [&] {
    ShimNews news;
    int64_t events_read = 0;
    EXPECT_TRUE(ReadShimFiles(attempt, {}, &events_read, &news).ok());
    return news.usage;
  };
  EXPECT_EQ(usage().ran_ns(), 0);
  shim::ReplaceFile(attempt, shim::kUsageFile, shim::FormatUsage({7, -1, 12, -1}), false);
  EXPECT_EQ(usage().cpu_us(), 12);
  EXPECT_FALSE(usage().has_memory_peak_bytes());
  shim::ReplaceFile(attempt, shim::kExitsFile, shim::FormatExits({}), false);
  EXPECT_EQ(usage().cpu_us(), 12) << "an older shim's end says nothing of it";
  shim::Exits exits;
  exits.used = {9, 100, 15, 2000};
  shim::ReplaceFile(attempt, shim::kExitsFile, shim::FormatExits(exits), false);
  EXPECT_EQ(usage().cpu_us(), 15) << "the last word";
  EXPECT_EQ(usage().memory_peak_bytes(), 100);
  EXPECT_EQ(usage().cpus_most_milli(), 2000);
}

TEST_F(HostTest, AShimThatOutlivesItsRecordIsReaped) {
  Write("muster-shim", "#!/bin/sh\nwhile [ -d \"$1\" ]; do :; done\n");
  std::filesystem::permissions(directory_ + "/muster-shim", std::filesystem::perms(0755));
  auto state = StateDirectory::Open(directory_ + "/s");
  LaunchHost host = Host();
  host.bin_directory = directory_;
  host.sockets = {directory_};
  HostProcesses processes(state->get(), host, PortRange());
  const AttemptRecord record = Record();
  ASSERT_TRUE((*state)->PersistPrepared(record, true).ok());
  ASSERT_TRUE(processes.SpawnShim(record).ok());
  const pid_t shim = processes.ShimPid(record.id);
  ASSERT_GT(shim, 0);
  ASSERT_TRUE((*state)->Forget(record.id).ok());
  EXPECT_TRUE(Eventually([&] {
    processes.ReapEnded();
    return ::kill(shim, 0) != 0;  // a zombie still has its number
  }));
}

// It may be of another release, or of a spec that can't be kept: each new one ends the same way.
TEST_F(HostTest, AShimThatStartsNothingIsTriedAFewTimesAndThenSaysWhy) {
  Write("muster-shim",
        "#!/bin/sh\necho \"muster-shim: $1: /dev/nvidia9: no such device\" >&2; exit 70\n");
  std::filesystem::permissions(directory_ + "/muster-shim", std::filesystem::perms(0755));
  auto state = StateDirectory::Open(directory_ + "/s");
  LaunchHost host = Host();
  host.bin_directory = directory_;
  host.sockets = {directory_};
  HostProcesses processes(state->get(), host, PortRange());
  const AttemptRecord record = Record();
  ASSERT_TRUE((*state)->PersistPrepared(record, true).ok());
  const auto try_often = [&](int most) {
    int tries = 0;
    absl::Status status = absl::OkStatus();
    while (tries < most && (status = processes.SpawnShim(record)).ok()) {
      ++tries;
      EXPECT_TRUE(Eventually([&] { return processes.ShimPid(record.id) == 0; }));
      processes.ReapEnded();
    }
    return std::pair(tries, std::string(status.message()));
  };
  const auto [tries, why] = try_often(20);
  EXPECT_EQ(tries, 5);
  EXPECT_EQ(why,
            "muster-shim ended with 70 before it started anything, 5 times; the last said: "
            "/dev/nvidia9: no such device");
  processes.RemoveCgroup(record.id);  // the attempt is gone
  EXPECT_EQ(try_often(1).first, 1);
  // Who is killed may have been in nobody's way: the next one is as good.
  Write("muster-shim", "#!/bin/sh\nkill -9 $$\n");
  EXPECT_EQ(try_often(20).first, 20);
}

TEST(Sockets, LieInMemoryOrWhereNobodyElseCanMakeThem) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(SocketDirectories(0, true, "", "/run/user/0"),
            (Names{"/dev/shm/.muster-0", "/run/muster-agent", "/tmp/muster-0",
                   "/run/user/0/muster-agent"}));
  EXPECT_EQ(SocketDirectories(0, false, "", ""), (Names{"/run/muster-agent", "/tmp/muster-0"}));
  EXPECT_EQ(SocketDirectories(999, true, "/run/unit", ""),
            (Names{"/run/unit", "/dev/shm/.muster-999", "/tmp/muster-999"}));
  EXPECT_EQ(SocketDirectories(1000, true, "", "/run/user/1000"),
            (Names{"/tmp/muster-1000", "/run/user/1000/muster-agent"}))
      << "what logging out removes comes last";
  EXPECT_EQ(SocketDirectories(1000, true, "relative", ""), (Names{"/tmp/muster-1000"}));
  EXPECT_EQ(SocketDirectories(1000, true, std::string(94, '/'), "").size(), 2u);
  EXPECT_EQ(SocketDirectories(1000, true, std::string(95, '/'), "").size(), 1u)
      << "a socket's path has at most 107 bytes";
}

// In a directory where anybody may make some, somebody else's may have the name.
TEST_F(HostTest, AnAttemptStartsThoughSomebodyHasTakenTheNameOfItsSocketsDirectory) {
  Write("muster-shim", "#!/bin/sh\ncat > \"$1\"/told\n");
  std::filesystem::permissions(directory_ + "/muster-shim", std::filesystem::perms(0755));
  Write("taken", "");
  std::filesystem::create_directory(directory_ + "/open");
  std::filesystem::permissions(directory_ + "/open", std::filesystem::perms(0755));
  auto state = StateDirectory::Open(directory_ + "/s");
  LaunchHost host = Host();
  host.bin_directory = directory_;
  host.sockets = {directory_ + "/taken", directory_ + "/open", directory_ + "/ours"};
  const AttemptRecord record = Record();
  ASSERT_TRUE((*state)->PersistPrepared(record, true).ok());
  {
    HostProcesses processes(state->get(), host, PortRange());
    ASSERT_TRUE(processes.SpawnShim(record).ok());
    const auto told = [&] {
      return ReadFile((*state)->AttemptDirectory(record.id) + "/told").value_or("");
    };
    EXPECT_TRUE(Eventually([&] { return told().find(directory_ + "/ours/") != std::string::npos; }))
        << told();
    EXPECT_TRUE(Eventually([&] {
      processes.ReapEnded();
      return processes.ShimPid(record.id) == 0;
    }));
  }
  EXPECT_FALSE(std::filesystem::exists(directory_ + "/ours"));
  host.sockets.pop_back();
  const absl::Status refused = HostProcesses(state->get(), host, PortRange()).SpawnShim(record);
  EXPECT_NE(refused.message().find(directory_ + "/taken: must be a directory of mode 0700"),
            absl::string_view::npos)
      << refused;
}

// Values of secrets are nowhere but in memory: an agent that was restarted asks for them again.
TEST_F(HostTest, SecretsAreToldToTheShimByWhoeverPreparedAndNobodyElse) {
  Write("muster-shim", "#!/bin/sh\ncat > \"$1\"/told\n");
  std::filesystem::permissions(directory_ + "/muster-shim", std::filesystem::perms(0755));
  auto state = StateDirectory::Open(directory_ + "/s");
  LaunchHost host = Host();
  host.bin_directory = directory_;
  host.sockets = {directory_};
  AttemptRecord record = Record();
  record.prepare.add_secrets("HF_TOKEN=HOME");
  record.prepare.set_job_directory(directory_ + "/job");
  record.prepare.set_attempt_directory(directory_ + "/job/main/attempt-1");
  record.prepare.set_checkpoint_directory(directory_ + "/job/main/attempt-1/checkpoints");
  record.prepare.mutable_task()->clear_workdir();
  record.prepare.mutable_task()->clear_trainer_json();
  record.prepare.mutable_task()->mutable_run()->set_shell("true");
  const auto fetch = [](const v1::AttemptKey&) {
    return std::vector<shim::EnvironmentVariable>{{"HOME", "open sesame"}};
  };
  HostProcesses processes(state->get(), host, PortRange());
  processes.FetchBy(nullptr, fetch);
  const absl::StatusOr<int32_t> prepared = processes.Prepare(record.prepare);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  ASSERT_TRUE((*state)->PersistPrepared(record, true).ok());
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_)) {
    if (!entry.is_regular_file()) continue;
    EXPECT_EQ(ReadFile(entry.path()).value().find("sesame"), std::string::npos) << entry.path();
  }
  StorageThreads threads;
  const StorageKey key{record.id, StorageUse::kFetch};
  HostProcesses restarted(state->get(), host, PortRange(), HostCgroups(), &threads);
  restarted.FetchBy(nullptr, fetch);
  ASSERT_TRUE(absl::IsUnavailable(restarted.SpawnShim(record)));
  EXPECT_GT(threads.next_ns(), RealClock()->BootNs() + 8 * kMinute) << "musterd may be restarted";
  ASSERT_TRUE(Eventually([&] { return threads.TakeAnswered() == std::vector<StorageKey>{key}; }));
  ASSERT_TRUE(restarted.SpawnShim(record).ok());
  const auto told = [&] {
    return ReadFile((*state)->AttemptDirectory(record.id) + "/told").value_or("");
  };
  EXPECT_TRUE(Eventually([&] { return told().find("\nend\n") != std::string::npos; }));
  EXPECT_NE(told().find("name=HOME value=open%20sesame"), std::string::npos) << told();
  EXPECT_EQ(told().find("name=HOME"), told().rfind("name=HOME")) << "over what it was";
  EXPECT_TRUE(Eventually([&] {
    restarted.ReapEnded();
    return restarted.ShimPid(record.id) == 0;
  }));
  processes.FetchBy(nullptr, nullptr);
  processes.RemoveCgroup(record.id);
  EXPECT_FALSE(processes.SpawnShim(record).ok()) << "it is gone: nothing is held any more";
}

// By work of its own: as long as it takes, and once, however often its Prepare comes.
TEST_F(HostTest, ADirectoryThatCameAlongIsFetchedAndUnpackedBesidePreparing) {
  auto state = StateDirectory::Open(directory_ + "/s");
  StorageThreads threads;
  HostProcesses processes(state->get(), Host(), PortRange(), HostCgroups(), &threads);
  v1::Prepare prepare = Record().prepare;
  *prepare.mutable_key() = KeyOf(Record().id);
  prepare.set_job_directory(directory_ + "/job");
  prepare.set_attempt_directory(directory_ + "/job/main/attempt-1");
  prepare.set_checkpoint_directory(directory_ + "/job/main/attempt-1/checkpoints");
  prepare.mutable_task()->clear_trainer_json();
  prepare.mutable_task()->mutable_run()->set_shell("true");
  prepare.mutable_task()->set_workdir(".");
  prepare.mutable_task()->set_workdir_digest(std::string(64, 'd'));
  const StorageKey key{Record().id, StorageUse::kFetch};
  int asked = 0;
  absl::Status late = absl::AbortedError("nobody answers");
  processes.FetchBy(
      [&](const v1::AttemptKey&, const std::string&) -> absl::StatusOr<int> {
        ++asked;
        if (!late.ok()) return late;
        const int archive = ::memfd_create("archive", MFD_CLOEXEC);
        const std::string bytes = std::string(kPackMagic) + PackEntry(kPackFile, "a", "along") +
                                  PackEntry(kPackEnd, "", "");
        EXPECT_EQ(::write(archive, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
        return archive;
      },
      nullptr);
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(absl::IsUnavailable(processes.Prepare(prepare).status()));
    EXPECT_GT(threads.next_ns(), RealClock()->BootNs() + 8 * kMinute);
    EXPECT_TRUE(absl::IsUnavailable(processes.Prepare(prepare).status())) << "under way";
    ASSERT_TRUE(Eventually([&] { return threads.TakeAnswered() == std::vector<StorageKey>{key}; }));
    const absl::Status status = processes.Prepare(prepare).status();
    EXPECT_EQ(status, late);
    EXPECT_EQ(asked, i + 1);
    late = absl::OkStatus();
  }
  EXPECT_EQ(ReadFile(directory_ + "/job/workdir-dddddddddddd/a").value(), "along");
  EXPECT_TRUE(processes.Prepare(prepare).ok());
  EXPECT_EQ(asked, 2) << "it is there";
}

// musterd says what runs as whom; more than it said in Prepare it can't say later.
TEST_F(HostTest, SecretsAreThoseThatTheJobNamesAndNeverReserved) {
  auto state = StateDirectory::Open(directory_ + "/s");
  HostProcesses processes(state->get(), Host(), PortRange());
  v1::Prepare prepare = Record().prepare;
  prepare.set_job_directory(directory_ + "/job");
  prepare.set_attempt_directory(directory_ + "/job/main/attempt-1");
  prepare.set_checkpoint_directory(directory_ + "/job/main/attempt-1/checkpoints");
  prepare.mutable_task()->clear_workdir();
  prepare.mutable_task()->clear_trainer_json();
  prepare.mutable_task()->mutable_run()->set_shell("true");
  prepare.add_secrets("A");
  prepare.add_secrets("A=B");
  using Variables = std::vector<shim::EnvironmentVariable>;
  const std::string nul("a\0b", 3);
  const struct {
    Variables sent;
    absl::StatusCode code;
  } cases[] = {
      {{{"B", "x"}, {"A", "x"}}, absl::StatusCode::kOk},
      {{{"A", "x"}}, absl::StatusCode::kAborted},
      {{{"A", "x"}, {"B", "x"}, {"LD_PRELOAD", "x"}}, absl::StatusCode::kAborted},
      {{{"A", "x"}, {"RANK", "7"}}, absl::StatusCode::kAborted},
      {{}, absl::StatusCode::kAborted},
      {{{"A", nul}, {"B", "x"}}, absl::StatusCode::kInvalidArgument},
  };
  for (const auto& test : cases) {
    processes.FetchBy(nullptr, [&](const v1::AttemptKey&) { return test.sent; });
    const absl::Status status = processes.Prepare(prepare).status();
    EXPECT_EQ(status.code(), test.code) << status;
  }
  for (const char* reserved : {"A=RANK", "A=MUSTER_JOB", "A="}) {
    v1::Prepare other = prepare;
    other.add_secrets(reserved);
    EXPECT_TRUE(absl::IsInvalidArgument(processes.Prepare(other).status())) << reserved;
  }
}

// A shim's spec of one worker, for the real one.
shim::Spec SpecOf(const std::string& directory, std::vector<std::string> argv) {
  shim::Spec spec;
  spec.job_uid = std::string(32, 'a');
  spec.task = "main";
  spec.attempt = 1;
  spec.boot_id = ReadFile("/proc/sys/kernel/random/boot_id").value();
  spec.boot_id.pop_back();
  spec.token = "token-" + directory;
  spec.as_itself = true;
  spec.argv = std::move(argv);
  spec.env = {{"PATH", "/usr/bin:/bin"}};
  spec.workers.push_back({0, {{0, {}}}});
  return spec;
}

TEST_F(HostTest, AProgramInheritsNothingOfTheAgent) {
  const std::string directory = directory_ + "/root/attempts/a", out = directory_ + "/out";
  std::filesystem::create_directories(directory);
  const shim::Spec spec = SpecOf(
      directory_,
      {"bash", "-c",
       absl::StrCat("exec > ", out,
                    "; for fd in /proc/$$/fd/*; do [ -e $fd ] && echo ${fd##*/}; done; umask; env "
                    "| grep OF_THE_AGENT; grep SigBlk /proc/self/status")});
  ASSERT_EQ(shim::ReplaceFile(directory, shim::kPreparedFile, "", false), 0);
  ASSERT_EQ(shim::ReplaceFile(directory_, "told", shim::FormatSpec(spec), false), 0);
  const int leaked = ::open("/dev/null", O_RDONLY);  // without close-on-exec
  ::setenv("OF_THE_AGENT", "1", 1);
  const int told = ::open((directory_ + "/told").c_str(), O_RDONLY | O_CLOEXEC);
  const absl::StatusOr<pid_t> pid = StartShim(std::string(MUSTER_TEST_BIN) + "/muster-shim",
                                              directory, told, directory_ + "/shim.log");
  ::close(told);
  ::close(leaked);
  ::unsetenv("OF_THE_AGENT");
  ASSERT_TRUE(pid.ok()) << pid.status();
  int status = -1;
  ASSERT_EQ(::waitpid(*pid, &status, 0), *pid) << "not our child";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(ReadFile(out).value_or("nothing was written"),
            "0\n1\n2\n0022\nSigBlk:\t0000000000000000\n");
}

TEST_F(HostTest, PublishingTwiceIsPublishingOnce) {
  auto state = StateDirectory::Open(directory_ + "/s");
  AttemptRecord record = Record();
  record.prepare.set_job_directory(directory_ + "/job");
  const std::string staged = directory_ + "/job/a/export-staging",
                    target = directory_ + "/job/out/model";
  const auto publish = [&](const std::string& text) {
    std::filesystem::create_directories(staged + "/adapter");
    std::ofstream(staged + "/w") << text;
    return (*state)->Publish(record, staged, "out/model");
  };
  EXPECT_FALSE((*state)->Publish(record, staged, "out/model").ok());
  std::filesystem::create_directories(target);  // an empty one is in nobody's way
  ASSERT_TRUE(publish("old").ok());
  struct stat whole {
  }, mark{};
  ASSERT_EQ(::stat(target.c_str(), &whole) + ::stat((target + "/.muster-export").c_str(), &mark),
            0);
  EXPECT_EQ(mark.st_mode & 0777, whole.st_mode & 0666) << "others copy the export whole";
  ASSERT_TRUE(publish("new").ok());
  ASSERT_TRUE((*state)->Publish(record, staged, "out/model").ok());
  EXPECT_EQ(ReadFile(target + "/w").value(), "new");
  EXPECT_FALSE(std::filesystem::exists(staged));
  EXPECT_FALSE(std::filesystem::exists(staged + ".previous"));
  EXPECT_FALSE(std::filesystem::exists(target + ".previous"));
}

}  // namespace
}  // namespace muster::agent
