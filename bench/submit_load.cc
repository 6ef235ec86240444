// submit_load SERVER --jobs N [--outstanding N] [--connections N] [--wait]: submits one-slot jobs
// of /bin/true to a musterd over gRPC, `outstanding` unanswered at any time; with --wait until all
// have ended. SERVER: a Unix socket, or files of logins with commas between them, each of which is
// a connection over TLS. Prints one JSON line.
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "common/base/ids.h"
#include "muster/v1/job_service.grpc.pb.h"
#include "network/client.h"

namespace muster::bench {
namespace {

namespace pb = ::muster::v1;
using Steady = std::chrono::steady_clock;

double SecondsSince(Steady::time_point then) {
  return std::chrono::duration<double>(Steady::now() - then).count();
}

struct Call {
  grpc::ClientContext context;
  pb::SubmitResponse response;
  grpc::Status status;
  std::unique_ptr<grpc::ClientAsyncResponseReader<pb::SubmitResponse>> reader;
};

// Jobs that have not ended, of those the caller may see.
int Unfinished(pb::JobService::Stub* stub) {
  grpc::ClientContext context;
  pb::ListJobsRequest request;
  request.set_page_size(1);
  request.add_states(pb::WAITING);
  request.add_states(pb::RUNNING);
  pb::ListJobsResponse response;
  const grpc::Status status = stub->List(&context, request, &response);
  if (!status.ok()) {
    std::fprintf(stderr, "List: %s\n", status.error_message().c_str());
    std::_Exit(1);
  }
  return response.jobs_size();
}

std::vector<std::unique_ptr<pb::JobService::Stub>> Connect(const std::string& server,
                                                           int connections) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // No compression, deadlines, retries: none is asked for.
  arguments.SetInt(GRPC_ARG_MINIMAL_STACK, 1);
  std::vector<std::unique_ptr<pb::JobService::Stub>> stubs;
  if (server.rfind("unix://", 0) != 0) {
    const std::vector<std::string> files = absl::StrSplit(server, ',');
    for (const std::string& file : files) {
      const absl::StatusOr<Identity> identity = LoadIdentity(file);
      if (!identity.ok()) {
        std::fprintf(stderr, "%s\n", std::string(identity.status().message()).c_str());
        std::_Exit(2);
      }
      stubs.push_back(pb::JobService::NewStub(DialWith(*identity, arguments)));
    }
    return stubs;
  }
  for (int c = 0; c < connections; ++c) {
    stubs.push_back(pb::JobService::NewStub(grpc::CreateCustomChannel(
        absl::StrCat("unix:", std::string(absl::StripPrefix(server, "unix://"))),
        grpc::InsecureChannelCredentials(), arguments)));
  }
  return stubs;
}

int Main(int argc, char** argv) {
  CLI::App app{"Submits jobs of /bin/true over gRPC, many at once.", "submit_load"};
  std::string server, queue = "research";
  int jobs = 1000, outstanding = 512,
      connections = 1;  // more of them only share the work out in smaller pieces
  bool wait = false;
  app.add_option("server", server, "unix:///PATH, or files of logins")->required();
  app.add_option("--jobs", jobs);
  app.add_option("--queue", queue);
  app.add_option("--outstanding", outstanding,
                 "Submissions that wait for their answer at any time");
  app.add_option("--connections", connections);
  app.add_flag("--wait", wait, "Until every job has ended");
  CLI11_PARSE(app, argc, argv);
  absl::SetMutexDeadlockDetectionMode(
      absl::OnDeadlockCycle::kIgnore);  // Debian's looks for cycles at every lock, gRPC's included

  const std::vector<std::unique_ptr<pb::JobService::Stub>> stubs = Connect(server, connections);
  pb::SubmitRequest request;
  request.set_umask(022);
  pb::JobSpec& spec = *request.mutable_spec();
  spec.set_name("true");
  spec.set_queue(queue);
  pb::TaskSpec* task = spec.add_tasks();
  task->set_name("main");
  task->mutable_workers()->set_min(1);
  task->mutable_workers()->set_max(1);
  task->mutable_resources()->set_gpus_milli(1000);
  task->mutable_resources()->add_gpu_types("cpu-slot");
  task->mutable_run()->add_exec("/bin/true");

  // One thread that asks, and takes the answers when enough is asked: others would only wake each
  // other on cores that the daemon needs.
  grpc::CompletionQueue answers;
  int failed = 0;
  const std::string run = RandomId();
  const auto began = Steady::now();
  for (int asked = 0, answered = 0; answered < jobs;) {
    if (asked < jobs && asked - answered < outstanding) {
      request.set_idempotency_key(absl::StrCat(run, "-", asked));
      auto call = std::make_unique<Call>();
      call->reader = stubs[asked % stubs.size()]->AsyncSubmit(&call->context, request, &answers);
      ++asked;
      Call* const tag = call.release();
      tag->reader->Finish(&tag->response, &tag->status, tag);
      continue;
    }
    void* tag = nullptr;
    bool ok = false;
    answers.Next(&tag, &ok);
    const std::unique_ptr<Call> call(static_cast<Call*>(tag));
    if (!call->status.ok() && failed++ == 0)
      std::fprintf(stderr, "Submit: %s\n", call->status.error_message().c_str());
    ++answered;
  }
  const double submitted_s = SecondsSince(began);
  while (wait && Unfinished(stubs[0].get()) > 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  std::printf(
      "{\"jobs\": %d, \"failed\": %d, \"submissions_per_s\": %.0f, \"submitted_s\": %.2f, "
      "\"jobs_per_s\": %.0f, \"wall_s\": %.2f}\n",
      jobs, failed, (jobs - failed) / submitted_s, submitted_s,
      (jobs - failed) / SecondsSince(began), SecondsSince(began));
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) { return muster::bench::Main(argc, argv); }
