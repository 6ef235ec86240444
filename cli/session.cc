#include "cli/session.h"

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/render/json.h"
#include "common/base/clock.h"

namespace muster {
namespace {

Screen ScreenOf(int fd) {
  Screen screen;
  screen.live = isatty(fd) != 0;
  std::string term = ProcessEnvironment("TERM");
  if (!screen.live || term == "dumb") {
    screen.live = false;
    return screen;
  }
  screen.color = ProcessEnvironment("NO_COLOR").empty();
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {  // the first that is set decides
    std::string value = ProcessEnvironment(name);
    if (value.empty()) continue;
    value = absl::AsciiStrToLower(value);
    screen.utf8 = absl::StrContains(value, "utf-8") || absl::StrContains(value, "utf8");
    break;
  }
  struct winsize size = {};
  if (ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20) screen.width = size.ws_col;
  return screen;
}

}  // namespace

Session::Session()
    : out_screen_(ScreenOf(STDOUT_FILENO)),
      err_screen_(ScreenOf(STDERR_FILENO)),
      out_is_terminal_(isatty(STDOUT_FILENO) != 0),
      err_is_terminal_(isatty(STDERR_FILENO) != 0) {}

bool Session::asks() const { return isatty(STDIN_FILENO) && isatty(STDERR_FILENO); }

bool Session::Confirms(const std::string& question, const Interrupt& interrupt, bool enter) const {
  Err(question);
  std::string answer;
  char c;
  ssize_t count;
  while ((count = interrupt.Read(STDIN_FILENO, &c, 1)) == 1 && c != '\n') answer += c;
  if (count != 1) {
    Err("\n");
    return false;
  }
  return answer.empty() ? enter : answer == "y" || answer == "Y" || answer == "yes";
}

int64_t Session::now_ns() const { return RealClock()->WallNs(); }

Format Session::format() const {
  if (output_flag == "wide") return Format::kWide;
  if (output_flag == "json") return Format::kJson;
  if (output_flag == "jsonl") return Format::kJsonLines;
  if (output_flag == "yaml") return Format::kYaml;
  if (output_flag == "name") return Format::kName;
  return Format::kTable;
}

absl::StatusOr<Settings> Session::settings() {
  return ResolveSettings(server_flag, context_flag, ProcessEnvironment);
}

absl::StatusOr<Client*> Session::client() {
  if (client_ != nullptr) return client_.get();
  absl::StatusOr<Settings> resolved = settings();
  if (!resolved.ok()) return resolved.status();
  server_ = resolved->server;
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Create(server_);
  if (!client.ok()) return client.status();
  if (absl::Status reachable = (*client)->Reachable(); !reachable.ok()) return reachable;
  client_ = std::move(*client);
  return client_.get();
}

void Session::Out(const std::string& text) const {
  if (text.empty() || out_failed_) return;
  wrote_ = true;
  errno = 0;
  if (fwrite(text.data(), 1, text.size(), stdout) != text.size() || fflush(stdout) != 0)
    OutFailed(errno);
}

void Session::OutFailed(int error) const {
  if (out_failed_.exchange(true)) return;
  if (error == EPIPE) {  // and SIGPIPE is ignored, as by a parent
    signal(SIGPIPE, SIG_DFL);
    raise(SIGPIPE);
  }
  Err(RenderError(absl::InternalError(absl::StrCat("cannot write the output: ", strerror(error))),
                  server_));
}

int Session::Finish(int code) const {
  // Some file systems tell only here that there was no room.
  if (wrote_ && !out_failed_ && close(STDOUT_FILENO) != 0) OutFailed(errno);
  return code == kExitOk && out_failed_ ? static_cast<int>(kExitUnreachable) : code;
}

void Session::Say(const std::string& text) const {
  Out(out_screen_.live ? Wrapped(text, out_screen_.width) : text);
}

void Session::Err(const std::string& text) const {
  ErrAsItIs(err_screen_.live ? Wrapped(text, err_screen_.width) : text);
}

void Session::ErrAsItIs(const std::string& text) const {
  fwrite(text.data(), 1, text.size(), stderr);
}

int Session::Fail(const absl::Status& status) {
  Err(RenderError(status, server_));
  return ExitCodeFor(status);
}

int Session::Show(const Table& table, const google::protobuf::Message& whole,
                  const std::vector<const google::protobuf::Message*>& rows,
                  const std::vector<std::string>& names) {
  switch (format()) {
    case Format::kJson:
      Out(ToJson(whole, true));
      break;
    case Format::kYaml:
      Out(ToYaml(whole));
      break;
    case Format::kJsonLines:
      for (const auto* row : rows) Out(ToJson(*row, false));
      break;
    case Format::kName:
      for (const std::string& name : names) Out(name + "\n");
      break;
    case Format::kTable:
    case Format::kWide: {
      Table::Shape shape;
      shape.wide = format() == Format::kWide;
      if (!columns_flag.empty())
        shape.columns = absl::StrSplit(columns_flag, ',', absl::SkipWhitespace());
      absl::StatusOr<std::string> text = table.Render(out_screen_, shape);
      if (!text.ok()) return Fail(text.status());
      Out(*text);
    }
  }
  return kExitOk;
}

int Session::ShowOne(const std::string& text, const google::protobuf::Message& message,
                     const std::string& name) {
  switch (format()) {
    case Format::kJson:
      Out(ToJson(message, true));
      break;
    case Format::kJsonLines:
      Out(ToJson(message, false));
      break;
    case Format::kYaml:
      Out(ToYaml(message));
      break;
    case Format::kName:
      Out(name + "\n");
      break;
    default:
      Say(text);
  }
  return kExitOk;
}

}  // namespace muster
