// musterd.yaml and the client's config.yaml.
#include <sys/un.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/ids.h"
#include "common/spec/config_files.h"
#include "common/spec/oidc_file.h"
#include "common/spec/reader.h"

namespace muster {
namespace {

// A duration that must lie in a range.
void Bounded(Fields& fields, std::string_view name, int64_t least_ns, int64_t most_ns,
             int64_t* out) {
  int64_t value = 0;
  if (!fields.Duration(name, &value)) return;
  if (value < least_ns || value > most_ns) {
    return fields.document().AddAtPath(
        fields.PathOf(name),
        absl::StrCat("must be from ", FormatDuration(least_ns), " to ", FormatDuration(most_ns),
                     "; got ", FormatDuration(value)));
  }
  *out = value;
}

}  // namespace

std::string WhyNotListen(std::string_view listen) {
  static constexpr std::string_view kUnix = "unix://";
  if (listen.substr(0, kUnix.size()) == kUnix) {
    const std::string_view path = listen.substr(kUnix.size());
    if (path.empty() || path[0] != '/')
      return "the socket's path must be absolute: unix:///run/muster/musterd.sock";
    if (path.size() >= sizeof(sockaddr_un::sun_path))
      return absl::StrCat("the socket's path has ", path.size(), " characters; at most ",
                          sizeof(sockaddr_un::sun_path) - 1);
    return "";
  }
  return "must be a Unix socket; use unix:///run/muster/musterd.sock. Other machines come in by "
         "tls: (docs/hosts.md)";
}

std::string WhyNotHostPort(std::string_view text) {
  const size_t colon = text.rfind(':');
  int port = 0;
  const bool host =
      colon != text.npos && colon > 0 && colon <= 253 &&
      text.substr(0, colon).find_first_not_of(
          "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") == text.npos;
  const std::string_view digits = host ? text.substr(colon + 1) : "";
  if (!digits.empty() && digits.size() <= 5 &&
      digits.find_first_not_of("0123456789") == digits.npos &&
      absl::SimpleAtoi(std::string(digits), &port) && port <= 65535)
    return "";
  return absl::StrCat("\"", std::string(text.substr(0, 100)),
                      "\" is no HOST:PORT, such as 10.0.0.1:7420");
}

std::string WhyNotMetricsListen(std::string_view listen) {
  const std::string text(listen);
  const std::vector<std::string> parts = absl::StrSplit(text, ':');
  const std::vector<std::string> octets = absl::StrSplit(parts[0], '.');
  const auto number = [](const std::string& digits, size_t longest, int most) {
    int value = 0;
    return digits.size() <= longest && digits.find_first_not_of("0123456789") == digits.npos &&
           absl::SimpleAtoi(digits, &value) && value <= most;
  };
  if (parts[0] == "localhost" || text.substr(0, text.rfind(':')) == "[::1]")
    return absl::StrCat("\"", text, "\": write the address as 127.0.0.1");
  if (octets.size() != 4 ||
      !std::all_of(octets.begin(), octets.end(),
                   [&](const std::string& octet) { return number(octet, 3, 255); })) {
    return absl::StrCat("\"", text, "\" is no address with a port; write 127.0.0.1:9464");
  }
  if (parts.size() != 2 || !number(parts[1], 5, 65535))
    return absl::StrCat(
        "\"", text,
        "\" names no port from 0 to 65535; write 127.0.0.1:9464, or port 0 for any that is free");
  if (octets[0] != "127") {
    return absl::StrCat("\"", text,
                        "\" is no loopback address, and whoever reaches it may read; write "
                        "127.0.0.1:9464, and let a collector on this machine pass it on");
  }
  return "";
}

namespace {

constexpr int64_t kNobody = 65'534, kMostUid = 4'294'967'294;
constexpr int64_t kLeastAuditBytes = 16 << 20;

// users: {ann: {uid: 20001, groups: [nlp]}}
void ReadUsers(Document& document, Fields& fields, std::vector<MusterdUser>* users) {
  fields.ForEachEntry("users", [&](const YamlNode& key, const YamlNode& value,
                                   const std::string& path) {
    MusterdUser user;
    user.name = key.text;
    const bool plain = !user.name.empty() && user.name.size() <= 32 &&
                       std::all_of(user.name.begin(), user.name.end(), [](char c) {
                         return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' ||
                                c == '-' || c == '.';
                       });
    if (!plain) document.AddAtPath(path, "a user's name is 1 to 32 of a-z, 0-9, '_', '-' and '.'");
    Fields of(document, value, path);
    int64_t uid = 0;
    if (!of.Has("uid")) {
      document.AddAtPath(path, "has no uid; write {uid: 20001}");
    } else if (of.Int("uid", 1, kMostUid, &uid)) {
      const auto same = std::find_if(users->begin(), users->end(), [&](const MusterdUser& other) {
        return other.uid == static_cast<uint32_t>(uid);
      });
      if (uid == kNobody) {
        document.AddAtPath(of.PathOf("uid"), "65534 is what the kernel calls nobody");
      } else if (same != users->end()) {
        document.AddAtPath(of.PathOf("uid"), absl::StrCat("is ", same->name, "'s already"));
      }
    }
    of.TextList("groups", [&](std::string group) { user.groups.push_back(std::move(group)); });
    of.Finish();
    user.uid = static_cast<uint32_t>(uid);
    std::sort(user.groups.begin(), user.groups.end());
    users->push_back(std::move(user));
  });
}

void ReadTls(Document& document, Fields& tls, TlsConfig* out) {
  const auto host_port = [&](const std::string& name, const std::string& text) {
    if (const std::string why = WhyNotHostPort(text); !why.empty())
      document.AddAtPath(tls.PathOf(name), why);
  };
  if (tls.Text("listen", &out->listen)) host_port("listen", out->listen);
  if (tls.Text("join", &out->join)) host_port("join", out->join);
  tls.TextList("addresses", [&](std::string address) {
    host_port("addresses", address);
    out->addresses.push_back(std::move(address));
  });
  if (tls.Text("join_address", &out->join_address)) host_port("join_address", out->join_address);
  if (tls.Text("master_key", &out->master_key) &&
      (out->master_key.empty() || out->master_key[0] != '/'))
    document.AddAtPath(tls.PathOf("master_key"), "is not absolute; start it with /");
  Bounded(tls, "host_life", 2 * kSecond, 90 * kDay, &out->host_life_ns);
  Bounded(tls, "user_life", 2 * kSecond, 30 * kDay, &out->user_life_ns);
  Bounded(tls, "server_life", 2 * kSecond, 365 * kDay, &out->server_life_ns);
  tls.Finish();
  const struct {
    const char* name;
    bool there;
    const char* remedy;
  } needed[] = {{"listen", !out->listen.empty(), "write listen: 0.0.0.0:7420"},
                {"join", !out->join.empty(), "write join: 0.0.0.0:7421"},
                {"addresses", !out->addresses.empty(),
                 "name what other machines reach this one by: addresses: [m1.example:7420]"}};
  for (const auto& field : needed) {
    if (!field.there && document.Sound("tls"))
      document.AddAtPath(tls.PathOf(field.name), absl::StrCat("is missing; ", field.remedy));
  }
  const size_t port = out->join.rfind(':');  // none: it was told as no HOST:PORT
  if (out->join_address.empty() && !out->addresses.empty() && port != std::string::npos) {
    const std::string& first = out->addresses.front();
    out->join_address = absl::StrCat(first.substr(0, first.rfind(':')), out->join.substr(port));
  }
}

}  // namespace

bool ParseMusterdConfig(std::string_view text, std::string_view filename, MusterdConfig* out,
                        std::vector<Problem>* problems) {
  *out = MusterdConfig();
  Document document;
  if (document.Parse(text, filename)) {
    Fields fields(document, document.root(), "");
    if (fields.Text("listen", &out->listen)) {
      const std::string why = WhyNotListen(out->listen);
      if (!why.empty()) document.AddAtPath("listen", why);
    }
    if (fields.Text("metrics_listen", &out->metrics_listen)) {
      const std::string why = WhyNotMetricsListen(out->metrics_listen);
      if (!why.empty()) document.AddAtPath("metrics_listen", why);
    }
    fields.Text("data_dir", &out->data_dir);
    fields.Text("clusters", &out->clusters);
    fields.Text("queues", &out->queues);
    fields.Bool("single_user", &out->single_user);
    fields.Bool("operators_exec", &out->operators_exec);
    ReadUsers(document, fields, &out->users);
    if (fields.Text("master_key", &out->master_key) &&
        (out->master_key.empty() || out->master_key[0] != '/'))
      document.AddAtPath("master_key", "is not absolute; start it with /");
    fields.Size("packed_per_user", &out->packed_per_user_bytes);
    fields.Int("jobs_per_user", 1, 10'000'000, &out->jobs_per_user);
    Bounded(fields, "audit_retention", kDay, 3650 * kDay, &out->audit_retention_ns);
    if (fields.Size("audit_size", &out->audit_bytes) && out->audit_bytes < kLeastAuditBytes)
      document.AddAtPath("audit_size", "must be 16MiB or more");
    fields.NotYet("http", "the dashboard. Leave it out");
    if (std::optional<Fields> tls = fields.Map("tls")) ReadTls(document, *tls, &out->tls);
    ReadOidc(document, fields, out);
    if (!out->oidc.empty() && out->single_user)
      document.AddAtPath("oidc", "is for several users; leave single_user out, or this");
    if (out->tls.master_key.empty()) out->tls.master_key = out->master_key;
    if (out->master_key.empty()) out->master_key = out->tls.master_key;
    if (out->master_key != out->tls.master_key)
      document.AddAtPath("tls.master_key", "is another than master_key; leave out one of both");
    fields.NotYet("auth", "users are those of the Unix socket and of certificates. Leave it out");
    if (std::optional<Fields> defaults = fields.Map("defaults")) {
      defaults->Int("max_restarts", 0, 1000, &out->defaults.max_restarts);
      Bounded(*defaults, "grace", 0, kHour, &out->defaults.grace_ns);
      Bounded(*defaults, "retry_faults_for", 0, 3650 * kDay, &out->defaults.retry_faults_for_ns);
      Bounded(*defaults, "hang_timeout", 0, 3650 * kDay, &out->defaults.hang_timeout_ns);
      Bounded(*defaults, "time_limit", 0, 3650 * kDay, &out->defaults.time_limit_ns);
      defaults->Finish();
    }
    if (std::optional<Fields> scheduling = fields.Map("scheduling")) {
      scheduling->Choice("placement", {"v", "fgd", "best_fit"}, 0, &out->placement);
      Bounded(*scheduling, "grow_interval", 0, 30 * kDay, &out->grow_interval_ns);
      Bounded(*scheduling, "restart_cost", 0, 30 * kDay, &out->restart_cost_ns);
      Bounded(*scheduling, "starve_after", 0, 30 * kDay, &out->starve_after_ns);
      Bounded(*scheduling, "min_runtime", 0, 30 * kDay, &out->min_runtime_ns);
      Bounded(*scheduling, "spill_cost", 0, 30 * kDay, &out->spill_cost_ns);
      Bounded(*scheduling, "lease", kSecond, kDay, &out->lease_ns);
      Bounded(*scheduling, "heartbeat", 100 * kMillisecond, kHour, &out->heartbeat_ns);
      Bounded(*scheduling, "restart_backoff", 0, kDay, &out->restart_backoff_ns);
      Bounded(*scheduling, "history_retention", kMinute, 3650 * kDay, &out->history_retention_ns);
      Bounded(*scheduling, "journal_retention", kMinute, 3650 * kDay, &out->journal_retention_ns);
      scheduling->Finish();
      if (document.Sound("scheduling") && out->lease_ns < 3 * out->heartbeat_ns) {
        document.AddAtPath("scheduling.lease", absl::StrCat(FormatDuration(out->lease_ns),
                                                            " is below three heartbeats of ",
                                                            FormatDuration(out->heartbeat_ns)));
      }
    }
    fields.Finish();
    if (document.Sound("")) {
      if (!fields.Has("listen"))
        document.AddAtPath("listen", "is missing; write listen: unix:///run/muster/musterd.sock");
      if (!fields.Has("data_dir"))
        document.AddAtPath("data_dir", "is missing; name a directory for musterd's store");
      for (const auto& [name, path] :
           {std::pair("data_dir", out->data_dir), std::pair("clusters", out->clusters),
            std::pair("queues", out->queues)}) {
        if (fields.Has(name) && (path.empty() || path[0] != '/'))
          document.AddAtPath(name, absl::StrCat("\"", path, "\" is not absolute; start it with /"));
      }
    }
  }
  return document.Deliver(problems);
}

bool ParseClientConfig(std::string_view text, std::string_view filename,
                       const std::vector<std::string>& logins, ClientConfig* out,
                       std::vector<Problem>* problems) {
  *out = ClientConfig();
  Document document;
  if (document.Parse(text, filename)) {
    Fields fields(document, document.root(), "");
    fields.Text("current_context", &out->current_context);
    std::vector<std::string> names = logins;
    fields.ForEachEntry("contexts", [&](const YamlNode& key, const YamlNode& value,
                                        const std::string& path) {
      if (!value.IsMap())
        return document.Add(key, path, absl::StrCat("must be a map of fields; got ", Shown(value)));
      names.push_back(key.text);
      Fields context(document, value, path);
      ClientContext& entry = out->contexts[key.text];
      context.Text("server", &entry.server);
      context.Text("queue", &entry.queue);
      context.Text("login", &entry.login);
      context.Finish();
      if (context.Has("server") == context.Has("login") && document.Sound(path)) {
        document.AddAtPath(path + ".server",
                           context.Has("login")
                               ? "a login says where the server is; leave out one of the two"
                               : "is missing; write server: unix:///path/to/musterd.sock, or run "
                                 "muster login");
      }
      if (!entry.login.empty() && entry.login[0] != '/')
        document.AddAtPath(path + ".login", "is not absolute; start it with /");
      if (entry.server.empty()) return;
      if (const std::string why = WhyNotListen(entry.server); !why.empty())
        document.AddAtPath(path + ".server", why);
    });
    fields.Finish();
    if (!out->current_context.empty() && document.Sound("") &&
        std::find(names.begin(), names.end(), out->current_context) == names.end()) {
      document.AddAtPath("current_context",
                         absl::StrCat("no context \"", out->current_context, "\" under contexts.",
                                      DidYouMean(out->current_context, names)));
    }
  }
  return document.Deliver(problems);
}

}  // namespace muster
