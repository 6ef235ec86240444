#include "common/base/issuers.h"

#include <algorithm>
#include <cstddef>

namespace muster {
namespace {

constexpr std::string_view kHttps = "https://";
constexpr size_t kMostUrlBytes = 2048;

}  // namespace

bool IsHttpsAddress(std::string_view url) {
  return url.starts_with(kHttps) && url.size() > kHttps.size() && url.size() <= kMostUrlBytes &&
         url[kHttps.size()] != '/' && url.find_first_of("\\\"<>@#") == url.npos &&
         std::all_of(url.begin(), url.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

std::string WhyNoIssuer(std::string_view url) {
  if (IsHttpsAddress(url) && url.find('?') == url.npos) return "";
  return "is no address of an issuer; write it as its tokens have it, such as "
         "https://id.example.org";
}

}  // namespace muster
