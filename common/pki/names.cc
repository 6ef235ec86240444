#include "common/pki/names.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace muster {
namespace {

constexpr size_t kMaxNameBytes = 63;

bool GoodName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes && name != "." && name != ".." &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' ||
                  c == '-';
         });
}

}  // namespace

std::string UriOf(const Holder& holder) {
  const std::string start = absl::StrCat("muster://", holder.trust_id, "/");
  switch (holder.kind) {
    case Holder::kServer:
      return start + "server";
    case Holder::kUser:
      return absl::StrCat(start, "user/", holder.name, holder.token.empty() ? "" : "/token/",
                          holder.token);
    case Holder::kHost:
      return absl::StrCat(start, "host/", holder.cluster, "/", holder.name,
                          holder.only_user.empty() ? "" : "/only/", holder.only_user);
  }
  return "";
}

std::optional<Holder> ParseHolder(std::string_view uri) {
  static constexpr std::string_view kScheme = "muster://";
  if (uri.substr(0, kScheme.size()) != kScheme) return std::nullopt;
  const std::vector<std::string> parts =
      absl::StrSplit(std::string(uri.substr(kScheme.size())), '/');
  if (parts.size() < 2 || parts.size() > 6) return std::nullopt;
  if (!std::all_of(parts.begin(), parts.end(), GoodName)) return std::nullopt;
  Holder holder;
  holder.trust_id = parts[0];
  if (parts.size() == 2 && parts[1] == "server") {
    holder.kind = Holder::kServer;
  } else if (parts.size() == 3 && parts[1] == "user") {
    holder.kind = Holder::kUser;
    holder.name = parts[2];
  } else if (parts.size() == 5 && parts[1] == "user" && parts[3] == "token") {
    holder.kind = Holder::kUser;
    holder.name = parts[2];
    holder.token = parts[4];
  } else if ((parts.size() == 4 || (parts.size() == 6 && parts[4] == "only")) &&
             parts[1] == "host") {
    holder.kind = Holder::kHost;
    holder.cluster = parts[2];
    holder.name = parts[3];
    if (parts.size() == 6) holder.only_user = parts[5];
  } else {
    return std::nullopt;
  }
  return holder;
}

std::string ServerName(std::string_view trust_id) { return "musterd." + std::string(trust_id); }

}  // namespace muster
