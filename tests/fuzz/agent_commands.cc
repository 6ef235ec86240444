// What the scheduler sends, to the agent's reconciler, with effects that do nothing: what it was
// told and what it reports stay within bounds.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agent/reconcile/reconciler.h"
#include "common/base/check.h"
#include "common/base/quiet_log.h"
#include "tests/fuzz/messages.h"

namespace muster::agent {
namespace {

struct Nothing final : Files, Processes, Sender {
  absl::Status PersistPrepared(const AttemptRecord&, bool) override { return absl::OkStatus(); }
  absl::StatusOr<Claim> ClaimStopped(const AttemptRecord& record) override {
    return claims.emplace(record.id, Claim::kStopped).first->second;
  }
  absl::Status PersistStop(const AttemptRecord&) override { return absl::OkStatus(); }
  absl::Status Renew(const AttemptRecord&) override { return absl::OkStatus(); }
  absl::Status PersistOutcome(const AttemptRecord&) override { return absl::OkStatus(); }
  absl::Status KeepGpus(const AttemptRecord&) override { return absl::OkStatus(); }
  absl::Status PersistSeen(const Seen&, bool) override { return absl::OkStatus(); }
  absl::Status Forget(const AttemptId&) override { return absl::OkStatus(); }
  absl::Status Publish(const AttemptRecord&, const std::string&, const std::string&) override {
    return absl::OkStatus();
  }
  absl::StatusOr<int32_t> Prepare(const v1::Prepare&) override { return 20001; }
  absl::Status SpawnShim(const AttemptRecord& record) override {
    claims.emplace(record.id, Claim::kStarted);
    return absl::OkStatus();
  }
  void SignalShim(const AttemptId&) override {}
  bool ShimLives(const AttemptId& id) override { return claims.count(id) > 0; }
  void Send(v1::AgentMessage) override { ++sent; }

  std::map<AttemptId, Claim> claims;
  int sent = 0;
};

}  // namespace
}  // namespace muster::agent

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster::agent;
  namespace v1 = muster::v1;
  static const bool quiet = (muster::SilenceLog(), true);
  (void)quiet;
  Nothing world;
  HostIds identity;
  identity.cluster = "lab";
  identity.host = "h1";
  identity.state_id = std::string(32, 'a');
  identity.boot_id = "boot";
  Reconciler agent(identity, {}, {}, &world, &world, &world);
  int64_t now_ns = 0;
  const std::vector<muster::fuzz::Input<v1::SchedulerMessage>> inputs =
      muster::fuzz::Read<v1::SchedulerMessage>(data, size);
  for (const auto& input : inputs) {
    v1::SchedulerMessage message = input.message;
    if (!message.has_session()) {
      message.mutable_session()->set_session("s");
      message.mutable_session()->set_state_id(identity.state_id);
    }
    agent.OnMessage(message, ++now_ns);
    if (input.stream == 1) agent.OnDisconnected();
    for (const auto& [id, claim] : world.claims) {
      ShimNews news;
      news.claim = claim;
      news.alive = input.stream == 2;
      news.final = input.stream == 3;
      if (agent.Find(id) != nullptr) agent.OnShim(id, news, ++now_ns);
    }
  }
  agent.Hello({}, ++now_ns);
  MUSTER_CHECK(world.sent <= static_cast<int>(200 * (inputs.size() + 1)));
  return 0;
}
