// Stands in for musterd and muster-agent in up_test, by the name it is called: the daemon serves
// what `muster up` asks it, the agent only lives. Ping answers the pid.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include <grpcpp/grpcpp.h>

#include "muster/v1/cluster_service.grpc.pb.h"
#include "muster/v1/job_service.grpc.pb.h"

namespace {

namespace pb = ::muster::v1;

struct Clusters : pb::ClusterService::Service {
  grpc::Status Ping(grpc::ServerContext*, const pb::PingRequest*,
                    pb::PingResponse* response) override {
    response->set_version(std::to_string(getpid()));
    return grpc::Status::OK;
  }
  grpc::Status GetHost(grpc::ServerContext*, const pb::GetHostRequest*, pb::Host* host) override {
    host->set_state(pb::HOST_UP);
    host->mutable_inventory()->set_declared(true);
    host->mutable_inventory()->set_flavour("cpu-slot");
    host->mutable_inventory()->add_devices();
    host->mutable_inventory()->add_devices();
    return grpc::Status::OK;
  }
  grpc::Status GetTrainerSchema(grpc::ServerContext*, const pb::GetTrainerSchemaRequest*,
                                pb::GetTrainerSchemaResponse*) override {
    return grpc::Status::OK;
  }
};

struct Jobs : pb::JobService::Service {
  grpc::Status List(grpc::ServerContext*, const pb::ListJobsRequest*,
                    pb::ListJobsResponse* response) override {
    pb::Job* job = response->add_jobs();
    job->set_number(3);
    job->set_state(pb::RUNNING);
    return grpc::Status::OK;
  }
};

}  // namespace

int main(int argc, char** argv) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  int signal_number = 0;
  std::unique_ptr<grpc::Server> server;
  Clusters clusters;
  Jobs jobs;
  if (std::string(argv[0]).ends_with("musterd")) {
    std::string listen;
    for (int i = 1; i + 1 < argc; ++i)
      if (std::string(argv[i]) == "--listen") listen = argv[i + 1];
    unlink(listen.substr(7).c_str());
    grpc::ServerBuilder builder;
    builder.AddListeningPort(listen, grpc::InsecureServerCredentials());
    builder.RegisterService(&clusters);
    builder.RegisterService(&jobs);
    server = builder.BuildAndStart();
    if (server == nullptr) return 1;
  }
  sigwait(&set, &signal_number);
  if (server != nullptr) server->Shutdown(std::chrono::system_clock::now());
  return 0;
}
