// `oidc:` of musterd.yaml: the identity providers whose users may log in.
#include "common/spec/oidc_file.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/issuers.h"

namespace muster {
namespace {

constexpr size_t kMostIssuers = 8;

void ReadDuration(Fields& fields, const char* name, int64_t least_ns, int64_t most_ns,
                  int64_t* out) {
  int64_t value_ns = 0;
  if (!fields.Duration(name, &value_ns)) return;
  if (value_ns >= least_ns && value_ns <= most_ns) {
    *out = value_ns;
    return;
  }
  fields.document().AddAtPath(
      fields.PathOf(name),
      absl::StrCat("must be from ", FormatDuration(least_ns), " to ", FormatDuration(most_ns),
                   "; got ", FormatDuration(value_ns)));
}

void ReadList(Fields& fields, const char* name, std::vector<std::string>* out) {
  std::vector<std::string> read;
  fields.TextList(name, [&](std::string text) { read.push_back(std::move(text)); });
  if (!read.empty()) *out = std::move(read);
}

// What the fields have to be beside each other.
void CheckIssuer(Document& document, const std::string& path, const OidcConfig& read) {
  const auto bad = [&](const char* name, const std::string& what) {
    document.AddAtPath(JoinPath(path, name), what);
  };
  if (read.issuer.empty()) {
    bad("issuer", "is missing; write it as its tokens have it: issuer: https://id.example.org");
  } else if (const std::string why = WhyNoIssuer(read.issuer); !why.empty()) {
    bad("issuer", why);
  }
  if (read.client_id.empty()) bad("client_id", "is missing; it is what the provider calls Muster");
  if (std::find(read.scopes.begin(), read.scopes.end(), "openid") == read.scopes.end())
    bad("scopes", "must have openid: without it there is no ID token");
  if (!read.ca.empty() && read.ca[0] != '/') bad("ca", "is not absolute; start it with /");
  if (read.name_claim == "email" && read.domain.empty())
    bad("domain", "is missing; with name_claim: email it says whose addresses are names here");
  if (read.domain.find('@') != read.domain.npos) bad("domain", "has no @; write example.org");
  if (read.groups_claim.empty() != read.groups.empty()) {
    bad(read.groups.empty() ? "groups" : "groups_claim",
        "is missing; groups_claim is where a token has groups, groups which of them count");
  }
}

}  // namespace

void ReadOidc(Document& document, Fields& fields, MusterdConfig* out) {
  fields.ForEach("oidc", [&](const YamlNode& node, const std::string& path) {
    OidcConfig read;
    Fields issuer(document, node, path);
    issuer.Text("issuer", &read.issuer);
    issuer.Text("client_id", &read.client_id);
    ReadList(issuer, "audiences", &read.audiences);
    ReadList(issuer, "scopes", &read.scopes);
    issuer.Text("name_claim", &read.name_claim);
    issuer.Text("domain", &read.domain);
    issuer.Text("groups_claim", &read.groups_claim);
    ReadList(issuer, "groups", &read.groups);
    issuer.Text("ca", &read.ca);
    ReadDuration(issuer, "leeway", 0, 10 * kMinute, &read.leeway_ns);
    ReadDuration(issuer, "max_age", 10 * kSecond, kDay, &read.max_age_ns);
    ReadDuration(issuer, "log_in_again", kMinute, 90 * kDay, &read.log_in_again_ns);
    issuer.Bool("without_nonce", &read.without_nonce);
    issuer.Bool("existing_users", &read.existing_users);
    issuer.Finish();
    if (document.Sound(path)) CheckIssuer(document, path, read);
    for (const OidcConfig& other : out->oidc) {
      if (other.issuer == read.issuer && !read.issuer.empty())
        document.AddAtPath(JoinPath(path, "issuer"), "is there already");
    }
    out->oidc.push_back(std::move(read));
  });
  if (out->oidc.size() > kMostIssuers) document.AddAtPath("oidc", "has more than 8 issuers");
  if (!out->oidc.empty() && out->tls.listen.empty() && document.Sound("oidc"))
    document.AddAtPath("oidc", "is of no use without tls:, which they log in to use");
}

}  // namespace muster
