#include "agent/daemon/fetcher.h"

#include <errno.h>
#include <grpcpp/grpcpp.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "agent/shim/durable.h"
#include "common/base/files.h"
#include "common/pack/format.h"
#include "common/pki/sha256.h"
#include "muster/v1/agent_service.grpc.pb.h"
#include "network/client.h"
#include "network/identity.h"

namespace muster::agent {
namespace {

constexpr std::chrono::seconds kCall(10);
// A scheduler that is restarted is back by then; whoever prepares waits no longer either.
constexpr std::chrono::seconds kPatience(60);
constexpr std::chrono::milliseconds kPause(200);

absl::StatusOr<std::shared_ptr<grpc::Channel>> Dial(const std::string& server,
                                                    const std::string& identity_file) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (identity_file.empty()) {
    return grpc::CreateCustomChannel(absl::StrCat("unix:", absl::StripPrefix(server, "unix://")),
                                     grpc::InsecureChannelCredentials(), arguments);
  }
  const absl::StatusOr<Identity> identity = LoadIdentity(identity_file);
  if (!identity.ok()) return identity.status();
  return DialWith(*identity, std::move(arguments));
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

// Calls until it is answered. INVALID_ARGUMENT: what is asked for isn't there any more;
// FAILED_PRECONDITION: nobody answers in time, or it is refused.
class Caller {
 public:
  // `what`: for people.
  Caller(std::string server, std::string identity_file, std::string what)
      : server_(std::move(server)),
        identity_file_(std::move(identity_file)),
        what_(std::move(what)) {}

  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (v1::AgentService::Stub::*method)(grpc::ClientContext*,
                                                                   const Request&, Response*),
                    const Request& request, Response* response) {
    while (true) {
      if (stub_ == nullptr) {
        const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel =
            Dial(server_, identity_file_);
        if (!channel.ok()) return absl::FailedPreconditionError(channel.status().message());
        stub_ = v1::AgentService::NewStub(*channel);
      }
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + kCall);
      response->Clear();
      const grpc::Status status = (stub_.get()->*method)(&context, request, response);
      if (status.ok()) return absl::OkStatus();
      const bool again = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
      if (!again || std::chrono::steady_clock::now() > until_) return InWords(status);
      stub_.reset();
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  absl::Status InWords(const grpc::Status& status) const {
    const std::string why = absl::StrCat(what_, " can't be fetched: ", status.error_message());
    const bool gone = status.error_code() == grpc::StatusCode::NOT_FOUND ||
                      status.error_code() == grpc::StatusCode::INVALID_ARGUMENT;
    return gone ? absl::InvalidArgumentError(why) : absl::FailedPreconditionError(why);
  }

  const std::string server_, identity_file_, what_;
  const std::chrono::steady_clock::time_point until_ = std::chrono::steady_clock::now() + kPatience;
  std::unique_ptr<v1::AgentService::Stub> stub_;
};

absl::StatusOr<int> FetchPackOf(const std::string& server, const std::string& identity_file,
                                const v1::AttemptKey& key, const std::string& digest) {
  Caller caller(server, identity_file, "the directory that came along");
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
    return absl::FailedPreconditionError("the directory that came along was damaged on its way");
  return fetched.Release();
}

}  // namespace

FetchPack PackFetcher(std::string server, std::string identity_file) {
  return [server = std::move(server), identity_file = std::move(identity_file)](
             const v1::AttemptKey& key, const std::string& digest) {
    return FetchPackOf(server, identity_file, key, digest);
  };
}

FetchSecrets SecretFetcher(std::string server, std::string identity_file) {
  return [server = std::move(server), identity_file = std::move(identity_file)](
             const v1::AttemptKey& key) -> absl::StatusOr<std::vector<shim::EnvironmentVariable>> {
    Caller caller(server, identity_file, "the job's secrets");
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
