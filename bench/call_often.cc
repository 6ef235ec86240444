// call_often IDENTITY [--seconds N] [--per-second N]: an honest user's calls (Ping) over TLS, at
// their pace, on one connection that is made anew where it ends. Prints one JSON line: how many,
// how many failed, and how long they took, sorted; the first apart. With --until-served:
// only how long until one succeeds.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "muster/v1/cluster_service.grpc.pb.h"
#include "network/client.h"

namespace muster::bench {
namespace {

namespace pb = ::muster::v1;
using Steady = std::chrono::steady_clock;

double MsSince(Steady::time_point then) {
  return std::chrono::duration<double, std::milli>(Steady::now() - then).count();
}

double Quantile(const std::vector<double>& sorted, double share) {
  if (sorted.empty()) return 0;
  return sorted[std::min(sorted.size() - 1,
                         static_cast<size_t>(static_cast<double>(sorted.size()) * share))];
}

grpc::Status Ping(pb::ClusterService::Stub* stub, int limit_ms) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(limit_ms));
  pb::PingResponse response;
  return stub->Ping(&context, pb::PingRequest(), &response);
}

int UntilServed(const Identity& identity, int64_t seconds) {
  const auto began = Steady::now();
  while (MsSince(began) < static_cast<double>(seconds) * 1000) {
    // Another channel each time: a failed one waits before it tries again.
    const auto stub = pb::ClusterService::NewStub(DialWith(identity, grpc::ChannelArguments()));
    if (Ping(stub.get(), 500).ok()) {
      std::printf("{\"served_ms\": %.1f}\n", MsSince(began));
      return 0;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  std::printf("{\"served_ms\": -1}\n");
  return 1;
}

int Main(int argc, char** argv) {
  std::string file;
  int64_t seconds = 5, per_second = 40;
  bool until_served = false;
  CLI::App app{"An honest user's calls.", "call_often"};
  app.add_option("identity", file)->required();
  app.add_option("--seconds", seconds);
  app.add_option("--per-second", per_second, "Below what a user may");
  app.add_flag("--until-served", until_served);
  CLI11_PARSE(app, argc, argv);
  const absl::StatusOr<Identity> identity = LoadIdentity(file);
  if (!identity.ok()) {
    std::fprintf(stderr, "%s\n", std::string(identity.status().message()).c_str());
    return 2;
  }
  if (until_served) return UntilServed(*identity, seconds);
  const auto stub = pb::ClusterService::NewStub(DialWith(*identity, grpc::ChannelArguments()));
  auto next = Steady::now();
  const auto first = next;
  const grpc::Status connected = Ping(stub.get(), 10'000);
  const double connect_ms = MsSince(first);
  std::vector<double> took_ms;
  int failed = !connected.ok();
  std::string why = connected.error_message();
  for (int64_t n = 0; n < seconds * per_second; ++n) {
    next += std::chrono::microseconds(1'000'000 / per_second);
    std::this_thread::sleep_until(next);
    const auto began = Steady::now();
    const grpc::Status status = Ping(stub.get(), 5000);
    took_ms.push_back(MsSince(began));
    if (status.ok()) continue;
    ++failed;
    why = status.error_message();
  }
  if (failed > 0) std::fprintf(stderr, "%s\n", why.c_str());
  std::sort(took_ms.begin(), took_ms.end());
  std::printf(
      "{\"calls\": %zu, \"failed\": %d, \"connect_ms\": %.2f, \"p50_ms\": %.3f, \"p99_ms\": %.3f, "
      "\"ms\": [",
      took_ms.size() + 1, failed, connect_ms, Quantile(took_ms, 0.5), Quantile(took_ms, 0.99));
  for (size_t i = 0; i < took_ms.size(); ++i) std::printf("%s%.3f", i == 0 ? "" : ", ", took_ms[i]);
  std::printf("]}\n");
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) { return muster::bench::Main(argc, argv); }
