// The real muster-shim as root, with programs that run as their owners. Skipped without root.
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "agent/shim/act.h"
#include "agent/shim/durable.h"
#include "agent/shim/format.h"
#include "agent/shim/identity.h"
#include "agent/shim/log_writer.h"
#include "common/base/testing/eventually.h"

namespace muster::shim {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kAnn = 61001, kBob = 61002, kTeam = 61100, kOther = 61101;

std::string ReadText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// In a fork: muster-shim --act, which reads the request in this file and writes its result there.
[[noreturn]] void BecomeAct(const std::string& request, int result) {
  const std::string program = std::string(MUSTER_TEST_BIN) + "/muster-shim";
  const int told = ::open(request.c_str(), O_RDONLY);
  if (::dup2(told, 0) == 0 && ::dup2(result, 1) == 1)
    ::execl(program.c_str(), "muster-shim", "--act", nullptr);
  ::_exit(1);
}

// A root of its own outside of what each job has for itself: state/attempts/a, and ann/ and bob/,
// which are theirs.
class OwnerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "wants root";
    char name[] = "/var/lib/muster-owner-test-XXXXXX";
    root_ = ::mkdtemp(name);
    ::chmod(root_.c_str(), 0755);
    attempt_ = root_ + "/state/attempts/a";
    fs::create_directories(attempt_);
    ::chmod((root_ + "/state").c_str(), 0700);
    fs::create_directory(root_ + "/sockets");
    for (const auto& [directory, uid] : {std::pair("/ann", kAnn), std::pair("/bob", kBob)}) {
      fs::create_directory(root_ + directory);
      ::chmod((root_ + directory).c_str(), 0700);
      EXPECT_EQ(::chown((root_ + directory).c_str(), uid, uid), 0);
    }
    std::string boot;
    ReadSmallFile("/proc/sys/kernel/random/boot_id", &boot);
    while (!boot.empty() && boot.back() == '\n') boot.pop_back();
    spec_.job_uid = std::string(32, 'a');
    spec_.task = "main";
    spec_.attempt = 1;
    spec_.boot_id = boot;
    spec_.token = "token-" + root_;
    spec_.workdir = root_ + "/ann";
    spec_.grace_ns = 1'000'000'000;
    spec_.progress_socket = root_ + "/sockets/p";
    spec_.user = User{kAnn, kAnn, {kTeam}, kFirstPerson};
    spec_.env = {
        {"PATH", "/usr/local/bin:/usr/bin:/bin"}, {"S", spec_.progress_socket}, {"D", root_}};
    spec_.workers.push_back({0, {{0, {{"RANK", "0"}}}}});
  }
  void TearDown() override {
    if (shim_ > 0) {
      ::kill(shim_, SIGKILL);
      ::waitpid(shim_, nullptr, 0);
    }
    if (!root_.empty()) fs::remove_all(root_);
  }

  pid_t Spawn(std::vector<std::string> arguments, const std::string& input,
              const std::string& output = "/dev/null") {
    EXPECT_EQ(ReplaceFile(root_, "told", input), 0);
    const std::string program = std::string(MUSTER_TEST_BIN) + "/muster-shim";
    std::vector<char*> words = {const_cast<char*>("muster-shim")};
    for (std::string& argument : arguments) words.push_back(argument.data());
    words.push_back(nullptr);
    char* const environment[] = {nullptr};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 0, (root_ + "/told").c_str(), O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, 1, output.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                       0600);
    ::posix_spawn_file_actions_addopen(&actions, 2, (root_ + "/shim.log").c_str(),
                                       O_WRONLY | O_CREAT | O_APPEND, 0600);
    pid_t pid = -1;
    EXPECT_EQ(::posix_spawn(&pid, program.c_str(), &actions, nullptr, words.data(), environment),
              0);
    ::posix_spawn_file_actions_destroy(&actions);
    return pid;
  }
  static int Wait(pid_t* pid) {
    int status = 0;
    ::waitpid(*pid, &status, 0);
    *pid = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  void Start(const std::string& script) {
    spec_.argv = {"bash", "-c", script};
    EXPECT_EQ(ReplaceFile(attempt_, kPreparedFile, ""), 0);
    shim_ = Spawn({attempt_}, FormatSpec(spec_));
  }
  // To its end; what it printed.
  std::string Run(const std::string& script) {
    Start(script);
    EXPECT_EQ(Wait(&shim_), kShimDone_) << ReadText(root_ + "/shim.log");
    return Log();
  }
  std::string Log() {
    std::string all;
    for (const int64_t offset : LogFileOffsets(attempt_ + "/logs", 0))
      all += ReadText(attempt_ + "/logs/" + LogFileName(0, offset));
    return all;
  }
  std::string ShimLog() { return ReadText(root_ + "/shim.log"); }
  ActResult Act(const ActRequest& request) {
    const std::string output = root_ + "/result";
    pid_t pid = Spawn({"--act"}, FormatActRequest(request), output);
    EXPECT_EQ(Wait(&pid), 0);
    ActResult result;
    std::string error;
    EXPECT_TRUE(ParseActResult(ReadText(output), &result, &error)) << error;
    return result;
  }
  ActRequest Request() {
    ActRequest request;
    request.user = spec_.user;
    request.job_directory = root_ + "/ann/jobs/1";
    return request;
  }
  static uint32_t OwnerOf(const std::string& path) {
    struct stat info {};
    return ::lstat(path.c_str(), &info) == 0 ? info.st_uid : ~0U;
  }

  static constexpr int kShimDone_ = 0;
  std::string root_, attempt_;
  Spec spec_;
  pid_t shim_ = -1;
};

TEST_F(OwnerTest, ProgramsHaveTheOwnersIdsAndNothingOfRoot) {
  const std::string status = Run("cat /proc/self/status");
  const auto says = [&](const std::string& line) {
    EXPECT_NE(status.find(line), std::string::npos) << line << " in\n" << status;
  };
  says("Uid:\t61001\t61001\t61001\t61001\n");
  says("Gid:\t61001\t61001\t61001\t61001\n");
  says("Groups:\t61100 \n");
  says("NoNewPrivs:\t1\n");
  for (const char* set : {"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"})
    says(std::string(set) + ":\t0000000000000000\n");
}

TEST_F(OwnerTest, TheGroupsOfTheAgentAreNotTheJobs) {
  const gid_t extra[] = {kOther};
  ASSERT_EQ(::setgroups(1, extra), 0);
  const std::string ids = Run("id -G");
  ASSERT_EQ(::setgroups(0, nullptr), 0);
  EXPECT_EQ(ids, "61001 61100\n");
}

TEST_F(OwnerTest, TheUmaskIsTheSubmitters) {
  spec_.umask = 027;
  EXPECT_EQ(Run("umask"), "0027\n");
}

TEST_F(OwnerTest, TheWorkdirIsEnteredAsTheOwner) {
  spec_.workdir = root_ + "/bob";
  Start("pwd");
  EXPECT_EQ(Wait(&shim_), 0);
  EXPECT_EQ(Log().find("/bob\n"), std::string::npos);
  EXPECT_NE(ReadText(attempt_ + "/" + kExitsFile).find("Permission"), std::string::npos);
}

TEST_F(OwnerTest, TheProgramIsFoundWithTheOwnersRights) {
  fs::copy_file("/bin/true", root_ + "/bob/true");
  spec_.argv = {root_ + "/bob/true"};
  EXPECT_EQ(ReplaceFile(attempt_, kPreparedFile, ""), 0);
  shim_ = Spawn({attempt_}, FormatSpec(spec_));
  EXPECT_EQ(Wait(&shim_), 0);
  EXPECT_NE(ReadText(attempt_ + "/" + kExitsFile).find("Permission"), std::string::npos);
}

TEST_F(OwnerTest, WhoMayNotRunJobsIsRefused) {
  const struct {
    User user;
    const char* says;
  } cases[] = {{{0, 0, {}, kFirstPerson}, "uid 0 (root) runs no jobs"},
               {{0, 0, {}, 0}, "uid 0 (root) runs no jobs"},
               {{999, 999, {}, kFirstPerson}, "uid 999 is below 1000"},
               {{kAnn, 0, {}, kFirstPerson}, "group 0"},
               {{kAnn, kAnn, {kTeam, 0}, kFirstPerson}, "group 0"},
               {{65534, kAnn, {}, kFirstPerson}, "nobody's"}};
  for (const auto& c : cases) {
    EXPECT_NE(WhyNotRunAs(c.user).find(c.says), std::string::npos) << WhyNotRunAs(c.user);
    spec_.user = c.user;
    Start("touch $D/ran");
    EXPECT_EQ(Wait(&shim_), 70);
    EXPECT_NE(ShimLog().find(c.says), std::string::npos) << ShimLog();
    ActRequest request = Request();
    EXPECT_NE(Act(request).text.find(c.says), std::string::npos);
    EXPECT_FALSE(fs::exists(request.job_directory));
  }
  EXPECT_FALSE(fs::exists(root_ + "/ran"));
  EXPECT_EQ(WhyNotRunAs(User{500, 500, {}, 500}), "");
}

TEST_F(OwnerTest, RootRunsNothingThatNamesNobody) {
  spec_.user.reset();
  Start("touch $D/ran");
  EXPECT_EQ(Wait(&shim_), 70);
  EXPECT_NE(ShimLog().find("names no user"), std::string::npos) << ShimLog();
  EXPECT_FALSE(fs::exists(root_ + "/ran"));
  ActRequest request = Request();
  request.user.reset();
  EXPECT_NE(Act(request).text.find("names no user"), std::string::npos);
}

TEST_F(OwnerTest, WithoutAPidNamespaceNothingOfAUsersRuns) {
  spec_.pid_namespace = false;
  Start("touch $D/ran");
  EXPECT_EQ(Wait(&shim_), 70);
  EXPECT_NE(ShimLog().find("want PID namespaces"), std::string::npos) << ShimLog();
}

TEST_F(OwnerTest, DevHasWhatWasGrantedOnly) {
  spec_.devices = {"/dev/urandom"};  // what all have may be granted, too
  const std::string seen =
      Run("ls /dev; echo x > /dev/null && head -c 1 /dev/zero | wc -c; "
          "mknod /dev/shm/sda b 8 0 2>&1 | grep -o 'not permitted'; "
          "python3 -c 'import os, pty; m, s = pty.openpty(); print(os.isatty(s))'");
  EXPECT_EQ(seen,
            "fd\nfull\nnull\nptmx\npts\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero\n"
            "1\nnot permitted\nTrue\n");
}

TEST_F(OwnerTest, ADeviceThatIsNotThereIsNoStart) {
  spec_.devices = {"/dev/nvidia97"};
  Start("true");
  EXPECT_EQ(Wait(&shim_), 70);
  EXPECT_NE(ShimLog().find("/dev/nvidia97"), std::string::npos);
}

TEST_F(OwnerTest, TemporaryDirectoriesAreTheJobsOwn) {
  const std::string name = fs::path(root_).filename();
  std::ofstream("/tmp/" + name) << "the host's";
  const std::string seen = Run("for d in /tmp /var/tmp /dev/shm; do ls -A $d | wc -l; touch $d/" +
                               name + ".job && stat -c %a $d; done");
  EXPECT_EQ(seen, "0\n1777\n0\n1777\n0\n1777\n");
  for (const char* directory : {"/tmp/", "/var/tmp/", "/dev/shm/"})
    EXPECT_FALSE(fs::exists(directory + name + ".job"));
  fs::remove("/tmp/" + name);
}

TEST_F(OwnerTest, TheStateDirectoryIsEmptyForPrograms) {
  EXPECT_EQ(Run("ls -A $D/state | wc -l; stat -c %u:%a $D/state"), "0\n0:755\n");
}

TEST_F(OwnerTest, ProgramsSeeTheirOwnProcessesOnly) {
  const std::string seen =
      Run("ls -d /proc/[0-9]* | wc -l; cat /proc/1/environ 2>&1 | grep -o 'denied'; "
          "kill -0 1 2>&1 | grep -o 'not permitted'; ls /proc/1/fd 2>&1 | grep -o denied");
  EXPECT_EQ(seen.substr(seen.find('\n') + 1), "denied\nnot permitted\ndenied\n");
  EXPECT_LE(std::stoi(seen), 5);
}

TEST_F(OwnerTest, ProgramsInheritThreeDescriptors) {
  const int secret = ::open("/etc/shadow", O_RDONLY);  // as a later change might forget O_CLOEXEC
  const std::string seen = Run("ls /proc/self/fd | tr '\\n' ' '");
  ::close(secret);
  EXPECT_EQ(seen, "0 1 2 3 \n");  // 3 is the listing itself
}

TEST_F(OwnerTest, ProgramsMayOpenTheirOutputByItsName) {
  EXPECT_EQ(Run("echo one > /dev/stdout; echo two > /proc/self/fd/1"), "one\ntwo\n");
}

TEST_F(OwnerTest, ProgramsAreToDieWithTheirParent) {
  EXPECT_EQ(Run("exec python3 -c 'import ctypes; n = ctypes.c_int(); "
                "ctypes.CDLL(None).prctl(2, ctypes.byref(n)); print(n.value)'"),
            "9\n");
}

TEST_F(OwnerTest, ProtectionFromTheKernelsKillingIsNotPassedOn) {
  std::ofstream("/proc/self/oom_score_adj") << "-500";
  const std::string seen = Run("cat /proc/self/oom_score_adj; ulimit -c; ulimit -r; nice");
  std::ofstream("/proc/self/oom_score_adj") << "0";
  EXPECT_EQ(seen, "0\n0\n0\n0\n");
}

TEST_F(OwnerTest, ALimitOfProcessesHoldsForTheJob) {
  spec_.most_processes = 20;
  EXPECT_EQ(Run("ulimit -u"), "20\n");
}

TEST_F(OwnerTest, DiesWithTheShim) {
  Start("touch $D/ann/runs; setsid sleep 1000 & sleep 1000");
  const auto sleeps = [&] {
    size_t count = 0;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      std::string status;
      if (ReadSmallFile(entry.path().string() + "/status", &status) == 0 &&
          status.find("\nUid:\t61001\t") != std::string::npos)
        ++count;
    }
    return count;
  };
  ASSERT_TRUE(Eventually([&] { return fs::exists(root_ + "/ann/runs") && sleeps() >= 2; }));
  ASSERT_GT(shim_, 0);
  ::kill(shim_, SIGKILL);
  Wait(&shim_);
  EXPECT_TRUE(Eventually([&] { return sleeps() == 0; }));
}

TEST_F(OwnerTest, AStopReachesTheJobsGroup) {
  Start("trap 'echo stopped; exit 3' TERM; touch $D/ann/runs; while :; do sleep 0.05; done");
  ASSERT_TRUE(Eventually([&] { return fs::exists(root_ + "/ann/runs"); }));
  EXPECT_EQ(ReplaceFile(attempt_, kStopFile, FormatStop({7, 5'000'000'000})), 0);
  ASSERT_GT(shim_, 0);
  ::kill(shim_, SIGUSR1);
  EXPECT_EQ(Wait(&shim_), 0);
  EXPECT_NE(Log().find("stopped\n"), std::string::npos) << Log();
}

TEST_F(OwnerTest, TheProgressSocketIsTheOwnersAlone) {
  const std::string send =
      "import os, socket\n"
      "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
      "s.sendto(os.environ[\"LINE\"].encode(), os.environ[\"S\"])";
  spec_.env.push_back({"LINE", R"({"step":7})"});
  const std::string wait =
      "while [ ! -e $D/ann/on ]; do sleep 0.02; done; python3 -c '" + send +
      "'; ls $D/sockets 2>&1 | grep -o denied; touch $D/ann/sent; while [ ! -e $D/ann/end ]; do "
      "sleep 0.02; done";
  Start(wait);
  struct stat info {};
  ASSERT_TRUE(Eventually(
      [&] { return ::lstat(spec_.progress_socket.c_str(), &info) == 0 && info.st_uid == kAnn; }));
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(::stat((root_ + "/sockets").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0711u);
  std::ofstream(root_ + "/ann/on") << "";
  ASSERT_TRUE(Eventually([&] { return fs::exists(root_ + "/ann/sent"); }));
  ASSERT_TRUE(Eventually([&] { return fs::exists(attempt_ + "/" + kProgressFile); }));
  // Another user, and root, which may write to it and is not the owner.
  for (const uint32_t uid : {kBob, 0U}) {
    const pid_t other = ::fork();
    if (other == 0) {
      if (uid != 0 && (::setgid(uid) != 0 || ::setuid(uid) != 0)) ::_exit(2);
      const int fd = ::socket(AF_UNIX, SOCK_DGRAM, 0);
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      spec_.progress_socket.copy(address.sun_path, sizeof address.sun_path - 1);
      const std::string line = R"({"step":1000000})";
      const ssize_t sent = ::sendto(fd, line.data(), line.size(), 0,
                                    reinterpret_cast<sockaddr*>(&address), sizeof address);
      ::_exit(sent < 0 ? 1 : 0);
    }
    int status = 0;
    ::waitpid(other, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), uid == 0 ? 0 : 1);
  }
  std::ofstream(root_ + "/ann/end") << "";
  EXPECT_EQ(Wait(&shim_), 0);
  const std::string progress = ReadText(attempt_ + "/" + kProgressFile);
  EXPECT_NE(progress.find("{\"step\":7}"), std::string::npos) << progress;
  EXPECT_EQ(progress.find("1000000"), std::string::npos) << progress;
  EXPECT_EQ(Log(), "denied\n");
}

// ---- muster-shim --act ----

TEST_F(OwnerTest, DirectoriesAreMadeByTheirOwner) {
  ActRequest request = Request();
  request.umask = 027;
  request.directories = {request.job_directory + "/main/attempt-1",
                         request.job_directory + "/main/attempt-1/checkpoints"};
  request.trainer_directory = request.directories[0];
  request.trainer_json = "{\"a\": 1}\n";
  const ActResult result = Act(request);
  EXPECT_TRUE(result.done()) << result.text;
  struct stat info {};
  ASSERT_EQ(::lstat(request.directories[1].c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, kAnn);
  EXPECT_EQ(info.st_gid, kAnn);
  EXPECT_EQ(info.st_mode & 0777, 0750u);
  EXPECT_EQ(ReadText(request.trainer_directory + "/trainer.json"), "{\"a\": 1}\n");
  EXPECT_EQ(OwnerOf(request.trainer_directory + "/trainer.json"), kAnn);
  EXPECT_TRUE(Act(request).done());  // what is there is there
}

// Else it would go on beside what the next agent begins, on the same names.
TEST_F(OwnerTest, WhatIsDoneForAnAgentEndsWithIt) {
  // A file system whose server says nothing: whoever asks it for anything waits.
  struct DeadMount {
    explicit DeadMount(std::string at)
        : path(std::move(at)), server(::open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
      fs::create_directory(path);
      const std::string options =
          "fd=" + std::to_string(server) + ",rootmode=40000,user_id=0,group_id=0,allow_other";
      there = server >= 0 && ::unshare(CLONE_NEWNS) == 0 &&
              ::mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
              ::mount("dead", path.c_str(), "fuse", MS_NODEV | MS_NOSUID, options.c_str()) == 0;
    }
    ~DeadMount() {
      ::close(server);
      if (there) ::umount2(path.c_str(), MNT_DETACH);
    }
    const std::string path;
    const int server;
    bool there = false;
  };
  const DeadMount dead(root_ + "/ann/dead");
  if (!dead.there) GTEST_SKIP() << "wants FUSE";
  ActRequest request = Request();
  request.job_directory = dead.path + "/1";
  ASSERT_EQ(ReplaceFile(root_, "told", FormatActRequest(request)), 0);
  ::prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  int pipe[2];
  ASSERT_EQ(::pipe2(pipe, O_CLOEXEC), 0);
  const pid_t agent = ::fork();
  if (agent == 0) {
    int result[2];
    if (::pipe2(result, O_CLOEXEC) != 0) ::_exit(1);
    const pid_t act = ::fork();
    if (act == 0) BecomeAct(root_ + "/told", result[1]);
    ::close(result[1]);
    if (::write(pipe[1], &act, sizeof act) != sizeof act) ::_exit(1);
    ::pause();
    ::_exit(0);
  }
  pid_t act = -1;
  ASSERT_EQ(::read(pipe[0], &act, sizeof act), static_cast<ssize_t>(sizeof act));
  const std::string status = "/proc/" + std::to_string(act) + "/status";
  EXPECT_TRUE(
      Eventually([&] { return ReadText(status).find("\nUid:\t61001\t") != std::string::npos; }));
  ::kill(agent, SIGKILL);
  ::waitpid(agent, nullptr, 0);
  EXPECT_TRUE(Eventually([&] { return ::waitpid(act, nullptr, WNOHANG) == act; }));
  for (const int fd : pipe) ::close(fd);
  ::prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0);
}

TEST_F(OwnerTest, NothingIsDoneForAnAgentThatIsGone) {
  const ActRequest request = Request();
  ASSERT_EQ(ReplaceFile(root_, "told", FormatActRequest(request)), 0);
  int result[2];
  ASSERT_EQ(::pipe2(result, O_CLOEXEC), 0);
  ::close(result[0]);  // nobody reads it
  const pid_t act = ::fork();
  if (act == 0) BecomeAct(root_ + "/told", result[1]);
  ::close(result[1]);
  ::waitpid(act, nullptr, 0);
  EXPECT_FALSE(fs::exists(request.job_directory));
}

TEST_F(OwnerTest, NothingIsMadeWhereTheOwnerMayNotWrite) {
  ActRequest request = Request();
  request.job_directory = root_ + "/bob/jobs/1";
  const ActResult result = Act(request);
  EXPECT_EQ(result.kind, ActResult::Kind::kJobs) << "no host is to blame";
  EXPECT_NE(result.text.find("Permission denied"), std::string::npos) << result.text;
  EXPECT_FALSE(fs::exists(root_ + "/bob/jobs"));
}

TEST_F(OwnerTest, ALinkThatTheJobPlantedLeadsNoDirectoryElsewhere) {
  ActRequest request = Request();
  ASSERT_TRUE(Act(request).done());
  fs::create_directory(root_ + "/ann/elsewhere");
  ASSERT_EQ(::chown((root_ + "/ann/elsewhere").c_str(), kAnn, kAnn), 0);
  fs::create_symlink(root_ + "/ann/elsewhere", request.job_directory + "/main");
  request.directories = {request.job_directory + "/main/attempt-1"};
  EXPECT_EQ(Act(request).kind, ActResult::Kind::kJobs);
  EXPECT_TRUE(fs::is_empty(root_ + "/ann/elsewhere"));
}

TEST_F(OwnerTest, ALinkAtTrainerJsonIsReplacedNotFollowed) {
  ActRequest request = Request();
  request.directories = {request.job_directory + "/main"};
  ASSERT_TRUE(Act(request).done());
  std::ofstream(root_ + "/ann/mine") << "mine";
  ASSERT_EQ(::chown((root_ + "/ann/mine").c_str(), kAnn, kAnn), 0);
  fs::create_symlink(root_ + "/ann/mine", request.directories[0] + "/trainer.json");
  request.trainer_directory = request.directories[0];
  request.trainer_json = "{}";
  EXPECT_TRUE(Act(request).done());
  EXPECT_EQ(ReadText(root_ + "/ann/mine"), "mine");
}

TEST_F(OwnerTest, TheWorkdirIsLookedAtAsTheOwner) {
  ActRequest request = Request();
  request.workdir = root_ + "/bob";
  EXPECT_EQ(Act(request).kind, ActResult::Kind::kJobs);
  request.workdir = root_ + "/bob/not-even-there";
  EXPECT_NE(Act(request).text.find("Permission denied"), std::string::npos);
  request.workdir = root_ + "/ann";
  EXPECT_TRUE(Act(request).done());
}

TEST_F(OwnerTest, ExportsGoWhereTheirOwnerMayPutThem) {
  ActRequest request = Request();
  ASSERT_TRUE(Act(request).done());
  request.staged = request.job_directory + "/staging";
  const auto stage = [&] {
    fs::create_directories(request.staged);
    std::ofstream(request.staged + "/w") << "weights";
    for (const char* name : {"", "/w"})
      ASSERT_EQ(::chown((request.staged + name).c_str(), kAnn, kAnn), 0);
  };
  for (const std::string& target : {root_ + "/cron.d", root_ + "/bob/model",
                                    std::string("../../model"), root_ + "/state/model"}) {
    stage();
    request.target = target;
    EXPECT_FALSE(Act(request).done()) << target;
    EXPECT_TRUE(fs::exists(request.staged + "/w")) << target;
  }
  EXPECT_FALSE(fs::exists(root_ + "/cron.d"));
  EXPECT_FALSE(fs::exists(root_ + "/ann/model"));
  for (const std::string& target : {std::string("model"), root_ + "/ann/models/one"}) {
    stage();
    request.target = target;
    const ActResult result = Act(request);
    EXPECT_TRUE(result.done()) << result.text;
    const std::string at = target[0] == '/' ? target : request.job_directory + "/" + target;
    EXPECT_EQ(ReadText(at + "/w"), "weights");
    EXPECT_EQ(OwnerOf(at), kAnn);
  }
}

TEST_F(OwnerTest, WhatIsStagedIsTakenWithTheOwnersRights) {
  ActRequest request = Request();
  ASSERT_TRUE(Act(request).done());
  fs::create_directory(root_ + "/bob/secret");
  request.staged = root_ + "/bob/secret";
  request.target = "mine";
  EXPECT_FALSE(Act(request).done());
  request.staged = root_ + "/state/attempts";
  EXPECT_FALSE(Act(request).done());
  EXPECT_TRUE(fs::exists(root_ + "/state/attempts/a"));
  EXPECT_TRUE(fs::exists(root_ + "/bob/secret"));
}

// All that it does, and all that it may, it does as the owner: the paths are followed with no more.
TEST_F(OwnerTest, AnImageIsEnteredAsTheOwner) {
  const std::string image = root_ + "/image";
  fs::create_directories(image + "/bin");
  const std::string copied = "cp -L /bin/bash " + image +
                             "/bin/ && cp -L --parents $(ldd /bin/bash | grep -o '/[^ ]*') " +
                             image;
  ASSERT_EQ(::system(copied.c_str()), 0);
  spec_.image.path = image;
  spec_.image.shown = {root_ + "/ann", root_ + "/bob"};
  EXPECT_EQ(Run("while read a b; do case $a in Uid:|Gid:|Groups:|CapEff:|NoNewPrivs:) echo $a $b;; "
                "esac; done < /proc/self/status; echo x > mine; "
                "{ echo y > $D/bob/x; } 2> /dev/null || echo not bob\\'s; "
                "[[ -e $D/state ]] || echo no state"),
            "Uid: 61001 61001 61001 61001\nGid: 61001 61001 61001 61001\nGroups: 65534\n"
            "CapEff: 0000000000000000\nNoNewPrivs: 1\nnot bob's\nno state\n");
  struct stat info {};
  ASSERT_EQ(::stat((root_ + "/ann/mine").c_str(), &info), 0);
  EXPECT_EQ(info.st_uid, kAnn);
}

TEST_F(OwnerTest, AnImageThatIsNotTheirsToReadIsNotEntered) {
  fs::create_directory(root_ + "/bob/image");
  spec_.image.path = root_ + "/bob/image";
  Run("true");
  Exits exits;
  std::string error;
  ASSERT_TRUE(ParseExits(ReadText(attempt_ + "/" + kExitsFile), &exits, &error)) << error;
  EXPECT_EQ(exits.exits.at(0).exit_code, 127);
  EXPECT_EQ(exits.exits.at(0).detail, "program: image " + spec_.image.path + ": Permission denied");
}

// An overlay takes no layer that compares names in its own way.
TEST_F(OwnerTest, AnImageWhoseFileSystemCanNotBeEnteredBlamesNobody) {
  spec_.image.path = "/proc/sys";
  Run("true");
  Exits exits;
  std::string error;
  ASSERT_TRUE(ParseExits(ReadText(attempt_ + "/" + kExitsFile), &exits, &error)) << error;
  EXPECT_EQ(exits.exits.at(0).exit_code, 127);
  EXPECT_EQ(exits.exits.at(0).detail,
            "image: image /proc/sys: its mounts: overlay: Invalid argument");
}

TEST(SpecOfAUserTest, IsReadAsItWasWritten) {
  Spec spec, read;
  std::string error;
  spec.argv = {"true"};
  spec.token = "t";
  spec.workers.push_back({0, {{0, {}}}});
  spec.user = User{kAnn, kBob, {kTeam, kOther}, 500};
  spec.devices = {"/dev/nvidia0", "/dev/nvidiactl"};
  spec.most_processes = 77;
  spec.pids_cgroup = "/sys/fs/cgroup/pids/x";
  ASSERT_TRUE(ParseSpec(FormatSpec(spec), &read, &error)) << error;
  ASSERT_TRUE(read.user.has_value());
  EXPECT_EQ(read.user->uid, kAnn);
  EXPECT_EQ(read.user->gid, kBob);
  EXPECT_EQ(read.user->groups, (std::vector<uint32_t>{kTeam, kOther}));
  EXPECT_EQ(read.user->minimum, 500u);
  EXPECT_EQ(read.devices, spec.devices);
  EXPECT_EQ(read.most_processes, 77);
  EXPECT_EQ(read.pids_cgroup, spec.pids_cgroup);
  EXPECT_FALSE(read.as_itself);
  User user;
  for (const char* groups : {"1,", ",", "x", "-1", "1,,2", "99999999999"})
    EXPECT_FALSE(ReadUser(Line{"user"}
                              .Add("uid", int64_t{1})
                              .Add("gid", int64_t{1})
                              .Add("groups", groups)
                              .Add("minimum", int64_t{1}),
                          &user))
        << groups;
}

}  // namespace
}  // namespace muster::shim
