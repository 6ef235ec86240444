#include "agent/daemon/fetcher.h"

#include <errno.h>
#include <grpcpp/grpcpp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/shim/durable.h"
#include "common/base/files.h"
#include "common/base/units.h"
#include "common/pack/format.h"
#include "common/pki/sha256.h"
#include "muster/v1/agent_service.grpc.pb.h"
#include "network/client.h"
#include "network/identity.h"

namespace muster::agent {
namespace {

constexpr std::chrono::seconds kCall(10);
constexpr std::chrono::milliseconds kFirstPause(200), kLongestPause(5'000);

// Whether it may be answered otherwise in a moment: nobody was there, or there was too much to do.
bool MayPass(const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
    case grpc::StatusCode::CANCELLED:
    case grpc::StatusCode::ABORTED:
      return true;
    default:
      return false;
  }
}

// A file in memory that the caller closes.
class Fetched {
 public:
  Fetched() : fd_(::memfd_create("pack", MFD_CLOEXEC)) {}
  ~Fetched() {
    if (fd_ >= 0) ::close(fd_);
  }
  Fetched(const Fetched&) = delete;
  Fetched& operator=(const Fetched&) = delete;
  absl::Status Add(const std::string& data) {
    const int error = fd_ < 0 ? EMFILE : shim::WriteAll(fd_, data);
    if (error != 0) return ErrnoStatus(error, "the directory that came along");
    hash_.Add(data);
    bytes_ += static_cast<int64_t>(data.size());
    return absl::OkStatus();
  }
  int64_t bytes() const { return bytes_; }
  std::string Digest() { return hash_.Hex(); }
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  int fd_;
  int64_t bytes_ = 0;
  Sha256Stream hash_;
};

// Calls until it is answered. INVALID_ARGUMENT: what is asked for isn't there any more; ABORTED:
// nobody answers in time; FAILED_PRECONDITION: it is refused, or this host can't ask.
class Caller {
 public:
  // `what`: for people.
  Caller(const Source& source, std::string what)
      : source_(source),
        what_(std::move(what)),
        until_(std::chrono::steady_clock::now() + std::chrono::nanoseconds(source.patience_ns)) {}

  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (v1::AgentService::Stub::*method)(grpc::ClientContext*,
                                                                   const Request&, Response*),
                    const Request& request, Response* response) {
    for (std::chrono::milliseconds pause = kFirstPause;;
         pause = std::min(2 * pause, kLongestPause)) {
      const grpc::Status status = Try(method, request, response);
      if (status.ok()) return absl::OkStatus();
      if (!MayPass(status)) return InWords(status);
      if (std::chrono::steady_clock::now() + pause > until_)
        return absl::AbortedError(absl::StrCat(what_, " can't be fetched: ", status.error_message(),
                                               "; tried for ",
                                               FormatDuration(source_.patience_ns)));
      stub_.reset();
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  template <typename Request, typename Response>
  grpc::Status Try(grpc::Status (v1::AgentService::Stub::*method)(grpc::ClientContext*,
                                                                  const Request&, Response*),
                   const Request& request, Response* response) {
    if (stub_ == nullptr) {
      const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = Dial(source_);
      if (!channel.ok())
        return {static_cast<grpc::StatusCode>(channel.status().code()),
                std::string(channel.status().message())};
      stub_ = v1::AgentService::NewStub(*channel);
    }
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCall);
    response->Clear();
    return (stub_.get()->*method)(&context, request, response);
  }

  absl::Status InWords(const grpc::Status& status) const {
    const std::string why = absl::StrCat(what_, " can't be fetched: ", status.error_message());
    const bool gone = status.error_code() == grpc::StatusCode::NOT_FOUND ||
                      status.error_code() == grpc::StatusCode::INVALID_ARGUMENT;
    return gone ? absl::InvalidArgumentError(why) : absl::FailedPreconditionError(why);
  }

  const Source source_;
  const std::string what_;
  const std::chrono::steady_clock::time_point until_;
  std::unique_ptr<v1::AgentService::Stub> stub_;
};

absl::StatusOr<int> FetchPackOf(const Source& source, const v1::AttemptKey& key,
                                const std::string& digest) {
  Caller caller(source, "the directory that came along");
  Fetched fetched;
  v1::ReadPackRequest request;
  *request.mutable_key() = key;
  for (int64_t size = -1; size != fetched.bytes();) {
    request.set_offset(fetched.bytes());
    v1::ReadPackResponse response;
    if (absl::Status read = caller.Call(&v1::AgentService::Stub::ReadPack, request, &response);
        !read.ok()) {
      return absl::IsInvalidArgument(read)
                 ? absl::InvalidArgumentError(
                       absl::StrCat(read.message(), ". Submit the job anew, with its directory"))
                 : read;
    }
    size = response.size_bytes();
    if (size > kPackMaxBytes || (response.data().empty() && size != fetched.bytes())) break;
    if (absl::Status added = fetched.Add(response.data()); !added.ok()) return added;
  }
  if (fetched.Digest() != digest)
    return absl::AbortedError("the directory that came along was damaged on its way");
  return fetched.Release();
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> Dial(const Source& source) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (source.identity_file.empty()) {
    const std::string path(absl::StripPrefix(source.server, "unix://"));
    if (std::string why = WhyNotServedLocally(path, source.trust); !why.empty())
      return absl::UnavailableError(std::move(why));
    return grpc::CreateCustomChannel(absl::StrCat("unix:", path),
                                     grpc::InsecureChannelCredentials(), arguments);
  }
  const absl::StatusOr<Identity> identity = LoadIdentity(source.identity_file);
  if (!identity.ok()) return absl::FailedPreconditionError(identity.status().message());
  return DialWith(*identity, arguments);
}

FetchPack PackFetcher(Source source) {
  return [source = std::move(source)](const v1::AttemptKey& key, const std::string& digest) {
    return FetchPackOf(source, key, digest);
  };
}

FetchSecrets SecretFetcher(Source source) {
  return [source = std::move(source)](
             const v1::AttemptKey& key) -> absl::StatusOr<std::vector<shim::EnvironmentVariable>> {
    Caller caller(source, "the job's secrets");
    v1::ReadSecretsRequest request;
    *request.mutable_key() = key;
    v1::ReadSecretsResponse response;
    if (absl::Status read = caller.Call(&v1::AgentService::Stub::ReadSecrets, request, &response);
        !read.ok())
      return read;
    std::vector<shim::EnvironmentVariable> values;
    for (v1::ReadSecretsResponse::Secret& secret : *response.mutable_secrets())
      values.push_back({secret.variable(), std::move(*secret.mutable_value())});
    return values;
  };
}

}  // namespace muster::agent
