#include "cli/commands/left_behind.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/render/format.h"
#include "cli/settings.h"

namespace muster {
namespace {

// As agents set it (agent/host/environment.cc).
constexpr char kJobsPath[] = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

// Where a shell with this PATH finds the program; empty: nowhere.
std::string FoundIn(const std::string& path, const std::string& program) {
  for (absl::string_view directory : absl::StrSplit(path, ':', absl::SkipEmpty())) {
    const std::string file = absl::StrCat(directory, "/", program);
    std::error_code error;
    if (std::filesystem::is_regular_file(file, error) && access(file.c_str(), X_OK) == 0)
      return file;
  }
  return "";
}

// A word for the shell to read again.
std::string Quoted(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return isalnum(c) != 0 ||
           std::string_view("_-+=./:,@%").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// A relative name of something that lies in this directory.
bool LiesHere(const std::string& word) {
  if (word.empty() || word[0] == '/' || word[0] == '-') return false;
  std::error_code error;
  return std::filesystem::exists(word, error);
}

// `run` and the flags, as they were given.
std::string FlagsBefore(const std::vector<std::string>& given,
                        const std::vector<std::string>& command) {
  if (given.size() <= command.size() ||
      !std::equal(command.rbegin(), command.rend(), given.rbegin()))
    return "run";  // flags stand behind the program
  std::vector<std::string> words(given.begin(),
                                 given.end() - static_cast<ptrdiff_t>(command.size()));
  if (words.back() == "--") words.pop_back();
  return absl::StrJoin(words, " ", [](std::string* out, const std::string& word) {
    out->append(Plain(Quoted(word)));
  });
}

}  // namespace

LeftBehind WhatStaysBehind(const std::vector<std::string>& given,
                           const std::vector<std::string>& command, bool has_directory,
                           const pb::JobSpec& spec) {
  LeftBehind left;
  const auto& env = spec.env();
  const std::string& program = command[0];
  std::string flags;
  const bool in_image =
      spec.tasks_size() > 0 && !spec.tasks(0).image().empty();  // which has programs of its own
  if (program.find('/') == std::string::npos && env.find("PATH") == env.end() && !in_image) {
    const std::string here = FoundIn(ProcessEnvironment("PATH"), program);
    const std::string there = FoundIn(kJobsPath, program);
    if (!here.empty() && here != there) {
      absl::StrAppend(&left.text, "  ", Plain(program), " is ", Plain(here),
                      " here, but this shell's PATH doesn't come along: the job ",
                      there.empty() ? "won't find it" : absl::StrCat("runs ", there), ".\n");
      flags = " --env PATH";
    }
  }
  if (!has_directory) {
    const bool by_path = program.find('/') == std::string::npos;  // it is no file of here
    const auto here = std::find_if(command.begin() + (by_path ? 1 : 0), command.end(), LiesHere);
    if (here != command.end()) {
      absl::StrAppend(&left.text, "  ", Plain(*here),
                      " lies in this directory, which doesn't come along: the job runs in one of "
                      "its own.\n");
      flags += " -C .";
    }
  }
  if (flags.empty()) return left;
  left.remedy = absl::StrCat("muster ", FlagsBefore(given, command), flags, " --");
  for (const std::string& word : command) absl::StrAppend(&left.remedy, " ", Plain(Quoted(word)));
  absl::StrAppend(&left.text, "  To take it along: ", left.remedy, "\n");
  return left;
}

bool SaysWhatIsMissing(std::string_view output) {
  static constexpr std::string_view kWords[] = {"o such file",    "not found",    "o module named",
                                                "can't open",     "annot open",   "annot find",
                                                "does not exist", "doesn't exist"};
  return std::any_of(std::begin(kWords), std::end(kWords), [&](std::string_view words) {
    return output.find(words) != std::string_view::npos;
  });
}

}  // namespace muster
