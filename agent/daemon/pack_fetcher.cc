#include "agent/daemon/pack_fetcher.h"

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

absl::StatusOr<int> Fetch(const std::string& server, const std::string& identity_file,
                          const v1::AttemptKey& key, const std::string& digest) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  Fetched fetched;
  std::unique_ptr<v1::AgentService::Stub> stub;
  v1::ReadPackRequest request;
  *request.mutable_key() = key;
  for (int64_t size = -1; size != fetched.bytes();) {
    if (stub == nullptr) {
      const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = Dial(server, identity_file);
      if (!channel.ok()) return absl::FailedPreconditionError(channel.status().message());
      stub = v1::AgentService::NewStub(*channel);
    }
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kCall);
    request.set_offset(fetched.bytes());
    v1::ReadPackResponse response;
    const grpc::Status status = stub->ReadPack(&context, request, &response);
    if (status.ok()) {
      size = response.size_bytes();
      if (response.data().empty() && size != fetched.bytes()) break;
      if (size > kPackMaxBytes) break;
      if (absl::Status added = fetched.Add(response.data()); !added.ok()) return added;
      continue;
    }
    const bool again = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                       status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    if (!again || std::chrono::steady_clock::now() > until) {
      const std::string why =
          absl::StrCat("the directory that came along can't be fetched: ", status.error_message());
      return status.error_code() == grpc::StatusCode::NOT_FOUND
                 ? absl::InvalidArgumentError(
                       absl::StrCat(why, ". Submit the job anew, with its directory"))
                 : absl::FailedPreconditionError(why);
    }
    stub.reset();
    std::this_thread::sleep_for(kPause);
  }
  if (fetched.Digest() != digest)
    return absl::FailedPreconditionError("the directory that came along was damaged on its way");
  return fetched.Release();
}

}  // namespace

FetchPack PackFetcher(std::string server, std::string identity_file) {
  return [server = std::move(server), identity_file = std::move(identity_file)](
             const v1::AttemptKey& key, const std::string& digest) {
    return Fetch(server, identity_file, key, digest);
  };
}

}  // namespace muster::agent
