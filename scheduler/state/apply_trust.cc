// Apply: who may come over a network: the authority, tokens of hosts, certificates.
#include <algorithm>
#include <limits>

#include "common/base/units.h"
#include "scheduler/state/applier.h"

namespace muster {
namespace {

void NotBefore(int64_t* next_end_ns, int64_t end_ns) {
  *next_end_ns = *next_end_ns == 0 ? end_ns : std::min(*next_end_ns, end_ns);
}

}  // namespace

void Applier::SetTrust(const pb::TrustRecord& record) {
  Trust& trust = *Own(&s_.trust_);
  trust.trust_id = record.trust_id();
  trust.root = record.root();
  trust.issuing = record.issuing();
  for (const pb::HostToken& token : record.tokens()) {
    trust.tokens[token.id()] = token;
    NotBefore(&trust.next_end_ns, token.expires_ns());
  }
}

void Applier::SetCertificate(const pb::IssuedCertificate& certificate) {
  Trust& trust = *Own(&s_.trust_);
  trust.certificates[certificate.serial()] = certificate;
  NotBefore(&trust.next_end_ns, certificate.end_s() * kSecond);
  s_.changed_certificates_.insert(certificate.serial());
}

void Applier::On(const pb::AuthorityMade& e) {
  if (!s_.trust_->trust_id.empty() || e.trust_id().empty()) return;
  Trust& trust = *Own(&s_.trust_);
  trust.trust_id = e.trust_id();
  trust.root = e.root();
  trust.issuing = e.issuing();
  s_.trust_changed_ = true;
}

void Applier::On(const pb::HostTokenChanged& e) {
  if (s_.trust_->trust_id.empty() || e.token().id().empty()) return;
  Trust& trust = *Own(&s_.trust_);
  if (e.revoked()) {
    trust.tokens.erase(e.token().id());
  } else if (trust.tokens.emplace(e.token().id(), e.token()).second) {
    NotBefore(&trust.next_end_ns, e.token().expires_ns());
  }
  s_.trust_changed_ = true;
}

// A token is spent for one key. The same key may ask again, as a reply may be lost.
void Applier::On(const pb::CertificateIssued& e) {
  if (s_.trust_->trust_id.empty() || e.certificate().serial().empty()) return;
  if (!e.token().empty()) {
    const auto known = s_.trust_->tokens.find(e.token());
    if (known == s_.trust_->tokens.end()) return;
    const std::string& spent_for = known->second.key_hash();
    if (!spent_for.empty() && spent_for != e.certificate().key_hash()) return;
    Own(&s_.trust_)->tokens[e.token()].set_key_hash(e.certificate().key_hash());
    s_.trust_changed_ = true;
  }
  SetCertificate(e.certificate());
}

void Applier::On(const pb::CertificatesRevoked& e) {
  Trust& trust = *Own(&s_.trust_);
  for (auto& [serial, certificate] : trust.certificates) {
    if (certificate.uri() != e.uri() || certificate.revoked_ns() != 0) continue;
    certificate.set_revoked_ns(s_.now_ns_);
    s_.changed_certificates_.insert(serial);
  }
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
  for (auto it = trust.certificates.begin(); it != trust.certificates.end();) {
    if (it->second.end_s() * kSecond > s_.now_ns_) {
      NotBefore(&trust.next_end_ns, (it++)->second.end_s() * kSecond);
      continue;
    }
    s_.changed_certificates_.insert(it->first);
    it = trust.certificates.erase(it);
  }
}

}  // namespace muster
