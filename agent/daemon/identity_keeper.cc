#include "agent/daemon/identity_keeper.h"

#include <algorithm>
#include <chrono>

#include "agent/daemon/join.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/units.h"
#include "network/client.h"

namespace muster::agent {
namespace {

constexpr int64_t kAskNs = 5 * kSecond;  // between questions whether to renew
constexpr int64_t kLeastAskNs = 200 * kMillisecond;

}  // namespace

IdentityKeeper::IdentityKeeper(std::string path, Identity identity, std::function<void()> renewed)
    : path_(std::move(path)),
      renewed_(std::move(renewed)),
      identity_(std::make_shared<const Identity>(std::move(identity))),
      thread_([this] { Run(); }) {}

IdentityKeeper::~IdentityKeeper() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  thread_.join();
}

std::shared_ptr<const Identity> IdentityKeeper::newest() const {
  std::lock_guard lock(mutex_);
  return identity_;
}

void IdentityKeeper::Take(Identity identity) {
  if (absl::Status saved = SaveIdentity(path_, identity); !saved.ok())
    LogError("the new certificate is not kept: after a restart the old one counts",
             {{"error", std::string(saved.message())}});
  {
    std::lock_guard lock(mutex_);
    identity_ = std::make_shared<const Identity>(std::move(identity));
  }
  LogInfo("certificate renewed", {{"until", newest()->validity.end_s}});
  renewed_();
}

void IdentityKeeper::Run() {
  std::shared_ptr<grpc::Channel> channel;
  std::shared_ptr<const Identity> of;  // the channel's
  std::string told;                    // what was logged last
  while (true) {
    const std::shared_ptr<const Identity> identity = newest();
    if (of != identity) channel.reset();
    of = identity;
    const int64_t end_s = identity->validity.end_s;
    const int64_t life_s = identity->validity.life_s();
    absl::Status problem;
    const bool asks = identity->validity.Due(WallS());
    if (end_s <= WallS()) {
      absl::StatusOr<Identity> renewed = RenewExpired(*identity);
      problem = renewed.status();
      if (renewed.ok()) Take(*std::move(renewed));
    } else {
      if (channel == nullptr) channel = DialWith(*identity, grpc::ChannelArguments());
      const absl::StatusOr<bool> news = AskNews(channel);
      problem = news.status();
      if (news.ok() && (asks || *news)) {
        absl::StatusOr<Identity> renewed = Renew(*identity);
        problem = renewed.status();
        if (renewed.ok()) {
          Take(*std::move(renewed));
          if (!newest()->validity.Due(WallS()))
            continue;  // at once, so that the scheduler knows that it arrived
          problem = absl::FailedPreconditionError(
              "a new certificate is due at once: this host's clock is ahead of the scheduler's");
        }
      }
      if (!news.ok()) channel.reset();
    }
    std::string text = WhyNotTaken(*identity, std::string(problem.message()));
    if (absl::IsUnauthenticated(problem) || EndedBeforeAnyCall(problem.message()))
      text = WithRemedy(*identity, text);
    if (!problem.ok() && text != told)
      LogWarn("the certificate can't be renewed now", {{"why", text}, {"until", end_s}});
    told = text;
    const int64_t wait_ns = std::clamp(life_s * kSecond / 8, kLeastAskNs, kAskNs);
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, std::chrono::nanoseconds(wait_ns), [this] { return stopping_; }))
      return;
  }
}

}  // namespace muster::agent
