// What agents send, to the real sessions and engine: four streams, one of them trusted, each with
// the session that it was given. Whatever comes, the engine goes on, and its State is what its rows
// make.
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/check.h"
#include "common/base/quiet_log.h"
#include "scheduler/agents/sessions.h"
#include "scheduler/engine/testing/fixture.h"
#include "tests/fuzz/messages.h"

namespace muster {
namespace {

class Stream : public AgentStream {
 public:
  void Send(const pb::SchedulerMessage& message) override {
    if (message.has_welcome()) session = message.session();
  }
  void End(const absl::Status&) override { ended = true; }
  bool trusted() const override { return is_trusted; }
  pb::SessionKey session;
  bool ended = false;
  bool is_trusted = false;
};

pb::Event Submitted() {
  pb::Event event;
  event.mutable_job_submitted()->set_uid(std::string(32, '1'));
  event.mutable_job_submitted()->set_number(1);
  event.mutable_job_submitted()->set_owner("somebody");
  *event.mutable_job_submitted()->mutable_spec() = OneSlotSpec();
  return event;
}

// A cluster, a queue and a job that waits. Made once: making it is most of what a short input
// costs.
State Begun() {
  ManualClock clock;
  RecordingStore store(nullptr);
  Sessions sessions(SessionOptions(), &clock);
  Engine engine(EngineOptions(), &clock, &store, &sessions, State());
  sessions.Attach(&engine);
  pb::Event queues;
  queues.mutable_queues_applied()->mutable_tree()->add_queues()->set_name("research");
  queues.mutable_queues_applied()->set_version(1);
  engine.Post(LabConfigured());
  engine.Post(queues);
  engine.Post(Submitted());
  while (engine.Step()) {
  }
  return engine.Snapshot()->state;
}

}  // namespace
}  // namespace muster

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster;
  static const State begun = (SilenceLog(), Begun());
  ManualClock clock;
  RecordingStore store(nullptr);
  SessionOptions options;
  options.store_id = std::string(32, '5');
  options.epoch = 7;
  int id = 0;
  options.new_id = [&id] { return absl::StrCat("session-", ++id); };
  Sessions sessions(options, &clock);
  Engine engine(EngineOptions(), &clock, &store, &sessions, begun);
  sessions.Attach(&engine);
  const auto settle = [&] {
    for (int steps = 0; engine.Step(); ++steps) MUSTER_CHECK(steps < 1000);
  };
  std::shared_ptr<Stream> streams[4];
  for (fuzz::Input<pb::AgentMessage>& input : fuzz::Read<pb::AgentMessage>(data, size)) {
    std::shared_ptr<Stream>& stream = streams[input.stream];
    if (stream == nullptr) {
      stream = std::make_shared<Stream>();
      stream->is_trusted = input.stream == 3;
    }
    if (!input.message.has_session()) *input.message.mutable_session() = stream->session;
    const bool accepted = sessions.Receive(stream, input.message).ok();
    settle();
    if (!accepted || stream->ended) {
      sessions.Closed(stream.get());
      stream = nullptr;
    }
    clock.now_ns += 2 * kSecond;
    sessions.Tick();
    settle();
  }
  const State state = engine.Snapshot()->state;
  MUSTER_CHECK(State::Difference(state, state.Rebuilt()).empty());
  for (const std::shared_ptr<Stream>& stream : streams) {
    if (stream != nullptr) sessions.Closed(stream.get());
  }
  return 0;
}
