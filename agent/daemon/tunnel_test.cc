// The host's end of tunnels against the real muster-shim: the stream is played by the test.
#include "agent/daemon/tunnel.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <list>
#include <thread>

#include "agent/shim/durable.h"
#include "agent/shim/format.h"
#include "agent/shim/isolate.h"
#include "common/base/testing/eventually.h"

namespace muster::agent {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kAnn = 61001;

// What a Tunnel says, as its user would see it.
class FakeStream {
 public:
  bool Write(const v1::TunnelOutput& output) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return !held_; });
    out_ += output.out();
    err_ += output.err();
    begun_ = begun_ || output.has_begun();
    out_ended_ = out_ended_ || output.out_end();
    if (output.body_case() == v1::TunnelOutput::kTakenBytes) taken_ = output.taken_bytes();
    if (output.has_end()) end_ = output.end();
    changed_.notify_all();
    return true;
  }
  // Nobody takes what it says, for now.
  void Hold(bool held) {
    std::lock_guard lock(mutex_);
    held_ = held;
    changed_.notify_all();
  }
  template <typename Condition>
  bool Await(Condition condition) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(20), [&] { return condition(*this); });
  }

  std::string out_, err_;
  bool begun_ = false, out_ended_ = false;
  int64_t taken_ = 0;
  v1::TunnelEnd end_;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool held_ = false;
};

// One tunnel on a thread of its own.
class Carried {
 public:
  Carried(v1::OpenTunnel open, const std::string& directory)
      : tunnel_([this](const v1::TunnelOutput& output) { return stream_.Write(output); }),
        thread_([this, open = std::move(open), directory] { tunnel_.Run(open, directory); }) {}
  ~Carried() {
    stream_.Hold(false);
    tunnel_.OnOver();
    if (thread_.joinable()) thread_.join();
  }

  FakeStream& stream() { return stream_; }
  bool AwaitBegun() {
    return stream_.Await([](const FakeStream& s) { return s.begun_; });
  }
  void Send(const std::string& data) {
    v1::TunnelInput input;
    input.set_data(data);
    tunnel_.OnInput(std::move(input));
  }
  void EndInput() {
    v1::TunnelInput input;
    input.set_end(true);
    tunnel_.OnInput(std::move(input));
  }
  void HangUp() { tunnel_.OnOver(); }
  // Its last word.
  v1::TunnelEnd End() {
    thread_.join();
    return stream_.end_;
  }

 private:
  FakeStream stream_;
  Tunnel tunnel_;
  std::thread thread_;
};

// A shim whose one worker waits for the file `go`. With `owned` as another user's.
class TunnelTest : public ::testing::TestWithParam<bool> {
 protected:
  void Start(bool owned = false) {
    char name[] = "/var/tmp/muster-tunnel-test-XXXXXX";
    char owned_name[] = "/var/lib/muster-tunnel-test-XXXXXX";
    root_ = ::mkdtemp(owned ? owned_name : name);
    ::chmod(root_.c_str(), 0755);
    // Longer than a socket's address may be.
    attempt_ = root_ + "/state/attempts/" + std::string(120, 'a');
    std::filesystem::create_directories(attempt_);
    const std::string work = root_ + "/work";
    std::filesystem::create_directory(work);
    shim::Spec spec;
    shim::ReadSmallFile("/proc/sys/kernel/random/boot_id", &spec.boot_id);
    while (!spec.boot_id.empty() && spec.boot_id.back() == '\n') spec.boot_id.pop_back();
    spec.job_uid = std::string(32, 'a');
    spec.task = "main";
    spec.attempt = 1;
    spec.token = token_ = "token-" + root_;
    spec.workdir = work;
    spec.as_itself = !owned;
    spec.pid_namespace = GetParam();
    if (owned) {
      spec.user = shim::User{kAnn, kAnn, {}, 1000};
      ASSERT_EQ(::chown(work.c_str(), kAnn, kAnn), 0);
    }
    spec.env = {{"PATH", "/usr/local/bin:/usr/bin:/bin"}, {"COLOUR", "blue"}};
    spec.argv = {"bash", "-c", "while [ ! -e go ]; do sleep 0.02; done"};
    spec.workers.push_back({0, {{3, {{"RANK", "3"}}}}});
    ASSERT_EQ(shim::ReplaceFile(root_, "told", shim::FormatSpec(spec)), 0);
    ASSERT_EQ(shim::ReplaceFile(attempt_, shim::kPreparedFile, ""), 0);
    Spawn();
    // Its worker runs once the rank's environment is known.
    ASSERT_TRUE(Eventually([&] {
      Carried probe(Command({"true"}), attempt_);
      return probe.End().error().empty();
    }));
  }
  void TearDown() override {
    if (shim_ > 0) {
      ::kill(shim_, SIGKILL);
      ::waitpid(shim_, nullptr, 0);
    }
    if (token_.empty()) return;
    EXPECT_TRUE(Eventually([&] { return shim::KillByToken(token_) == 0; }));
    std::filesystem::remove_all(root_);
  }

  static v1::OpenTunnel Command(const std::vector<std::string>& words) {
    v1::OpenTunnel open;
    open.mutable_exec()->set_rank(3);
    for (const std::string& word : words) open.mutable_exec()->add_command(word);
    return open;
  }
  static v1::OpenTunnel Port(int port) {
    v1::OpenTunnel open;
    open.mutable_forward()->set_rank(3);
    open.mutable_forward()->set_port(port);
    return open;
  }
  // Whether a process has this file as its output.
  bool Writes(const std::string& name) const {
    for (const auto& process : std::filesystem::directory_iterator("/proc")) {
      std::error_code ignored;
      if (std::filesystem::read_symlink(process.path() / "fd/9", ignored) ==
          root_ + "/work/" + name)
        return true;
    }
    return false;
  }
  void LetGo() { ASSERT_EQ(shim::ReplaceFile(root_ + "/work", "go", ""), 0); }
  int WaitForShim() {
    int status = 0;
    ::waitpid(shim_, &status, 0);
    shim_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  std::string root_, attempt_, token_;
  pid_t shim_ = -1;

 private:
  void Spawn() {
    const std::string program = std::string(MUSTER_TEST_BIN) + "/muster-shim";
    char* const argv[] = {const_cast<char*>("muster-shim"), attempt_.data(), nullptr};
    char* const environment[] = {nullptr};
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_addopen(&actions, 0, (root_ + "/told").c_str(), O_RDONLY, 0);
    EXPECT_EQ(::posix_spawn(&shim_, program.c_str(), &actions, nullptr, argv, environment), 0);
    ::posix_spawn_file_actions_destroy(&actions);
  }
};

TEST_P(TunnelTest, ACommandHasItsRanksEnvironmentAndItsOwnStreamsAndExitCode) {
  Start();
  Carried carried(Command({"bash", "-c", "cat; echo $RANK $COLOUR; pwd >&2; exit 7"}), attempt_);
  ASSERT_TRUE(carried.AwaitBegun());
  carried.Send("in ");
  carried.EndInput();
  const v1::TunnelEnd end = carried.End();
  EXPECT_EQ(end.exit_code(), 7) << end.error();
  EXPECT_EQ(carried.stream().out_, "in 3 blue\n");
  EXPECT_EQ(carried.stream().err_, root_ + "/work\n");
  Carried killed(Command({"bash", "-c", "kill -TERM $$"}), attempt_);
  EXPECT_EQ(killed.End().signal(), SIGTERM);
  Carried missing(Command({"no-such-program"}), attempt_);
  const v1::TunnelEnd none = missing.End();
  EXPECT_EQ(none.exit_code(), 127);
  EXPECT_EQ(none.error(), "exec no-such-program: No such file or directory");
}

TEST_P(TunnelTest, WhoHangsUpEndsTheCommandThoughItIgnoresSighup) {
  Start();
  Carried carried(
      Command({"bash", "-c", "trap '' HUP; exec 9> mine; (trap '' HUP; sleep 1000) & sleep 1000"}),
      attempt_);
  ASSERT_TRUE(carried.AwaitBegun());
  ASSERT_TRUE(Eventually([&] { return Writes("mine"); }));
  carried.HangUp();
  EXPECT_TRUE(Eventually([&] { return !Writes("mine"); })) << "killed after its grace";
}

TEST_P(TunnelTest, TheAttemptsEndIsTheCommandsAndItsExitIsItsOwn) {
  Start();
  Carried carried(
      Command({"bash", "-c", "trap '' HUP TERM; exec 9> mine; setsid sleep 1000 & sleep 1000"}),
      attempt_);
  ASSERT_TRUE(carried.AwaitBegun());
  ASSERT_TRUE(Eventually([&] { return Writes("mine"); }));
  LetGo();
  EXPECT_EQ(WaitForShim(), 0);
  EXPECT_FALSE(Writes("mine"));
  EXPECT_THAT(carried.End().error(), HasSubstr("attempt has ended"));
  std::string text, error;
  shim::Exits exits;
  ASSERT_EQ(shim::ReadSmallFile(attempt_ + "/" + shim::kExitsFile, &text), 0);
  ASSERT_TRUE(shim::ParseExits(text, &exits, &error)) << error;
  ASSERT_EQ(exits.exits.size(), 1u);
  EXPECT_EQ(exits.exits[0].exit_code, 0);
  EXPECT_FALSE(exits.exits[0].oom);
}

TEST_P(TunnelTest, MoreInputThanTheWindowEndsTheTunnel) {
  Start();
  Carried carried(Command({"sleep", "1000"}), attempt_);
  ASSERT_TRUE(carried.AwaitBegun());
  const std::string piece(64 << 10, 'x');
  for (int64_t sent = 0; sent <= kTunnelWindowBytes + (256 << 10);
       sent += static_cast<int64_t>(piece.size()))
    carried.Send(piece);
  EXPECT_THAT(carried.End().error(), HasSubstr("window"));
}

TEST_P(TunnelTest, InputIsToldAsItIsTakenAndAReaderThatStopsIsWaitedFor) {
  Start();
  Carried carried(Command({"cat"}), attempt_);
  ASSERT_TRUE(carried.AwaitBegun());
  const std::string piece(64 << 10, 'x');
  carried.stream().Hold(true);
  for (int64_t sent = 0; sent < kTunnelWindowBytes; sent += static_cast<int64_t>(piece.size()))
    carried.Send(piece);
  carried.stream().Hold(false);
  EXPECT_TRUE(
      carried.stream().Await([](const FakeStream& s) { return s.taken_ == kTunnelWindowBytes; }));
  carried.EndInput();
  EXPECT_EQ(carried.End().exit_code(), 0);
  EXPECT_EQ(static_cast<int64_t>(carried.stream().out_.size()), kTunnelWindowBytes);
}

TEST_P(TunnelTest, ATerminalIsOneAndHasItsSize) {
  Start();
  v1::OpenTunnel open = Command({"bash", "-c", "stty size; tty; echo $TERM"});
  open.mutable_exec()->set_terminal(true);
  open.mutable_exec()->set_term("vt100");
  open.mutable_exec()->mutable_size()->set_rows(33);
  open.mutable_exec()->mutable_size()->set_columns(99);
  Carried carried(open, attempt_);
  EXPECT_EQ(carried.End().exit_code(), 0);
  EXPECT_THAT(carried.stream().out_, HasSubstr("33 99\r\n/dev/pts/"));
  EXPECT_THAT(carried.stream().out_, HasSubstr("vt100"));
}

TEST_P(TunnelTest, SeventeenCommandsAreOneTooMany) {
  Start();
  std::list<Carried> carried;
  for (int i = 0; i < shim::kCommandsAtOnce; ++i) {
    carried.emplace_back(Command({"sleep", "1000"}), attempt_);
    ASSERT_TRUE(carried.back().AwaitBegun());
  }
  Carried one_more(Command({"true"}), attempt_);
  EXPECT_THAT(one_more.End().error(), HasSubstr("16 commands run beside"));
}

TEST_P(TunnelTest, ACommandRunsAsTheOwnerAndAPortOfAnothersIsNotReached) {
  if (::geteuid() != 0 || !GetParam()) GTEST_SKIP() << "wants root and namespaces";
  Start(/*owned=*/true);
  Carried carried(Command({"bash", "-c", "id -u; id -G; ls -A " + root_ + "/state | wc -l"}),
                  attempt_);
  EXPECT_EQ(carried.End().exit_code(), 0);
  EXPECT_EQ(carried.stream().out_, "61001\n61001\n0\n");

  const int door = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(door, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(door, 1), 0);
  ASSERT_EQ(::getsockname(door, reinterpret_cast<sockaddr*>(&address), &size), 0);
  Carried foreign(Port(ntohs(address.sin_port)), attempt_);
  EXPECT_THAT(foreign.End().error(), HasSubstr("no process of this job listens on"));
  EXPECT_LT(::accept(door, nullptr, nullptr), 0) << "nobody has come";
  ::close(door);
  Carried nobody(Port(ntohs(address.sin_port)), attempt_);
  EXPECT_THAT(nobody.End().error(), HasSubstr("nothing listens on"));
}

TEST_P(TunnelTest, APortOfTheJobIsReachedAndHalfClosesArePassedOn) {
  if (::geteuid() != 0 || !GetParam()) GTEST_SKIP() << "wants root and namespaces";
  Start(/*owned=*/true);
  constexpr char kEcho[] =
      "import socket\n"
      "door = socket.create_server(('127.0.0.1', 0))\n"
      "print(door.getsockname()[1], flush=True)\n"
      "peer = door.accept()[0]\n"
      "while data := peer.recv(65536): peer.sendall(data)\n"
      "peer.sendall(b'!')\n";
  Carried server(Command({"python3", "-c", kEcho}), attempt_);
  ASSERT_TRUE(server.stream().Await(
      [](const FakeStream& s) { return s.out_.find('\n') != std::string::npos; }));
  Carried carried(Port(std::stoi(server.stream().out_)), attempt_);
  ASSERT_TRUE(carried.AwaitBegun());
  carried.Send("hello");
  carried.EndInput();
  EXPECT_EQ(carried.End().error(), "");
  EXPECT_EQ(carried.stream().out_, "hello!");
  EXPECT_TRUE(carried.stream().out_ended_);
  EXPECT_EQ(server.End().exit_code(), 0);
}

INSTANTIATE_TEST_SUITE_P(Apart, TunnelTest, ::testing::Values(true, false),
                         [](const auto& info) { return info.param ? "Namespace" : "Guardian"; });

}  // namespace
}  // namespace muster::agent
