// SHA-256 (FIPS 180-4).
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace muster {

std::string Sha256(std::string_view data);     // 32 bytes
std::string Sha256Hex(std::string_view data);  // 64 digits
bool IsSha256Hex(std::string_view text);       // 64 of 0-9 and a-f

// Of what comes in pieces.
class Sha256Stream {
 public:
  Sha256Stream();
  ~Sha256Stream();
  void Add(std::string_view data);
  std::string Hex();  // once, at the end

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace muster
