#include "scheduler/trust/providers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/oidc/discovery.h"
#include "common/oidc/json.h"
#include "common/pki/certificates.h"
#include "scheduler/trust/office.h"

namespace muster {

class Providers::Provider {
 public:
  Provider(const IssuerRules* rules, const ProviderParts& parts)
      : rules_(rules), parts_(parts), thread_([this] { Run(); }) {}
  ~Provider() { Stop(); }

  void Check(Jws token, std::string key_hash, Done done) {
    Waiting waiting{std::move(token), std::move(key_hash), std::move(done)};
    if (absl::Status refused = Keep(&waiting); !refused.ok()) return waiting.done(refused);
    changed_.notify_one();
  }
  void Stop() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    if (thread_.joinable()) thread_.join();
    for (Waiting& waiting : waiting_) waiting.done(absl::UnavailableError("musterd is stopping"));
    waiting_.clear();
  }

  std::atomic<int64_t> fetches = 0, failed_fetches = 0;

 private:
  struct Waiting {
    Jws token;
    std::string key_hash;
    Done done;
  };

  // Takes *waiting, or says why not.
  absl::Status Keep(Waiting* waiting) {
    std::lock_guard lock(mutex_);
    if (stop_) return absl::UnavailableError("musterd is stopping");
    if (waiting_.size() >= kWaitingMost)
      return absl::UnavailableError("too many log in at once; try again in a moment");
    waiting_.push_back(std::move(*waiting));
    return absl::OkStatus();
  }
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || !waiting_.empty(); });
      if (stop_) return;
      const Waiting next = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      next.done(Look(next.token, next.key_hash));
      lock.lock();
    }
  }

  absl::StatusOr<Vouched> Look(const Jws& token, const std::string& key_hash) {
    if (absl::Status status = ReadKeysFor(token.key_id); !status.ok()) return status;
    const absl::Status signature = VerifyJws(token, keys_);
    if (!signature.ok()) {
      return RefusedToken(absl::StrCat(signature.message(),
                                       absl::IsNotFound(signature)
                                           ? ". If it has just changed its keys, log in again in "
                                             "half a minute"
                                           : ""));
    }
    absl::StatusOr<Vouched> vouched = CheckClaims(token, *rules_, key_hash, parts_.clock->WallNs());
    if (vouched.ok() && IsUserName(vouched->name)) vouched->kind = parts_.kind_of(vouched->name);
    return vouched;
  }

  // Afterwards keys_ are younger than an hour, and hold the one that is asked for if the provider
  // listed it half a minute ago.
  absl::Status ReadKeysFor(const std::string& key_id) {
    const int64_t now_ns = parts_.clock->MonotonicNs();
    const bool fresh = read_ns_ != 0 && now_ns - read_ns_ < kKeysKeptNs;
    const bool known = std::any_of(keys_.begin(), keys_.end(),
                                   [&](const VerifyingKey& key) { return key.id == key_id; });
    if (fresh && known) return absl::OkStatus();
    // A made-up key id makes nobody wait for a provider that is down, while its keys are young.
    const int64_t rest_ns = failure_.ok() || fresh ? kKeysRestNs : kFailedRestNs;
    if (asked_ns_ != 0 && now_ns - asked_ns_ < rest_ns) return fresh ? absl::OkStatus() : failure_;
    ++fetches;
    absl::StatusOr<std::vector<VerifyingKey>> keys = Fetch();
    asked_ns_ = std::max<int64_t>(parts_.clock->MonotonicNs(), 1);
    if (keys.ok()) {
      failure_ = absl::OkStatus();
      keys_ = *std::move(keys);
      read_ns_ = asked_ns_;
      return failure_;
    }
    ++failed_fetches;
    LogWarn("the keys of an identity provider can't be read",
            {{"issuer", rules_->issuer}, {"error", std::string(keys.status().message())}});
    failure_ = absl::UnavailableError(absl::StrCat(
        "musterd can't read the keys of ", rules_->issuer,
        " now, so that nobody can log in by it; who is logged in isn't concerned. musterd's log "
        "says why. Try again in a moment"));
    return failure_;
  }

  absl::StatusOr<std::vector<VerifyingKey>> Fetch() {
    const std::string at = DiscoveryUrl(rules_->issuer);
    const absl::StatusOr<std::string> told = parts_.fetch(at, rules_->ca_file, &stop_);
    if (!told.ok()) return told.status();
    const absl::StatusOr<Discovery> found = ReadDiscovery(*told, rules_->issuer);
    if (!found.ok()) return Place(found.status(), at);
    const absl::StatusOr<std::string> keys = parts_.fetch(found->keys_url, rules_->ca_file, &stop_);
    if (!keys.ok()) return keys.status();
    absl::StatusOr<std::vector<VerifyingKey>> read = ReadKeySet(*keys);
    return read.ok() ? std::move(read) : Place(read.status(), found->keys_url);
  }
  static absl::Status Place(const absl::Status& status, const std::string& url) {
    return absl::Status(status.code(), absl::StrCat(url, ": what is there ", status.message()));
  }

  const IssuerRules* const rules_;
  const ProviderParts& parts_;
  // The thread's.
  std::vector<VerifyingKey> keys_;
  int64_t read_ns_ = 0, asked_ns_ = 0;  // when keys_ were; when the provider was asked last
  absl::Status failure_;                // of that

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Waiting> waiting_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

Providers::Providers(std::vector<IssuerRules> rules, ProviderParts parts)
    : rules_(std::move(rules)), parts_(std::move(parts)) {
  for (const IssuerRules& issuer : rules_)
    providers_.push_back(std::make_unique<Provider>(&issuer, parts_));
}

Providers::~Providers() { Stop(); }

void Providers::Stop() {
  for (const std::unique_ptr<Provider>& provider : providers_) provider->Stop();
}

void Providers::Check(const std::string& token, const std::string& request, Done done) {
  absl::StatusOr<Jws> read = ReadJws(token);
  if (!read.ok()) return done(RefusedToken(read.status().message()));
  const absl::StatusOr<std::string> key_hash = ReadRequest(request);
  if (!key_hash.ok()) return done(key_hash.status());
  const std::string issuer = TextIn(read->claims, "iss");
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (rules_[i].issuer == issuer)
      return providers_[i]->Check(*std::move(read), *key_hash, std::move(done));
  }
  done(RefusedToken("is of an issuer whose users don't log in here"));
}

void Providers::Count(const absl::Status& outcome) {
  (outcome.ok() ? issued_ : absl::IsUnavailable(outcome) ? unavailable_ : refused_) += 1;
}

ProviderCounts Providers::Counts() const {
  ProviderCounts counts;
  counts.issued = issued_;
  counts.refused = refused_;
  counts.unavailable = unavailable_;
  for (const std::unique_ptr<Provider>& provider : providers_) {
    counts.fetches += provider->fetches;
    counts.failed_fetches += provider->failed_fetches;
  }
  return counts;
}

}  // namespace muster
