// An identity provider's signing key, for tests.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace muster {

class TestSigner {
 public:
  // `algorithm`: RS256, PS256 or ES256. A new key.
  TestSigner(std::string algorithm, std::string key_id);

  // The public part as a key set has it.
  nlohmann::json Jwk() const;
  // The same as PEM: what HS256 is forged with.
  std::string PublicPem() const;
  nlohmann::json Header() const;  // alg, kid, typ
  std::string Sign(const nlohmann::json& claims) const { return Sign(Header(), claims); }
  std::string Sign(const nlohmann::json& header, const nlohmann::json& claims) const;

 private:
  const std::string algorithm_, key_id_;
  std::shared_ptr<void> key_;
};

std::string ToBase64Url(const std::string& bytes);
std::string KeySetOf(const std::vector<nlohmann::json>& keys);
// Header and claims under a MAC by `secret` (HS256).
std::string SignByMac(const std::string& secret, nlohmann::json header,
                      const nlohmann::json& claims);

}  // namespace muster
