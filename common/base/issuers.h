// Addresses of identity providers, as configurations, providers and users write them.
#pragma once

#include <string>
#include <string_view>

namespace muster {

// Whether `url` is https://HOST and what may stand behind that: no user, no fragment, no blank, no
// quote, nothing but ASCII.
bool IsHttpsAddress(std::string_view url);
// Empty if `url` is https://HOST[:PORT][/PATH], without user, query and fragment; else why not.
std::string WhyNoIssuer(std::string_view url);

}  // namespace muster
