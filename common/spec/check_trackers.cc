#include "common/spec/check_trackers.h"

#include <algorithm>
#include <array>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/ids.h"
#include "common/base/view.h"

namespace muster {
namespace {

constexpr size_t kMaxUrlBytes = 2'048;
constexpr size_t kMaxDirectoryBytes = 1'024;
constexpr size_t kMaxMailBytes = 254;
constexpr std::array<std::string_view, 4> kEnds = {"ended", "succeeded", "failed", "cancelled"};

bool IsPrintable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
}

// Of HOST or [ADDRESS], with or without :PORT. Empty: it may be one.
std::string WhyNoHost(std::string_view host) {
  size_t end = 0;  // of the name
  if (host.starts_with('[')) {
    end = host.find(']') + 1;
    if (end == 0) return "has a [ without its ]";
  } else {
    end = std::min(host.find(':'), host.size());
  }
  const std::string_view port = host.substr(end);
  int number = 0;
  if (!port.empty() && (port[0] != ':' || !absl::SimpleAtoi(View(port.substr(1)), &number) ||
                        number < 1 || number > 65'535))
    return "must have a port from 1 to 65535 behind its host, or none";
  return "";
}

// Likewise.
std::string WhyNoUrl(std::string_view url, bool with_query) {
  const size_t scheme = url.starts_with("https://") ? 8 : url.starts_with("http://") ? 7 : 0;
  if (scheme == 0) return "must begin with http:// or https://";
  if (url.size() > kMaxUrlBytes) return absl::StrCat("longer than ", kMaxUrlBytes, " characters");
  if (!IsPrintable(url) || url.find('\\') != std::string_view::npos)
    return "has spaces, backslashes or characters beyond ASCII: escape them (%20)";
  const std::string_view host = url.substr(scheme, url.find_first_of("/?#", scheme) - scheme);
  if (host.empty() || host[0] == ':') return "names no host";
  if (host.find('@') != std::string_view::npos)
    return "holds a user or a password, which whoever sees the job would see: leave it out; the "
           "exporter has keys (docs/tracking.md)";
  if (std::string why = WhyNoHost(host); !why.empty()) return why;
  if (!with_query && url.find_first_of("?#") != std::string_view::npos)
    return "has a query: give the server's address alone";
  return "";
}

// What YAML 1.1 and users take for true or false. As the name of a directory it is an accident.
bool IsWordForBool(std::string_view text) {
  static constexpr std::array<std::string_view, 6> kWords = {"true", "false", "yes",
                                                             "no",   "on",    "off"};
  return std::any_of(kWords.begin(), kWords.end(), [&](std::string_view word) {
    return absl::EqualsIgnoreCase(View(text), View(word));
  });
}

std::string WhyNoDirectory(std::string_view directory) {
  if (directory == "true") return "";
  if (IsWordForBool(directory)) return "leave it out, or write true, or a directory";
  if (directory.size() > kMaxDirectoryBytes)
    return absl::StrCat("longer than ", kMaxDirectoryBytes, " characters");
  if (std::any_of(directory.begin(), directory.end(),
                  [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }))
    return "has control characters";
  for (const absl::string_view part : absl::StrSplit(View(directory), '/')) {
    if (part == "..") return "may not lead upwards (..)";
  }
  return "";
}

bool IsProject(std::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(View(text), '/');
  return parts.size() <= 2 && text.size() <= 128 &&
         std::all_of(parts.begin(), parts.end(),
                     [](absl::string_view part) { return IsLabel({part.data(), part.size()}); });
}

bool IsMail(std::string_view text) {
  const size_t at = text.find('@');
  return at != std::string_view::npos && at > 0 && at + 1 < text.size() && text[0] != '-' &&
         text.find('@', at + 1) == std::string_view::npos && text.size() <= kMaxMailBytes &&
         IsPrintable(text) && text.find_first_of(",;<>()[]\"\\:") == std::string_view::npos;
}

class TrackersChecker {
 public:
  TrackersChecker(const pb::JobSpec& spec, const SpecRules& rules) : spec_(spec), rules_(rules) {}

  void Run() {
    if (spec_.has_track()) CheckTrack();
    if (spec_.has_notify()) CheckNotify();
  }

 private:
  void Emit(const std::string& path, const std::string& message) {
    rules_.emit(path, message, Document::Where::kValue);
  }
  void EmitIf(const std::string& path, const std::string& why) {
    if (!why.empty()) Emit(path, why);
  }

  void CheckTrack() {
    const pb::Track& track = spec_.track();
    if (track.tensorboard().empty() && track.mlflow().empty() && track.wandb().empty() &&
        rules_.sound("track"))
      Emit("track", "names no tracker; write tensorboard: true, mlflow: URL or wandb: PROJECT");
    if (!track.tensorboard().empty())
      EmitIf("track.tensorboard", WhyNoDirectory(track.tensorboard()));
    if (!track.mlflow().empty()) EmitIf("track.mlflow", WhyNoUrl(track.mlflow(), false));
    if (!track.wandb().empty() && !IsProject(track.wandb()))
      Emit("track.wandb", "must be PROJECT or ENTITY/PROJECT: letters, digits, '.', '_' and '-'");
  }

  void CheckNotify() {
    const pb::Notify& notify = spec_.notify();
    if (notify.webhook().empty() && notify.mail().empty() && rules_.sound("notify"))
      Emit("notify", "names nobody; write webhook: URL or mail: ADDRESS");
    // A name is the exporter's; what has no letter of a URL's is one.
    if (!notify.webhook().empty() && !IsLabel(notify.webhook()))
      EmitIf("notify.webhook", WhyNoUrl(notify.webhook(), true));
    if (!notify.mail().empty() && !IsMail(notify.mail()))
      Emit("notify.mail", "must be one address, such as ann@example.org");
    for (int i = 0; i < notify.on_size(); ++i) {
      if (std::find(kEnds.begin(), kEnds.end(), notify.on(i)) == kEnds.end())
        Emit(IndexPath("notify.on", static_cast<size_t>(i)),
             "must be one of ended, succeeded, failed, cancelled");
    }
    if (notify.on_size() > static_cast<int>(kEnds.size()))
      Emit("notify.on", absl::StrCat(notify.on_size(), " entries; at most ", kEnds.size()));
  }

  const pb::JobSpec& spec_;
  const SpecRules& rules_;
};

}  // namespace

void CheckTrackers(const pb::JobSpec& spec, const SpecRules& rules) {
  TrackersChecker(spec, rules).Run();
}

}  // namespace muster
