// call_rpcs SERVER: calls whatever RPC each line of standard input says, METHOD<Tab>REQUEST as
// JSON, as whoever runs it (SERVER is unix://…), has logged in (SERVER is the path of the login's
// file) or has no certificate (join:PATH: to the join door that this login's file names), and
// prints one JSON line a call: its code, its message and its answers (of a stream the first two, or
// what comes within the deadline). call_rpcs SERVER MS: of a stream all that comes in so many
// milliseconds. call_rpcs --list: the methods.
#include <google/protobuf/util/json_util.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <cstdio>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/pki/names.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/struct.pb.h"
#include "muster/v1/access_service.pb.h"
#include "muster/v1/agent_service.pb.h"
#include "muster/v1/cluster_service.pb.h"
#include "muster/v1/job_service.pb.h"
#include "muster/v1/pack_service.pb.h"
#include "muster/v1/queue_service.pb.h"
#include "muster/v1/secret_service.pb.h"
#include "muster/v1/trust_service.pb.h"
#include "network/client.h"
#include "network/identity.h"

namespace muster::bench {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::Message;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;

constexpr std::chrono::seconds kUnary{20};
constexpr std::chrono::milliseconds kStream{1500};
constexpr int kAnswers = 2;

// How a stream is listened to.
struct Listening {
  std::chrono::milliseconds deadline = kStream;
  int answers = kAnswers;
};

std::vector<const ServiceDescriptor*> Services() {
  std::vector<const ServiceDescriptor*> services;
  for (const google::protobuf::FileDescriptor* file :
       {v1::SubmitRequest::descriptor()->file(), v1::ApplyQueuesRequest::descriptor()->file(),
        v1::DrainRequest::descriptor()->file(), v1::GrantRequest::descriptor()->file(),
        v1::JoinRequest::descriptor()->file(), v1::ReadPackRequest::descriptor()->file(),
        v1::PutPackRequest::descriptor()->file(), v1::SetSecretRequest::descriptor()->file()}) {
    for (int s = 0; s < file->service_count(); ++s) services.push_back(file->service(s));
  }
  return services;
}

const MethodDescriptor* MethodNamed(const std::string& name) {
  const size_t slash = name.find('/');
  for (const ServiceDescriptor* service : Services()) {
    if (service->name() == name.substr(0, slash))
      return service->FindMethodByName(name.substr(slash + 1));
  }
  return nullptr;
}

std::unique_ptr<Message> MakeMessage(const google::protobuf::Descriptor* type) {
  return std::unique_ptr<Message>(
      google::protobuf::MessageFactory::generated_factory()->GetPrototype(type)->New());
}

struct Outcome {
  grpc::Status status;
  std::vector<std::string> answers;  // as JSON
};

// Waits for the next tag; false if what it stood for failed.
bool Next(grpc::CompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  return queue->Next(&tag, &ok) && ok;
}

Outcome Call(grpc::GenericStub* stub, const MethodDescriptor& method, const Message& request,
             const Listening& listening) {
  Outcome outcome;
  const bool streams = method.server_streaming() || method.client_streaming();
  grpc::ClientContext context;
  if (streams) {
    context.set_deadline(std::chrono::system_clock::now() + listening.deadline);
  } else {
    context.set_deadline(std::chrono::system_clock::now() + kUnary);
  }
  grpc::CompletionQueue queue;
  const auto call = stub->PrepareCall(
      &context, absl::StrCat("/", method.service()->full_name(), "/", method.name()), &queue);
  call->StartCall(nullptr);
  bool going = Next(&queue);
  if (going) {
    const grpc::Slice slice(request.SerializeAsString());
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    going = Next(&queue);
  }
  if (going && !method.client_streaming()) {
    call->WritesDone(nullptr);
    Next(&queue);
  }
  while (going && static_cast<int>(outcome.answers.size()) < listening.answers) {
    grpc::ByteBuffer buffer;
    call->Read(&buffer, nullptr);
    going = Next(&queue);
    if (!going) break;
    std::vector<grpc::Slice> slices;
    if (!buffer.Dump(&slices).ok()) break;
    std::string bytes, json;
    for (const grpc::Slice& slice : slices)
      bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
    const std::unique_ptr<Message> answer = MakeMessage(method.output_type());
    if (!answer->ParseFromString(bytes)) break;
    if (google::protobuf::util::MessageToJsonString(*answer, &json).ok())
      outcome.answers.push_back(std::move(json));
    if (!streams) break;
  }
  if (going && streams) context.TryCancel();
  call->Finish(&outcome.status, nullptr);
  Next(&queue);
  return outcome;
}

std::string Quoted(const std::string& text) {
  google::protobuf::Value value;
  value.set_string_value(text);
  std::string json;
  if (!google::protobuf::util::MessageToJsonString(value, &json).ok()) return "\"\"";
  return json;
}

void Print(const Outcome& outcome) {
  std::string line =
      absl::StrCat("{\"code\":", static_cast<int>(outcome.status.error_code()),
                   ",\"message\":", Quoted(outcome.status.error_message()), ",\"answers\":[");
  for (size_t i = 0; i < outcome.answers.size(); ++i)
    absl::StrAppend(&line, i == 0 ? "" : ",", outcome.answers[i]);
  std::printf("%s]}\n", line.c_str());
  std::fflush(stdout);
}

constexpr char kJoinDoor[] = "join:";

// Null, having said why: there is no such login.
std::shared_ptr<grpc::Channel> Reach(const std::string& server) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (server.rfind("unix://", 0) == 0) {
    return grpc::CreateCustomChannel(absl::StrCat("unix:", absl::StripPrefix(server, "unix://")),
                                     grpc::InsecureChannelCredentials(), arguments);
  }
  const absl::StatusOr<Identity> identity =
      LoadIdentity(std::string(absl::StripPrefix(server, kJoinDoor)));
  if (!identity.ok()) {
    std::fprintf(stderr, "%s\n", std::string(identity.status().message()).c_str());
    return nullptr;
  }
  if (server.rfind(kJoinDoor, 0) != 0) return DialWith(*identity, arguments);
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = identity->authorities;
  arguments.SetSslTargetNameOverride(ServerName(identity->holder.trust_id));
  return grpc::CreateCustomChannel(identity->join_address, grpc::SslCredentials(options),
                                   arguments);
}

int CallAll(const std::string& server, const Listening& listening) {
  const std::shared_ptr<grpc::Channel> channel = Reach(server);
  if (channel == nullptr) return 2;
  grpc::GenericStub stub(channel);
  for (std::string line; std::getline(std::cin, line);) {
    const size_t tab = line.find('\t');
    const MethodDescriptor* method =
        tab == std::string::npos ? nullptr : MethodNamed(line.substr(0, tab));
    if (method == nullptr) {
      std::fprintf(stderr, "no such method: %s\n", line.c_str());
      return 2;
    }
    const std::unique_ptr<Message> request = MakeMessage(method->input_type());
    const auto parsed =
        google::protobuf::util::JsonStringToMessage(line.substr(tab + 1), request.get());
    if (!parsed.ok()) {
      std::fprintf(stderr, "%s: %s\n", line.c_str(), std::string(parsed.message()).c_str());
      return 2;
    }
    Print(Call(&stub, *method, *request, listening));
  }
  return 0;
}

int Main(int argc, char** argv) {
  Listening listening;
  int ms = 0;
  if (argc == 3 && absl::SimpleAtoi(argv[2], &ms))
    listening = {std::chrono::milliseconds(ms), std::numeric_limits<int>::max()};
  if (argc != 2 && ms <= 0) {
    std::fprintf(stderr, "usage: call_rpcs SERVER [MS] | --list\n");
    return 2;
  }
  if (std::string(argv[1]) != "--list") return CallAll(argv[1], listening);
  for (const ServiceDescriptor* service : Services()) {
    for (int m = 0; m < service->method_count(); ++m)
      std::printf("%s/%s\n", service->name().c_str(), service->method(m)->name().c_str());
  }
  return 0;
}

}  // namespace
}  // namespace muster::bench

int main(int argc, char** argv) { return muster::bench::Main(argc, argv); }
