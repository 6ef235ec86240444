#include "agent/shim/format.h"

#include <charconv>

namespace muster::shim {
namespace {

constexpr char kHex[] = "0123456789abcdef";

bool IsPlain(unsigned char c) { return c > ' ' && c < 0x7f && c != '%' && c != '='; }

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return -1;
}

size_t PlainLength(std::string_view text) {
  size_t length = 0;
  while (length < text.size() && IsPlain(static_cast<unsigned char>(text[length]))) ++length;
  return length;
}

void AppendEscaped(std::string_view text, std::string* out) {
  while (true) {
    const size_t plain = PlainLength(text);
    out->append(text.substr(0, plain));
    if (plain == text.size()) return;
    const auto byte = static_cast<unsigned char>(text[plain]);
    out->push_back('%');
    out->push_back(kHex[byte >> 4]);
    out->push_back(kHex[byte & 15]);
    text.remove_prefix(plain + 1);
  }
}

std::optional<std::string> Unescape(std::string_view text) {
  std::string out(text.substr(0, PlainLength(text)));
  for (size_t i = out.size(); i < text.size(); ++i) {
    if (text[i] != '%') {
      if (!IsPlain(static_cast<unsigned char>(text[i]))) return std::nullopt;
      out.push_back(text[i]);
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = HexValue(text[i + 1]);
    const int low = HexValue(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    out.push_back(static_cast<char>(high * 16 + low));
    i += 2;
  }
  return out;
}

bool ParseInt(std::string_view text, int64_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size() && !text.empty();
}

bool Fail(std::string* error, std::string text) {
  *error = std::move(text);
  return false;
}

// Reads a field into an integer of any width; false if it is missing, malformed or does not fit.
template <typename Number>
bool Read(const Line& line, std::string_view key, Number* out) {
  int64_t value = 0;
  if (!line.GetInt(key, &value)) return false;
  *out = static_cast<Number>(value);
  return static_cast<int64_t>(*out) == value;
}

bool Read(const Line& line, std::string_view key, std::string* out) {
  const std::string* value = line.Find(key);
  if (value == nullptr) return false;
  *out = *value;
  return true;
}

bool IsVariableName(std::string_view name) {
  if (name.empty()) return false;
  for (const char c : name) {
    if (c == '=' || c == '\0') return false;
  }
  return true;
}

bool ReadVariable(const Line& line, EnvironmentVariable* variable) {
  return Read(line, "name", &variable->name) && Read(line, "value", &variable->value) &&
         IsVariableName(variable->name) && variable->value.find('\0') == std::string::npos;
}

Line VariableLine(const char* kind, const EnvironmentVariable& variable) {
  return Line{kind, {{"name", variable.name}, {"value", variable.value}}};
}

void AppendLine(const Line& line, std::string* out) {
  AppendEscaped(line.kind, out);
  for (const auto& [key, value] : line.fields) {
    out->push_back(' ');
    AppendEscaped(key, out);
    out->push_back('=');
    AppendEscaped(value, out);
  }
  out->push_back('\n');
}

}  // namespace

const std::string* Line::Find(std::string_view key) const {
  for (const auto& [name, value] : fields) {
    if (name == key) return &value;
  }
  return nullptr;
}

std::string Line::Get(std::string_view key) const {
  const std::string* value = Find(key);
  return value == nullptr ? std::string() : *value;
}

bool Line::GetInt(std::string_view key, int64_t* value) const {
  const std::string* text = Find(key);
  return text != nullptr && ParseInt(*text, value);
}

Line& Line::Add(std::string_view key, std::string_view value) {
  fields.emplace_back(key, value);
  return *this;
}

Line& Line::Add(std::string_view key, int64_t value) { return Add(key, std::to_string(value)); }

std::string FormatLine(const Line& line) {
  std::string out;
  AppendLine(line, &out);
  return out;
}

std::optional<Line> ParseLine(std::string_view text) {
  Line line;
  bool first = true;
  while (first || !text.empty()) {
    const size_t blank = text.find(' ');
    const std::string_view word = text.substr(0, blank);
    text = blank == std::string_view::npos ? std::string_view() : text.substr(blank + 1);
    if (blank != std::string_view::npos && text.empty()) return std::nullopt;  // a blank at the end
    if (first) {
      std::optional<std::string> kind = Unescape(word);
      if (!kind.has_value() || kind->empty()) return std::nullopt;
      line.kind = *std::move(kind);
      first = false;
      continue;
    }
    const size_t equals = word.find('=');
    if (equals == std::string_view::npos || equals == 0) return std::nullopt;
    std::optional<std::string> key = Unescape(word.substr(0, equals));
    std::optional<std::string> value = Unescape(word.substr(equals + 1));
    if (!key.has_value() || !value.has_value() || line.Find(*key) != nullptr) return std::nullopt;
    line.fields.emplace_back(*std::move(key), *std::move(value));
  }
  return line;
}

bool ParseFile(std::string_view content, std::string_view name, std::vector<Line>* lines,
               std::string* error) {
  lines->clear();
  bool ended = false;
  for (int number = 1; !content.empty(); ++number) {
    const size_t newline = content.find('\n');
    const auto fail = [&](const std::string& how) {
      return Fail(error, std::string(name) + ":" + std::to_string(number) + ": " + how);
    };
    if (newline == std::string_view::npos) return fail("the last line is cut off");
    if (ended) return fail("text after end");
    std::optional<Line> line = ParseLine(content.substr(0, newline));
    content.remove_prefix(newline + 1);
    if (!line.has_value()) return fail("malformed line");
    if (number == 1) {
      if (line->kind != name) return fail("not a " + std::string(name) + " file");
      if (line->Get("version") != "1")
        return fail("version " + line->Get("version") + " is not known here");
      continue;
    }
    if (line->kind == "end") {
      ended = true;
      continue;
    }
    lines->push_back(*std::move(line));
  }
  if (!ended) return Fail(error, std::string(name) + ": no end line");
  return true;
}

std::string FormatFile(std::string_view name, const std::vector<Line>& lines) {
  std::string out = FormatLine(Line{std::string(name), {{"version", "1"}}});
  for (const Line& line : lines) AppendLine(line, &out);
  return out + "end\n";
}

Line UserLine(const User& user) {
  std::string groups;
  for (const uint32_t group : user.groups)
    groups += (groups.empty() ? "" : ",") + std::to_string(group);
  return Line{"user"}
      .Add("uid", int64_t{user.uid})
      .Add("gid", int64_t{user.gid})
      .Add("groups", groups)
      .Add("minimum", int64_t{user.minimum});
}

bool ReadUser(const Line& line, User* user) {
  *user = User();
  std::string groups;
  if (!Read(line, "uid", &user->uid) || !Read(line, "gid", &user->gid) ||
      !Read(line, "groups", &groups) || !Read(line, "minimum", &user->minimum))
    return false;
  std::string_view rest = groups;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    int64_t group = 0;
    if (!ParseInt(rest.substr(0, comma), &group) || group < 0 || group > UINT32_MAX) return false;
    user->groups.push_back(static_cast<uint32_t>(group));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
    if (rest.empty()) return false;
  }
  return true;
}

std::string FormatSpec(const Spec& spec) {
  std::vector<Line> lines;
  lines.push_back(
      Line{"attempt"}.Add("job", spec.job_uid).Add("task", spec.task).Add("attempt", spec.attempt));
  lines.push_back(Line{"boot"}.Add("id", spec.boot_id));
  lines.push_back(Line{"token"}.Add("value", spec.token));
  lines.push_back(Line{"workdir"}.Add("path", spec.workdir));
  lines.push_back(Line{"umask"}.Add("value", int64_t{spec.umask}));
  if (!spec.image.path.empty()) lines.push_back(Line{"image"}.Add("text", FormatImage(spec.image)));
  if (!spec.setup.empty()) lines.push_back(Line{"setup"}.Add("text", spec.setup));
  for (const std::string& word : spec.argv) lines.push_back(Line{"argv"}.Add("word", word));
  for (const EnvironmentVariable& variable : spec.env)
    lines.push_back(VariableLine("env", variable));
  for (const WorkerSpec& worker : spec.workers) {
    lines.push_back(Line{"worker"}.Add("group_rank", worker.group_rank));
    for (const ProcessSpec& process : worker.processes) {
      lines.push_back(Line{"process"}.Add("rank", process.rank));
      for (const EnvironmentVariable& variable : process.env)
        lines.push_back(VariableLine("process_env", variable));
    }
  }
  lines.push_back(
      Line{"stop"}.Add("grace_ns", spec.grace_ns).Add("failure_kill_ns", spec.failure_kill_ns));
  lines.push_back(Line{"logs"}
                      .Add("file_bytes", spec.log_file_bytes)
                      .Add("files", spec.log_files)
                      .Add("line_bytes", spec.log_line_bytes));
  if (spec.fence_after_ns > 0)
    lines.push_back(
        Line{"fence"}.Add("after_ns", spec.fence_after_ns).Add("renewed_ns", spec.renewed_ns));
  if (!spec.progress_socket.empty())
    lines.push_back(Line{"progress"}
                        .Add("socket", spec.progress_socket)
                        .Add("keep", int64_t{spec.keep_reports}));
  if (!spec.holder_mark.empty()) lines.push_back(Line{"mark"}.Add("name", spec.holder_mark));
  if (!spec.cgroup.empty() || !spec.memory_cgroup.empty() || !spec.pids_cgroup.empty())
    lines.push_back(Line{"cgroup"}
                        .Add("unified", spec.cgroup)
                        .Add("memory", spec.memory_cgroup)
                        .Add("pids", spec.pids_cgroup));
  if (spec.user.has_value()) lines.push_back(UserLine(*spec.user));
  if (spec.as_itself) lines.push_back(Line{"self"});
  for (const std::string& device : spec.devices)
    lines.push_back(Line{"device"}.Add("path", device));
  if (spec.most_processes > 0) lines.push_back(Line{"processes"}.Add("most", spec.most_processes));
  lines.push_back(Line{"isolation"}.Add("pid_namespace", int64_t{spec.pid_namespace}));
  return FormatFile("muster-shim-spec", lines);
}

namespace {

// A line of how the attempt is looked after. False: there is no such line.
bool ReadSpecRules(const Line& line, Spec* spec, bool* is_good) {
  bool& ok = *is_good;
  if (line.kind == "stop") {
    ok = Read(line, "grace_ns", &spec->grace_ns) &&
         Read(line, "failure_kill_ns", &spec->failure_kill_ns) && spec->grace_ns >= 0 &&
         spec->failure_kill_ns >= 0;
  } else if (line.kind == "logs") {
    ok = Read(line, "file_bytes", &spec->log_file_bytes) && Read(line, "files", &spec->log_files) &&
         Read(line, "line_bytes", &spec->log_line_bytes) && spec->log_line_bytes > 0 &&
         spec->log_files > 0 && spec->log_file_bytes >= spec->log_line_bytes;
  } else if (line.kind == "progress") {
    ok = Read(line, "socket", &spec->progress_socket) && spec->progress_socket.size() <= 107;
    Read(line, "keep", &spec->keep_reports);  // of an agent of the release before, missing
  } else if (line.kind == "mark") {
    ok = Read(line, "name", &spec->holder_mark) && !spec->holder_mark.empty() &&
         spec->holder_mark.size() <= 107;
  } else if (line.kind == "fence") {
    ok = Read(line, "after_ns", &spec->fence_after_ns) &&
         Read(line, "renewed_ns", &spec->renewed_ns) && spec->fence_after_ns > 0 &&
         spec->renewed_ns >= 0;
  } else if (line.kind == "cgroup") {
    ok = Read(line, "unified", &spec->cgroup) && Read(line, "memory", &spec->memory_cgroup);
    Read(line, "pids", &spec->pids_cgroup);  // of an agent of the release before, missing
  } else if (line.kind == "isolation") {
    ok = Read(line, "pid_namespace", &spec->pid_namespace);
  } else if (line.kind == "user") {
    ok = !spec->user.has_value() && ReadUser(line, &spec->user.emplace());
  } else if (line.kind == "self") {
    spec->as_itself = ok = true;
  } else if (line.kind == "device") {
    ok = Read(line, "path", &spec->devices.emplace_back());
  } else if (line.kind == "processes") {
    ok = Read(line, "most", &spec->most_processes) && spec->most_processes > 0;
  } else {
    return false;
  }
  return true;
}

// Of what it runs, or the former.
bool ReadSpecLine(const Line& line, Spec* spec, bool* is_good) {
  bool& ok = *is_good;
  if (line.kind == "attempt") {
    ok = Read(line, "job", &spec->job_uid) && Read(line, "task", &spec->task) &&
         Read(line, "attempt", &spec->attempt);
  } else if (line.kind == "boot") {
    ok = Read(line, "id", &spec->boot_id);
  } else if (line.kind == "token") {
    ok = Read(line, "value", &spec->token);
  } else if (line.kind == "workdir") {
    ok = Read(line, "path", &spec->workdir);
  } else if (line.kind == "umask") {
    ok = Read(line, "value", &spec->umask) && spec->umask <= 0777;
  } else if (line.kind == "image") {
    std::string text, error;
    ok = Read(line, "text", &text) && ParseImage(text, &spec->image, &error);
  } else if (line.kind == "setup") {
    ok = Read(line, "text", &spec->setup);
  } else if (line.kind == "argv") {
    ok = Read(line, "word", &spec->argv.emplace_back()) &&
         spec->argv.back().find('\0') == std::string::npos;
  } else if (line.kind == "env") {
    ok = ReadVariable(line, &spec->env.emplace_back());
  } else if (line.kind == "worker") {
    ok = Read(line, "group_rank", &spec->workers.emplace_back().group_rank);
  } else if (line.kind == "process") {
    ok = !spec->workers.empty() &&
         Read(line, "rank", &spec->workers.back().processes.emplace_back().rank);
  } else if (line.kind == "process_env") {
    ok = !spec->workers.empty() && !spec->workers.back().processes.empty() &&
         ReadVariable(line, &spec->workers.back().processes.back().env.emplace_back());
  } else {
    return ReadSpecRules(line, spec, is_good);
  }
  return true;
}

}  // namespace

bool ParseSpec(std::string_view content, Spec* spec, std::string* error) {
  std::vector<Line> lines;
  if (!ParseFile(content, "muster-shim-spec", &lines, error)) return false;
  *spec = Spec();
  for (const Line& line : lines) {
    bool ok = false;
    if (!ReadSpecLine(line, spec, &ok))
      return Fail(error, "muster-shim-spec: unknown line " + line.kind);
    if (!ok) return Fail(error, "muster-shim-spec: bad line " + line.kind);
  }
  if (spec->argv.empty()) return Fail(error, "muster-shim-spec: no argv");
  if (spec->token.empty()) return Fail(error, "muster-shim-spec: no token");
  if (spec->workers.empty()) return Fail(error, "muster-shim-spec: no worker");
  for (const WorkerSpec& worker : spec->workers) {
    if (worker.processes.empty())
      return Fail(error, "muster-shim-spec: a worker without processes");
  }
  return true;
}

std::string FormatStop(const StopOrder& stop) {
  return FormatFile("muster-shim-stop",
                    {Line{"stop"}.Add("cause", stop.cause).Add("grace_ns", stop.grace_ns)});
}

bool ParseStop(std::string_view content, StopOrder* stop, std::string* error) {
  std::vector<Line> lines;
  if (!ParseFile(content, "muster-shim-stop", &lines, error)) return false;
  if (lines.size() != 1 || lines[0].kind != "stop" || !Read(lines[0], "cause", &stop->cause) ||
      !Read(lines[0], "grace_ns", &stop->grace_ns) || stop->grace_ns < 0) {
    return Fail(error, "muster-shim-stop: wants one stop line with cause and grace_ns");
  }
  return true;
}

Line ExitLine(const Exit& exit) {
  Line line{"exit"};
  line.Add("rank", exit.rank)
      .Add("code", exit.exit_code)
      .Add("signal", exit.signal)
      .Add("at_ns", exit.at_ns)
      .Add("detail", exit.detail);
  if (exit.own) line.Add("own", int64_t{1});
  if (exit.oom) line.Add("oom", int64_t{1});
  return line;
}

bool ReadExitLine(const Line& line, Exit* exit) {
  Read(line, "own", &exit->own);  // missing where it isn't so, and of a shim of the release before
  Read(line, "oom", &exit->oom);
  return line.kind == "exit" && Read(line, "rank", &exit->rank) &&
         Read(line, "code", &exit->exit_code) && Read(line, "signal", &exit->signal) &&
         Read(line, "at_ns", &exit->at_ns) && Read(line, "detail", &exit->detail);
}

std::string FormatRenewal(int64_t renewed_ns) {
  return FormatFile("muster-shim-renewed", {Line{"renewed"}.Add("boottime_ns", renewed_ns)});
}

bool ParseRenewal(std::string_view content, int64_t* renewed_ns, std::string* error) {
  std::vector<Line> lines;
  if (!ParseFile(content, "muster-shim-renewed", &lines, error)) return false;
  if (lines.size() != 1 || lines[0].kind != "renewed" ||
      !Read(lines[0], "boottime_ns", renewed_ns) || *renewed_ns < 0) {
    return Fail(error, "muster-shim-renewed: wants one renewed line with boottime_ns");
  }
  return true;
}

namespace {

constexpr struct {
  const char* key;
  int64_t Used::*field;
} kUsedFields[] = {{"ran_ns", &Used::ran_ns},
                   {"memory_peak_bytes", &Used::memory_peak_bytes},
                   {"cpu_us", &Used::cpu_us},
                   {"cpus_most_milli", &Used::cpus_most_milli}};

void AddUsed(const Used& used, Line* line) {
  for (const auto& [key, field] : kUsedFields) {
    if (used.ran_ns > 0 && used.*field >= 0) line->Add(key, used.*field);
  }
}

void ReadUsed(const Line& line, Used* used) {
  for (const auto& [key, field] : kUsedFields) line.GetInt(key, &(used->*field));
}

}  // namespace

std::string FormatUsage(const Used& used) {
  Line line{"used"};
  AddUsed(used, &line);
  return FormatFile("muster-shim-usage", {line});
}

bool ParseUsage(std::string_view content, Used* used, std::string* error) {
  std::vector<Line> lines;
  if (!ParseFile(content, "muster-shim-usage", &lines, error)) return false;
  if (lines.size() != 1 || lines[0].kind != "used")
    return Fail(error, "muster-shim-usage: wants one line");
  *used = Used();
  ReadUsed(lines[0], used);
  return true;
}

std::string FormatExits(const Exits& exits) {
  std::vector<Line> lines;
  lines.push_back(Line{"run"}
                      .Add("start_ns", exits.start_ns)
                      .Add("end_ns", exits.end_ns)
                      .Add("stop_sent", int64_t{exits.stop_sent})
                      .Add("fenced", int64_t{exits.fenced}));
  AddUsed(exits.used, &lines.back());
  for (const Exit& exit : exits.exits) lines.push_back(ExitLine(exit));
  return FormatFile("muster-shim-exits", lines);
}

bool ParseExits(std::string_view content, Exits* exits, std::string* error) {
  std::vector<Line> lines;
  if (!ParseFile(content, "muster-shim-exits", &lines, error)) return false;
  *exits = Exits();
  if (lines.empty() || lines[0].kind != "run" || !Read(lines[0], "start_ns", &exits->start_ns) ||
      !Read(lines[0], "end_ns", &exits->end_ns) ||
      !Read(lines[0], "stop_sent", &exits->stop_sent)) {
    return Fail(error, "muster-shim-exits: wants a run line first");
  }
  Read(lines[0], "fenced", &exits->fenced);  // of a shim of the release before, missing
  ReadUsed(lines[0], &exits->used);          // likewise
  for (size_t i = 1; i < lines.size(); ++i) {
    if (!ReadExitLine(lines[i], &exits->exits.emplace_back()))
      return Fail(error, "muster-shim-exits: bad exit line");
  }
  return true;
}

}  // namespace muster::shim
