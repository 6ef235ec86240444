#include "scheduler/trust/office.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/pki/mac.h"
#include "common/pki/seal.h"

namespace muster {
namespace {

constexpr size_t kTrustIdChars = 12;
constexpr size_t kNamedMost = 20;
// Certificates that count at once. An agent has one or two, some more after rotations; programs
// that log in by a token get another one each time, and leave some for their user's own logins.
constexpr int64_t kMostOfHost = 500, kMostOfUser = 10'000, kMostByTokens = 9'000;

std::string ContextOf(const std::string& trust_id, uint64_t version) {
  return absl::StrCat("authority/", trust_id, "/", version);
}

Validity LifeFrom(int64_t now_ns, int64_t life_ns) {
  return {(now_ns - kCertificateSkewS * kSecond) / kSecond, (now_ns + life_ns) / kSecond};
}

absl::Status NotWelcome(absl::string_view why) { return absl::UnauthenticatedError(why); }

std::string NameOf(const std::string& uri) {
  const std::optional<Holder> holder = ParseHolder(uri);
  if (!holder.has_value()) return uri;
  return holder->kind == Holder::kHost ? absl::StrCat("host ", holder->cluster, "/", holder->name)
                                       : absl::StrCat("user ", holder->name);
}

// A host that joined anew for one user's jobs, or for everybody's again, is the same host.
std::string UriForAnyJobs(const std::string& uri) {
  std::optional<Holder> holder = ParseHolder(uri);
  if (!holder.has_value()) return uri;
  holder->only_user.clear();
  return UriOf(*holder);
}

// Whether it is a host's that RenewExpired may serve, and that the clusters file still has: one
// that was removed isn't served as a host in any case.
bool MayRenewEnded(const State& state, const pb::IssuedCertificate& certificate, int64_t now_ns) {
  const std::optional<Holder> host = ParseHolder(certificate.uri());
  if (!host.has_value() || host->kind != Holder::kHost ||
      certificate.end_s() * kSecond + kRenewExpiredNs <= now_ns)
    return false;
  const int32_t cluster = state.FindCluster(host->cluster);
  if (cluster < 0) return false;
  if (state.clusters()[cluster].spec.open()) return true;
  const HostId id = state.FindHost(host->cluster, host->name);
  return id != kNoHost && state.host(id).listed;
}

// Each is a row of State until it ends: who renews without end would fill that.
absl::Status CheckRoom(const Trust& trust, Holder holder, int64_t now_ns) {
  const bool host = holder.kind == Holder::kHost;
  const int64_t most = host ? kMostOfHost : holder.token.empty() ? kMostOfUser : kMostByTokens;
  // Those of a user's tokens are the user's, and a host is the same one for whosever jobs it is.
  holder.token.clear();
  holder.only_user.clear();
  const std::string uri = UriOf(holder);
  int64_t has = 0;
  for (const auto& [serial, certificate] : trust.certificates) {
    if (NamesHolder(certificate.uri(), uri) && certificate.revoked_ns() == 0 &&
        certificate.end_s() * kSecond > now_ns)
      ++has;
  }
  if (has < most) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      NameOf(uri), " has ", has, " certificates that haven't ended, which is all there may be. ",
      host ? "Its agent renews without need: look at the host. muster host revoke ends them all, "
             "and a new line lets it in again"
           : "Wait until some have ended: let programs keep their login instead of making one each "
             "time, or have user_life in musterd.yaml shortened"));
}

}  // namespace

std::string TrustedPem(const Trust& trust) {
  std::string pem;
  for (const auto& [version, authority] : trust.authorities) pem += authority.certificate();
  return pem;
}

absl::StatusOr<Presented> ReadPresented(const Trust& trust, std::string_view certificate_pem) {
  const absl::StatusOr<Certificate> read = ReadCertificate(certificate_pem);
  if (!read.ok()) return NotWelcome(read.status().message());
  const int64_t within_s = read->validity.end_s - 1;
  absl::Status refused = NotWelcome("nobody may come over a network here");
  for (const auto& [version, authority] : trust.authorities) {
    const absl::StatusOr<Holder> holder =
        VerifyHolder(certificate_pem, authority.certificate(), within_s);
    if (!holder.ok()) {
      refused = holder.status();
      continue;
    }
    if (holder->kind == Holder::kServer || holder->trust_id != trust.trust_id)
      return NotWelcome("the certificate is of no user and no host of this scheduler");
    return Presented{*holder, read->uri, *read, version};
  }
  return refused;
}

std::string WhyNotTrusted(const Trust& trust, const Holder& holder, const std::string& serial,
                          uint64_t authority) {
  if (trust.authorities.count(authority) == 0)
    return "the authority that signed your certificate is trusted no longer: join again";
  const auto row = trust.certificates.find(serial);
  if (row != trust.certificates.end() && row->second.revoked_ns() != 0)
    return "your certificate was revoked";
  if (holder.kind == Holder::kUser) {
    const auto user = trust.users.find(holder.name);
    if (user == trust.users.end() || user->second.revoked())
      return absl::StrCat("there is no user ", holder.name, " any more");
  }
  if (holder.token.empty()) return "";
  const auto token = trust.tokens.find(holder.token);
  if (token == trust.tokens.end() || token->second.uri() != UriOf(holder))
    return "your token was revoked, or has expired: make another one, muster token create";
  return "";
}

bool WasRevoked(const Trust& trust, const Holder& holder, const Certificate& certificate) {
  if (trust.revoked_hosts.empty() || trust.certificates.count(certificate.serial) != 0)
    return false;
  Holder host = holder;
  host.only_user.clear();
  const auto row = trust.revoked_hosts.find(UriOf(host));
  return row != trust.revoked_hosts.end() &&
         certificate.validity.begin_s + kCertificateSkewS <= row->second.at_ns() / kSecond;
}

pb::Authority Office::NewAuthority(const std::string& trust_id, uint64_t version,
                                   int64_t now_ns) const {
  const std::string key = NewKey();
  const absl::StatusOr<std::string> certificate = NewRoot(
      key, absl::StrCat("Muster ", trust_id, " ", version), LifeFrom(now_ns, lives_.authority_ns));
  MUSTER_CHECK_MSG(certificate.ok(), certificate.status().ToString().c_str());
  pb::Authority authority;
  authority.set_version(version);
  authority.set_certificate(*certificate);
  authority.set_sealed_key(Seal(master_key_, ContextOf(trust_id, version), key));
  return authority;
}

pb::Event Office::Make(int64_t now_ns) const {
  pb::Event event;
  pb::AuthorityChanged* changed = event.mutable_authority_changed();
  changed->set_step(pb::AuthorityChanged::MADE);
  changed->set_trust_id(RandomId().substr(0, kTrustIdChars));
  *changed->mutable_authority() = NewAuthority(changed->trust_id(), 1, now_ns);
  return event;
}

absl::Status Office::CheckKey(const Trust& trust) const {
  for (const auto& [version, authority] : trust.authorities) {
    const absl::StatusOr<std::string> key =
        Unseal(master_key_, ContextOf(trust.trust_id, version), authority.sealed_key());
    if (!key.ok()) {
      return absl::FailedPreconditionError(
          "the master key doesn't open the authority's key in the store: it is another one's. "
          "Name the file that belongs to this store, or restore it from where you keep it");
    }
  }
  return absl::OkStatus();
}

std::string Office::KeyFor(std::string_view purpose) const {
  return HmacSha256(master_key_, absl::StrCat("key/", std::string(purpose)));
}

std::vector<std::string> Office::Behind(const State& state, int64_t now_ns, const InUse& in_use) {
  const Trust& trust = state.trust();
  if (trust.authorities.size() < 2) return {};
  const uint64_t newest = trust.authorities.rbegin()->first;
  const bool signs = trust.signer == newest;
  std::map<std::string, bool> ready;  // by uri
  const auto look = [&](const pb::IssuedCertificate& certificate) {
    // Its holder joins again in any case: the authority was dropped by force.
    if (trust.authorities.count(certificate.authority()) == 0) return;
    const bool new_enough = (signs ? certificate.authority() : certificate.trusts()) >= newest;
    ready[UriForAnyJobs(certificate.uri())] |= new_enough && in_use(certificate.serial());
  };
  for (const auto& [serial, certificate] : trust.certificates) {
    if (certificate.revoked_ns() != 0) continue;
    if (certificate.end_s() * kSecond > now_ns || MayRenewEnded(state, certificate, now_ns))
      look(certificate);
  }
  for (const auto& [uri, last] : trust.ended_of_hosts) {
    if (MayRenewEnded(state, last, now_ns)) look(last);
  }
  std::vector<std::string> behind;
  for (const auto& [uri, is] : ready) {
    if (!is) behind.push_back(NameOf(uri));
  }
  return behind;
}

bool Office::Outdated(const Trust& trust, const std::string& serial) {
  const auto row = trust.certificates.find(serial);
  if (row == trust.certificates.end()) return true;
  return row->second.authority() != trust.signer ||
         (!trust.authorities.empty() && row->second.trusts() < trust.authorities.rbegin()->first);
}

absl::StatusOr<pb::Event> Office::Turn(const State& state, pb::AuthorityChanged::Step step,
                                       bool force, int64_t now_ns, const InUse& in_use) const {
  const Trust& trust = state.trust();
  if (trust.trust_id.empty())
    return absl::FailedPreconditionError("there is no authority: musterd.yaml has no tls:");
  const bool two = trust.authorities.size() == 2;
  const uint64_t newest = trust.authorities.rbegin()->first;
  pb::Event event;
  pb::AuthorityChanged* changed = event.mutable_authority_changed();
  changed->set_step(step);
  switch (step) {
    case pb::AuthorityChanged::PREPARED:
      if (two) {
        return absl::FailedPreconditionError(
            absl::StrCat("a rotation is under way: next is muster ca rotate ",
                         trust.signer == newest ? "drop" : "sign"));
      }
      *changed->mutable_authority() = NewAuthority(trust.trust_id, newest + 1, now_ns);
      return event;
    case pb::AuthorityChanged::SIGNS:
      if (!two || trust.signer == newest) {
        return absl::FailedPreconditionError(two ? "it signs already: next is muster ca rotate drop"
                                                 : "first: muster ca rotate prepare");
      }
      break;
    case pb::AuthorityChanged::DROPPED:
      if (!two || trust.signer != newest) {
        return absl::FailedPreconditionError(
            absl::StrCat("first: muster ca rotate ", two ? "sign" : "prepare"));
      }
      break;
    default:
      return absl::InvalidArgumentError("step: must be prepare, sign or drop");
  }
  std::vector<std::string> behind = Behind(state, now_ns, in_use);
  if (behind.empty() || force) return event;
  const size_t count = behind.size();
  if (count > kNamedMost) behind.resize(kNamedMost);
  return absl::FailedPreconditionError(absl::StrCat(
      count, count == 1 ? " holder hasn't" : " holders haven't",
      " renewed yet: ", absl::StrJoin(behind, ", "), count > kNamedMost ? ", …" : "",
      ". Agents do within seconds, those of hosts that are off once they are back; a host that is "
      "gone is waited for no longer after muster host revoke. A user's login asks every ten "
      "minutes, and only while commands use it. With --force these must join again"));
}

absl::StatusOr<std::string> Office::Sign(const Trust& trust, std::string_view request,
                                         const Holder& holder, int64_t life_ns,
                                         int64_t now_ns) const {
  const auto signer = trust.authorities.find(trust.signer);
  if (signer == trust.authorities.end())
    return absl::FailedPreconditionError("there is no authority: musterd.yaml has no tls:");
  const absl::StatusOr<std::string> key =
      Unseal(master_key_, ContextOf(trust.trust_id, trust.signer), signer->second.sealed_key());
  if (!key.ok()) return key.status();
  return muster::Issue(request, holder, LifeFrom(now_ns, life_ns), signer->second.certificate(),
                       *key);
}

absl::StatusOr<Office::Issued> Office::Issue(const Trust& trust, std::string_view request,
                                             const Holder& holder, const pb::NetworkUser* user,
                                             const std::string& token, int64_t now_ns) const {
  int64_t life_ns = holder.kind == Holder::kHost ? lives_.host_ns : lives_.user_ns;
  if (!holder.token.empty()) {
    const auto row = trust.tokens.find(holder.token);
    if (row == trust.tokens.end() || row->second.expires_ns() <= now_ns)
      return NotWelcome("the token was revoked, or has expired");
    life_ns = std::min(life_ns, row->second.expires_ns() - now_ns);
  } else if (user != nullptr && user->log_in_again_ns() != 0) {
    if (user->log_in_again_ns() <= now_ns)
      return NotWelcome("it is time to log in by your provider again: muster login --oidc");
    life_ns = std::min(life_ns, user->log_in_again_ns() - now_ns);
  }
  if (absl::Status status = CheckRoom(trust, holder, now_ns); !status.ok()) return status;
  absl::StatusOr<std::string> pem = Sign(trust, request, holder, life_ns, now_ns);
  if (!pem.ok()) return pem.status();
  const absl::StatusOr<Certificate> made = ReadCertificate(*pem);
  if (!made.ok()) return made.status();
  Issued issued;
  pb::CertificateIssued* event = issued.event.mutable_certificate_issued();
  event->set_token(token);
  pb::IssuedCertificate* row = event->mutable_certificate();
  row->set_serial(made->serial);
  row->set_uri(made->uri);
  row->set_end_s(made->validity.end_s);
  row->set_key_hash(made->key_hash);
  row->set_authority(trust.signer);
  row->set_trusts(trust.authorities.rbegin()->first);
  issued.certificate = *std::move(pem);
  return issued;
}

absl::StatusOr<Office::Issued> Office::Join(const Trust& trust, std::string_view token,
                                            std::string_view request, int64_t now_ns) const {
  // One answer for all that is wrong with a token: it tells nothing about others.
  absl::Status refused =
      NotWelcome("the token is unknown, spent, revoked or older than it may be. Ask for a new one");
  const std::optional<Token> given = ParseToken(token);
  if (!given.has_value()) return refused;
  const auto row = trust.tokens.find(given->id);
  if (row == trust.tokens.end() || !HasSecret(*given, row->second.secret_hash()) ||
      row->second.expires_ns() <= now_ns)
    return refused;
  const absl::StatusOr<std::string> key_hash = ReadRequest(request);
  if (!key_hash.ok()) return key_hash.status();
  if (!row->second.key_hash().empty() && row->second.key_hash() != *key_hash) return refused;
  const std::optional<Holder> holder = ParseHolder(row->second.uri());
  if (!holder.has_value()) return refused;
  return Issue(trust, request, *holder, nullptr, given->id, now_ns);
}

absl::StatusOr<Office::Issued> Office::Renew(const Trust& trust, const Holder& holder,
                                             std::string_view request, int64_t now_ns) const {
  const auto user = trust.users.find(holder.name);
  const bool known = holder.kind == Holder::kUser && user != trust.users.end();
  return Issue(trust, request, holder, known ? &user->second : nullptr, "", now_ns);
}

absl::StatusOr<Office::Issued> Office::RenewExpired(const Trust& trust,
                                                    std::string_view certificate,
                                                    std::string_view request,
                                                    int64_t now_ns) const {
  const absl::StatusOr<Presented> presented = ReadPresented(trust, certificate);
  if (!presented.ok()) return presented.status();
  if (presented->holder.kind != Holder::kHost)
    return NotWelcome("only hosts renew a certificate that has expired: muster login");
  if (const std::string why = WhyNotTrusted(trust, presented->holder, presented->certificate.serial,
                                            presented->authority);
      !why.empty())
    return NotWelcome(why);
  if (WasRevoked(trust, presented->holder, presented->certificate))
    return NotWelcome("the host was revoked after it got this certificate: join again");
  if (presented->certificate.validity.end_s * kSecond + kRenewExpiredNs <= now_ns)
    return NotWelcome("the certificate expired more than 90 days ago: join again");
  const absl::StatusOr<std::string> key_hash = ReadRequest(request);
  if (!key_hash.ok()) return key_hash.status();
  if (*key_hash != presented->certificate.key_hash)
    return NotWelcome("the request is by another key than the certificate's");
  return Issue(trust, request, presented->holder, nullptr, "", now_ns);
}

absl::StatusOr<std::string> Office::ServerIdentity(const Trust& trust, int64_t now_ns) const {
  const std::string key = NewKey();
  const absl::StatusOr<std::string> request = NewRequest(key);
  if (!request.ok()) return request.status();
  const absl::StatusOr<std::string> certificate = Sign(
      trust, *request, Holder{Holder::kServer, trust.trust_id, "", ""}, lives_.server_ns, now_ns);
  if (!certificate.ok()) return certificate.status();
  return absl::StrCat(key, *certificate, trust.authorities.at(trust.signer).certificate());
}

}  // namespace muster
