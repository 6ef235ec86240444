// What comes from other machines before anybody is known: requests, certificates, tokens; and the
// file that a host keeps.
#include <cstdint>
#include <string>

#include "common/base/check.h"
#include "common/pki/certificates.h"
#include "common/pki/names.h"
#include "common/pki/tokens.h"
#include "network/identity.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  (void)muster::ReadRequest(text);
  const auto all = muster::ReadCertificates(text);
  if (all.ok()) (void)muster::VerifyHolder(text, text, 1'800'000'000);
  (void)muster::CheckIdentity(text);
  (void)muster::ReadIdentity(text);
  (void)muster::WhyNoAddress(text);
  if (const auto token = muster::ParseToken(text); token.has_value())
    MUSTER_CHECK(token->Text() == text);
  if (const auto holder = muster::ParseHolder(text); holder.has_value())
    MUSTER_CHECK(muster::UriOf(*holder) == text);
  return 0;
}
