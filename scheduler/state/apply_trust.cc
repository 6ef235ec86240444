// Apply: who may come over a network: authorities, tokens, users, certificates.
#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "common/base/units.h"
#include "scheduler/state/applier.h"

namespace muster {
namespace {

void NotBefore(int64_t* next_end_ns, int64_t end_ns) {
  *next_end_ns = *next_end_ns == 0 ? end_ns : std::min(*next_end_ns, end_ns);
}

int64_t EndNs(const pb::IssuedCertificate& certificate) { return certificate.end_s() * kSecond; }
int64_t RenewableUntilNs(const pb::IssuedCertificate& certificate) {
  return EndNs(certificate) + kRenewExpiredNs;
}

// The host that a certificate's uri names, for whosever jobs it is; empty: it is a user's.
std::string HostOf(const std::string& uri) {
  const size_t rest = uri.find('/', std::string("muster://").size());
  if (rest == std::string::npos || uri.compare(rest, 6, "/host/") != 0) return "";
  const size_t name = uri.find('/', rest + 6);  // after the cluster's
  return name == std::string::npos ? "" : uri.substr(0, uri.find('/', name + 1));
}

void RevokeHost(const std::string& uri, int64_t at_ns, int64_t last_end_ns, Trust* trust) {
  pb::RevokedHost& host = trust->revoked_hosts[uri];
  if (host.at_ns() > at_ns) return;
  host.set_uri(uri);
  host.set_forget_ns(
      std::max(host.at_ns() == at_ns ? host.forget_ns() : 0, last_end_ns + kRenewExpiredNs));
  host.set_at_ns(at_ns);
  NotBefore(&trust->next_end_ns, host.forget_ns());
}

// Of these, which have ended just now, the last one of each host that has no other. Whether there
// was one.
bool KeepLastOfHosts(std::vector<pb::IssuedCertificate> ended, Trust* trust) {
  std::set<std::string> have_others;
  for (const auto& [serial, certificate] : trust->certificates) {
    if (certificate.revoked_ns() == 0) have_others.insert(HostOf(certificate.uri()));
  }
  bool any = false;
  for (pb::IssuedCertificate& certificate : ended) {
    const std::string host = HostOf(certificate.uri());
    if (have_others.count(host) != 0) continue;
    pb::IssuedCertificate& last = trust->ended_of_hosts[host];
    if (last.end_s() <= certificate.end_s()) last = std::move(certificate);
    any = true;
  }
  return any;
}

}  // namespace

void Applier::SetTrust(const pb::TrustRecord& record) {
  Trust& trust = *Own(&s_.trust_);
  trust.trust_id = record.trust_id();
  trust.signer = record.signer();
  for (const pb::Authority& authority : record.authorities())
    trust.authorities[authority.version()] = authority;
  for (const pb::NetworkUser& user : record.users()) trust.users[user.name()] = user;
  for (const pb::JoinToken& token : record.tokens()) {
    trust.tokens[token.id()] = token;
    NotBefore(&trust.next_end_ns, token.expires_ns());
  }
  for (const pb::RevokedHost& host : record.revoked_hosts()) {
    trust.revoked_hosts[host.uri()] = host;
    NotBefore(&trust.next_end_ns, host.forget_ns());
  }
  for (const pb::IssuedCertificate& last : record.ended_of_hosts()) {
    trust.ended_of_hosts[HostOf(last.uri())] = last;
    NotBefore(&trust.next_end_ns, RenewableUntilNs(last));
  }
}

void Applier::SetCertificate(const pb::IssuedCertificate& certificate) {
  Trust& trust = *Own(&s_.trust_);
  trust.certificates[certificate.serial()] = certificate;
  NotBefore(&trust.next_end_ns, EndNs(certificate));
  // Of a store from before revoked hosts were rows of their own.
  if (const std::string host = HostOf(certificate.uri());
      certificate.revoked_ns() != 0 && !host.empty())
    RevokeHost(host, certificate.revoked_ns(), EndNs(certificate), &trust);
  s_.changed_certificates_.insert(certificate.serial());
}

// At most two are trusted, and of two the older one signs until the newer one does. A step out of
// its turn changes nothing.
void Applier::On(const pb::AuthorityChanged& e) {
  const Trust& now = *s_.trust_;
  const bool first = now.trust_id.empty();
  if (first != (e.step() == pb::AuthorityChanged::MADE)) return;
  const uint64_t newest = now.authorities.empty() ? 0 : now.authorities.rbegin()->first;
  const bool two = now.authorities.size() == 2;
  switch (e.step()) {
    case pb::AuthorityChanged::MADE:
    case pb::AuthorityChanged::PREPARED: {
      if (two || e.authority().version() <= newest || (first && e.trust_id().empty())) return;
      Trust& trust = *Own(&s_.trust_);
      trust.authorities[e.authority().version()] = e.authority();
      if (!first) break;
      trust.trust_id = e.trust_id();
      trust.signer = e.authority().version();
      break;
    }
    case pb::AuthorityChanged::SIGNS:
      if (!two) return;
      Own(&s_.trust_)->signer = newest;
      break;
    case pb::AuthorityChanged::DROPPED: {
      if (!two || now.signer != newest) return;
      Trust& trust = *Own(&s_.trust_);
      trust.authorities.erase(trust.authorities.begin());
      break;
    }
    default:
      return;
  }
  s_.trust_changed_ = true;
}

void Applier::On(const pb::JoinTokenChanged& e) {
  if (s_.trust_->trust_id.empty() || e.token().id().empty()) return;
  Trust& trust = *Own(&s_.trust_);
  if (e.revoked()) {
    trust.tokens.erase(e.token().id());
  } else if (trust.tokens.emplace(e.token().id(), e.token()).second) {
    NotBefore(&trust.next_end_ns, e.token().expires_ns());
  }
  s_.trust_changed_ = true;
}

void Applier::On(const pb::NetworkUserChanged& e) {
  if (s_.trust_->trust_id.empty() || e.user().name().empty()) return;
  Trust& trust = *Own(&s_.trust_);
  if (e.removed()) {
    trust.users.erase(e.user().name());
  } else {
    trust.users[e.user().name()] = e.user();
  }
  s_.trust_changed_ = true;
}

// A token is spent for one key. The same key may ask again, as a reply may be lost.
void Applier::On(const pb::CertificateIssued& e) {
  if (s_.trust_->trust_id.empty() || e.certificate().serial().empty() ||
      s_.trust_->certificates.count(e.certificate().serial()) != 0)
    return;
  if (!e.token().empty()) {
    const auto known = s_.trust_->tokens.find(e.token());
    if (known == s_.trust_->tokens.end() || known->second.uri() != e.certificate().uri()) return;
    const std::string& spent_for = known->second.key_hash();
    if (!spent_for.empty() && spent_for != e.certificate().key_hash()) return;
    if (!known->second.reusable() && spent_for.empty()) {
      Own(&s_.trust_)->tokens[e.token()].set_key_hash(e.certificate().key_hash());
      s_.trust_changed_ = true;
    }
  }
  SetCertificate(e.certificate());
  if (s_.trust_->ended_of_hosts.count(HostOf(e.certificate().uri())) == 0) return;
  Own(&s_.trust_)->ended_of_hosts.erase(HostOf(e.certificate().uri()));
  s_.trust_changed_ = true;
}

void Applier::On(const pb::CertificatesRevoked& e) {
  if (s_.trust_->trust_id.empty()) return;
  Trust& trust = *Own(&s_.trust_);
  int64_t last_end_ns = s_.now_ns_ + kMostHostLifeNs;  // of one that isn't known, too
  for (auto& [serial, certificate] : trust.certificates) {
    if (!NamesHolder(certificate.uri(), e.uri())) continue;
    last_end_ns = std::max(last_end_ns, EndNs(certificate));
    if (certificate.revoked_ns() != 0) continue;
    certificate.set_revoked_ns(s_.now_ns_);
    s_.changed_certificates_.insert(serial);
  }
  if (const std::string host = HostOf(e.uri()); !host.empty()) {
    RevokeHost(host, s_.now_ns_, last_end_ns, &trust);
    trust.ended_of_hosts.erase(host);
    s_.trust_changed_ = true;
  }
  if (std::erase_if(trust.tokens,
                    [&](const auto& row) { return NamesHolder(row.second.uri(), e.uri()); }) > 0)
    s_.trust_changed_ = true;
}

void Applier::ForgetExpired() {
  if (s_.trust_->next_end_ns == 0 || s_.now_ns_ < s_.trust_->next_end_ns) return;
  Trust& trust = *Own(&s_.trust_);
  trust.next_end_ns = 0;
  for (auto it = trust.tokens.begin(); it != trust.tokens.end();) {
    if (it->second.expires_ns() > s_.now_ns_) {
      NotBefore(&trust.next_end_ns, (it++)->second.expires_ns());
      continue;
    }
    it = trust.tokens.erase(it);
    s_.trust_changed_ = true;
  }
  for (auto it = trust.revoked_hosts.begin(); it != trust.revoked_hosts.end();) {
    if (it->second.forget_ns() > s_.now_ns_) {
      NotBefore(&trust.next_end_ns, (it++)->second.forget_ns());
      continue;
    }
    it = trust.revoked_hosts.erase(it);
    s_.trust_changed_ = true;
  }
  std::vector<pb::IssuedCertificate> ended_now;  // hosts'
  for (auto it = trust.certificates.begin(); it != trust.certificates.end();) {
    if (const int64_t end_ns = EndNs(it->second); end_ns > s_.now_ns_) {
      NotBefore(&trust.next_end_ns, end_ns);
      ++it;
      continue;
    }
    s_.trust_changed_ |= it->second.revoked_ns() != 0;  // what was read of it is kept from now on
    s_.changed_certificates_.insert(it->first);
    if (it->second.revoked_ns() == 0 && !HostOf(it->second.uri()).empty())
      ended_now.push_back(std::move(it->second));
    it = trust.certificates.erase(it);
  }
  if (!ended_now.empty()) s_.trust_changed_ |= KeepLastOfHosts(std::move(ended_now), &trust);
  for (auto it = trust.ended_of_hosts.begin(); it != trust.ended_of_hosts.end();) {
    if (const int64_t until_ns = RenewableUntilNs(it->second); until_ns > s_.now_ns_) {
      NotBefore(&trust.next_end_ns, until_ns);
      ++it;
      continue;
    }
    it = trust.ended_of_hosts.erase(it);
    s_.trust_changed_ = true;
  }
}

}  // namespace muster
