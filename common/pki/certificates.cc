#include "common/pki/certificates.h"

#include <openssl/bio.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <memory>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace muster {
namespace {

template <typename T, void (*Free)(T*)>
struct Freer {
  void operator()(T* object) const { Free(object); }
};
void FreeBio(BIO* bio) { BIO_free_all(bio); }
void FreeStack(STACK_OF(X509) * stack) { sk_X509_free(stack); }

using Bio = std::unique_ptr<BIO, Freer<BIO, FreeBio>>;
using Key = std::unique_ptr<EVP_PKEY, Freer<EVP_PKEY, EVP_PKEY_free>>;
using Cert = std::unique_ptr<X509, Freer<X509, X509_free>>;
using Request = std::unique_ptr<X509_REQ, Freer<X509_REQ, X509_REQ_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Freer<GENERAL_NAMES, GENERAL_NAMES_free>>;
using Store = std::unique_ptr<X509_STORE, Freer<X509_STORE, X509_STORE_free>>;
using StoreContext = std::unique_ptr<X509_STORE_CTX, Freer<X509_STORE_CTX, X509_STORE_CTX_free>>;

// OpenSSL's newest reason; its queue is empty afterwards.
std::string Reason() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* text = code == 0 ? nullptr : ERR_reason_error_string(code);
  return text == nullptr ? "unknown reason" : text;
}

absl::Status Refused(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", Reason()));
}

absl::StatusOr<Bio> Open(std::string_view pem) {
  if (pem.size() > kMaxPemBytes)
    return absl::InvalidArgumentError(
        absl::StrCat("has ", pem.size(), " bytes; at most ", kMaxPemBytes));
  return Bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<size_t>(size));
}

template <typename Write>
std::string ToPem(Write write) {
  Bio bio(BIO_new(BIO_s_mem()));
  MUSTER_CHECK(bio != nullptr && write(bio.get()) == 1);
  return TextOf(bio.get());
}

int NoPassword(char*, int, int, void*) { return -1; }

bool OnP256(EVP_PKEY* key) {
  std::array<char, 64> group{};
  size_t size = 0;
  return key != nullptr && EVP_PKEY_is_a(key, "EC") == 1 &&
         EVP_PKEY_get_group_name(key, group.data(), group.size(), &size) == 1 &&
         std::string_view(group.data(), size) == "prime256v1";
}

absl::StatusOr<Key> ReadKey(std::string_view pem) {
  absl::StatusOr<Bio> bio = Open(pem);
  if (!bio.ok()) return bio.status();
  Key key(PEM_read_bio_PrivateKey(bio->get(), nullptr, NoPassword, nullptr));
  if (key == nullptr) return Refused("holds no private key (PKCS#8, not encrypted)");
  if (!OnP256(key.get())) return absl::InvalidArgumentError("its private key isn't on P-256");
  return key;
}

absl::StatusOr<std::vector<Cert>> ReadChain(std::string_view pem) {
  absl::StatusOr<Bio> bio = Open(pem);
  if (!bio.ok()) return bio.status();
  std::vector<Cert> chain;
  while (true) {
    Cert cert(PEM_read_bio_X509(bio->get(), nullptr, NoPassword, nullptr));
    if (cert == nullptr) break;
    chain.push_back(std::move(cert));
  }
  // The end of the text is told as an error, too: no further line begins a certificate.
  const unsigned long code = ERR_peek_last_error();
  const bool at_end =
      ERR_GET_LIB(code) == ERR_LIB_PEM && ERR_GET_REASON(code) == PEM_R_NO_START_LINE;
  if (!at_end) return Refused("a certificate in it can't be read");
  ERR_clear_error();
  if (chain.empty()) return absl::InvalidArgumentError("holds no certificate");
  return chain;
}

std::string Hash(const unsigned char* bytes, size_t size) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  MUSTER_CHECK(EVP_Digest(bytes, size, digest.data(), &length, EVP_sha256(), nullptr) == 1);
  return absl::StrCat("sha256:", absl::BytesToHexString(absl::string_view(
                                     reinterpret_cast<const char*>(digest.data()), length)));
}

std::string PublicHash(EVP_PKEY* key) {
  unsigned char* der = nullptr;
  const int size = i2d_PUBKEY(key, &der);
  MUSTER_CHECK(size > 0);
  std::string hash = Hash(der, static_cast<size_t>(size));
  OPENSSL_free(der);
  return hash;
}

// Its signature is right, and its key is one of ours.
absl::StatusOr<Request> CheckedRequest(std::string_view pem) {
  absl::StatusOr<Bio> bio = Open(pem);
  if (!bio.ok()) return bio.status();
  Request request(PEM_read_bio_X509_REQ(bio->get(), nullptr, NoPassword, nullptr));
  if (request == nullptr) return Refused("holds no request for a certificate");
  EVP_PKEY* key = X509_REQ_get0_pubkey(request.get());
  if (!OnP256(key)) return absl::InvalidArgumentError("the request's key isn't on P-256");
  if (X509_REQ_verify(request.get(), key) != 1)
    return Refused("the request isn't signed by its own key");
  return request;
}

void AddExtension(X509* cert, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, cert, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str());
  MUSTER_CHECK(extension != nullptr && X509_add_ext(cert, extension, -1) == 1);
  X509_EXTENSION_free(extension);
}

// Without subject and extensions. Serials are 159 random bits: nobody has to count, and a store
// that was restored gives none twice.
Cert Blank(EVP_PKEY* public_key, Validity validity) {
  Cert cert(X509_new());
  std::array<unsigned char, 20> serial{};
  MUSTER_CHECK(RAND_bytes(serial.data(), static_cast<int>(serial.size())) == 1);
  serial[0] = static_cast<unsigned char>((serial[0] & 0x7F) | 0x40);  // positive, of fixed length
  BIGNUM* number = BN_bin2bn(serial.data(), static_cast<int>(serial.size()), nullptr);
  MUSTER_CHECK(number != nullptr);
  BN_to_ASN1_INTEGER(number, X509_get_serialNumber(cert.get()));
  BN_free(number);
  MUSTER_CHECK(X509_set_version(cert.get(), X509_VERSION_3) == 1 &&
               X509_set_pubkey(cert.get(), public_key) == 1 &&
               ASN1_TIME_set(X509_getm_notBefore(cert.get()), validity.begin_s) != nullptr &&
               ASN1_TIME_set(X509_getm_notAfter(cert.get()), validity.end_s) != nullptr);
  return cert;
}

void SetCommonName(X509_NAME* subject, std::string_view name) {
  MUSTER_CHECK(X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8,
                                          reinterpret_cast<const unsigned char*>(name.data()),
                                          static_cast<int>(std::min<size_t>(name.size(), 64)), -1,
                                          0) == 1);
}

std::string SignedPem(X509* cert, EVP_PKEY* key) {
  MUSTER_CHECK(X509_sign(cert, key, EVP_sha256()) > 0);
  return ToPem([&](BIO* bio) { return PEM_write_bio_X509(bio, cert); });
}

int64_t SecondsOf(const ASN1_TIME* time) {
  tm fields{};
  return ASN1_TIME_to_tm(time, &fields) == 1 ? static_cast<int64_t>(timegm(&fields)) : 0;
}

struct Issuer {
  Cert cert;
  Key key;
};

absl::StatusOr<Issuer> ReadIssuer(std::string_view pem, std::string_view key_pem) {
  absl::StatusOr<std::vector<Cert>> chain = ReadChain(pem);
  if (!chain.ok()) return chain.status();
  absl::StatusOr<Key> key = ReadKey(key_pem);
  if (!key.ok()) return key.status();
  if (X509_check_private_key(chain->front().get(), key->get()) != 1)
    return Refused("the authority's key and certificate don't belong together");
  return Issuer{std::move(chain->front()), *std::move(key)};
}

// Neither begins before its issuer nor outlives it.
Validity Within(Validity wanted, X509* issuer) {
  return {std::max(wanted.begin_s, SecondsOf(X509_get0_notBefore(issuer))),
          std::min(wanted.end_s, SecondsOf(X509_get0_notAfter(issuer)))};
}

// The one URI among the alternative names; of several none counts.
std::string UriAmong(X509* cert) {
  const Names names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(cert, NID_subject_alt_name, nullptr, nullptr)));
  std::string uri;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    if (!uri.empty()) return "";
    const ASN1_IA5STRING* text = name->d.uniformResourceIdentifier;
    uri.assign(reinterpret_cast<const char*>(ASN1_STRING_get0_data(text)),
               static_cast<size_t>(ASN1_STRING_length(text)));
  }
  return uri;
}

Certificate Describe(X509* cert) {
  Certificate out;
  BIGNUM* number = ASN1_INTEGER_to_BN(X509_get0_serialNumber(cert), nullptr);
  if (number != nullptr) {
    std::string bytes(static_cast<size_t>(BN_num_bytes(number)), '\0');
    BN_bn2bin(number, reinterpret_cast<unsigned char*>(bytes.data()));
    out.serial = absl::BytesToHexString(bytes);
    BN_free(number);
  }
  unsigned char* der = nullptr;
  const int size = i2d_X509(cert, &der);
  if (size > 0) {
    out.fingerprint = Hash(der, static_cast<size_t>(size));
    OPENSSL_free(der);
  }
  if (EVP_PKEY* key = X509_get0_pubkey(cert); key != nullptr) out.key_hash = PublicHash(key);
  out.authority = X509_check_ca(cert) == 1;
  out.uri = UriAmong(cert);
  out.validity = {SecondsOf(X509_get0_notBefore(cert)), SecondsOf(X509_get0_notAfter(cert))};
  return out;
}

}  // namespace

std::string NewKey() {
  const Key key(EVP_EC_gen("P-256"));
  MUSTER_CHECK(key != nullptr);
  return ToPem([&](BIO* bio) {
    return PEM_write_bio_PKCS8PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
  });
}

absl::StatusOr<std::string> KeyHash(std::string_view key_pem) {
  absl::StatusOr<Key> key = ReadKey(key_pem);
  if (!key.ok()) return key.status();
  return PublicHash(key->get());
}

absl::StatusOr<std::string> NewRequest(std::string_view key_pem) {
  absl::StatusOr<Key> key = ReadKey(key_pem);
  if (!key.ok()) return key.status();
  const Request request(X509_REQ_new());
  MUSTER_CHECK(X509_REQ_set_version(request.get(), X509_REQ_VERSION_1) == 1 &&
               X509_REQ_set_pubkey(request.get(), key->get()) == 1 &&
               X509_REQ_sign(request.get(), key->get(), EVP_sha256()) > 0);
  return ToPem([&](BIO* bio) { return PEM_write_bio_X509_REQ(bio, request.get()); });
}

absl::StatusOr<std::string> ReadRequest(std::string_view request_pem) {
  absl::StatusOr<Request> request = CheckedRequest(request_pem);
  if (!request.ok()) return request.status();
  return PublicHash(X509_REQ_get0_pubkey(request->get()));
}

absl::StatusOr<std::string> NewRoot(std::string_view key_pem, std::string_view name,
                                    Validity validity) {
  absl::StatusOr<Key> key = ReadKey(key_pem);
  if (!key.ok()) return key.status();
  const Cert cert = Blank(key->get(), validity);
  SetCommonName(X509_get_subject_name(cert.get()), name);
  X509_set_issuer_name(cert.get(), X509_get_subject_name(cert.get()));
  AddExtension(cert.get(), cert.get(), NID_basic_constraints, "critical,CA:TRUE,pathlen:0");
  AddExtension(cert.get(), cert.get(), NID_key_usage, "critical,keyCertSign,cRLSign");
  AddExtension(cert.get(), cert.get(), NID_subject_key_identifier, "hash");
  return SignedPem(cert.get(), key->get());
}

absl::StatusOr<std::string> Issue(std::string_view request_pem, const Holder& holder,
                                  Validity validity, std::string_view issuer_pem,
                                  std::string_view issuer_key_pem) {
  const std::string uri = UriOf(holder);
  if (ParseHolder(uri) != holder)
    return absl::InvalidArgumentError(absl::StrCat(uri, " can't name the holder of a certificate"));
  absl::StatusOr<Request> request = CheckedRequest(request_pem);
  if (!request.ok()) return request.status();
  absl::StatusOr<Issuer> issuer = ReadIssuer(issuer_pem, issuer_key_pem);
  if (!issuer.ok()) return issuer.status();
  X509* above = issuer->cert.get();
  const Cert cert = Blank(X509_REQ_get0_pubkey(request->get()), Within(validity, above));
  SetCommonName(X509_get_subject_name(cert.get()),
                holder.kind == Holder::kServer ? ServerName(holder.trust_id) : holder.name);
  X509_set_issuer_name(cert.get(), X509_get_subject_name(above));
  const bool server = holder.kind == Holder::kServer;
  AddExtension(cert.get(), above, NID_basic_constraints, "critical,CA:FALSE");
  AddExtension(cert.get(), above, NID_key_usage, "critical,digitalSignature");
  AddExtension(cert.get(), above, NID_ext_key_usage, server ? "serverAuth" : "clientAuth");
  AddExtension(cert.get(), above, NID_subject_alt_name,
               server ? absl::StrCat("URI:", uri, ",DNS:", ServerName(holder.trust_id))
                      : absl::StrCat("URI:", uri));
  AddExtension(cert.get(), above, NID_subject_key_identifier, "hash");
  AddExtension(cert.get(), above, NID_authority_key_identifier, "keyid:always");
  return SignedPem(cert.get(), issuer->key.get());
}

absl::StatusOr<std::vector<Certificate>> ReadCertificates(std::string_view pem) {
  absl::StatusOr<std::vector<Cert>> chain = ReadChain(pem);
  if (!chain.ok()) return chain.status();
  std::vector<Certificate> out;
  for (const Cert& cert : *chain) out.push_back(Describe(cert.get()));
  return out;
}

absl::StatusOr<Certificate> ReadCertificate(std::string_view pem) {
  absl::StatusOr<std::vector<Certificate>> all = ReadCertificates(pem);
  if (!all.ok()) return all.status();
  return all->front();
}

absl::StatusOr<Holder> VerifyHolder(std::string_view chain_pem, std::string_view roots_pem,
                                    int64_t now_s) {
  absl::StatusOr<std::vector<Cert>> chain = ReadChain(chain_pem);
  if (!chain.ok()) return chain.status();
  absl::StatusOr<std::vector<Cert>> roots = ReadChain(roots_pem);
  if (!roots.ok()) return roots.status();
  const Store store(X509_STORE_new());
  for (const Cert& root : *roots) MUSTER_CHECK(X509_STORE_add_cert(store.get(), root.get()) == 1);
  const std::unique_ptr<STACK_OF(X509), Freer<STACK_OF(X509), FreeStack>> others(
      sk_X509_new_null());
  for (size_t i = 1; i < chain->size(); ++i) sk_X509_push(others.get(), (*chain)[i].get());
  const StoreContext context(X509_STORE_CTX_new());
  X509* leaf = chain->front().get();
  MUSTER_CHECK(X509_STORE_CTX_init(context.get(), store.get(), leaf, others.get()) == 1);
  const std::optional<Holder> holder = ParseHolder(UriAmong(leaf));
  if (!holder.has_value())
    return absl::UnauthenticatedError("the certificate names no user, host or server of Muster");
  X509_VERIFY_PARAM* parameters = X509_STORE_CTX_get0_param(context.get());
  X509_VERIFY_PARAM_set_time(parameters, now_s);
  X509_STORE_CTX_set_purpose(context.get(), holder->kind == Holder::kServer
                                                ? X509_PURPOSE_SSL_SERVER
                                                : X509_PURPOSE_SSL_CLIENT);
  if (X509_verify_cert(context.get()) != 1) {
    const int error = X509_STORE_CTX_get_error(context.get());
    ERR_clear_error();
    return absl::UnauthenticatedError(
        absl::StrCat("the certificate isn't valid: ", X509_verify_cert_error_string(error)));
  }
  return *holder;
}

absl::Status CheckIdentity(std::string_view pem) {
  absl::StatusOr<Key> key = ReadKey(pem);
  if (!key.ok()) return key.status();
  absl::StatusOr<std::vector<Cert>> chain = ReadChain(pem);
  if (!chain.ok()) return chain.status();
  if (X509_check_private_key(chain->front().get(), key->get()) != 1)
    return Refused("its key and its first certificate don't belong together");
  for (size_t i = 1; i < chain->size(); ++i) {
    if (X509_check_issued((*chain)[i].get(), (*chain)[i - 1].get()) != X509_V_OK)
      return absl::InvalidArgumentError(
          absl::StrCat("certificate ", i + 1, " of it didn't sign the one before it"));
  }
  return absl::OkStatus();
}

}  // namespace muster
