// muster: parse, run the chosen command, exit with its code. What each command does is in
// commands/.
#include <CLI/CLI.hpp>

#include <algorithm>
#include <map>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "cli/commands/commands.h"
#include "cli/commands/completion.h"
#include "common/spec/problem.h"

namespace muster {
namespace {

// " Did you mean --output?" or nothing.
std::string OptionLike(const std::string& word, const CLI::App& command, const CLI::App& root) {
  std::vector<std::string> names;
  for (const CLI::App* app : {&command, &root}) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  return DidYouMean(word.substr(0, word.find('=')), names);
}

// " Did you mean list?", or of a job where `list` lists what one has: " Did you mean muster
// checkpoints list 49?"
std::string CommandLike(const std::string& word, const std::string& group, const CLI::App& at,
                        const std::vector<std::string>& names) {
  // What other schedulers and shells call it, and what is the trainer's.
  static const std::map<std::string, std::string> kElsewhere = {
      {"sbatch", "submit"},
      {"srun", "run"},
      {"squeue", "jobs"},
      {"ps", "jobs"},
      {"ls", "jobs"},
      {"list", "jobs"},
      {"status", "jobs"},
      {"sacct", "history"},
      {"sinfo", "cluster list"},
      {"nodes", "host list"},
      {"scancel", "cancel"},
      {"kill", "cancel"},
      {"stop", "cancel"},
      {"delete", "cancel"},
      {"describe", "show"},
      {"estimate", "muster-trainer estimate --config FILE.json"},
      {"prepare", "muster-trainer prepare"},
      {"convert", "muster-trainer convert"},
      {"export", "muster-trainer export"}};
  const auto elsewhere = kElsewhere.find(word);
  if (at.get_parent() == nullptr && elsewhere != kElsewhere.end())
    return absl::StrCat(" Did you mean ", elsewhere->second, "?");
  const bool of_job =
      !at.get_subcommands([](const CLI::App* sub) {
           return sub->get_name() == "list" && sub->get_option_no_throw("job") != nullptr;
         }).empty();
  if (!of_job || word.find_first_not_of("0123456789_") != std::string::npos)
    return DidYouMean(word, names);
  return absl::StrCat(" Did you mean ", group, " list ", word, "?");
}

// False: the mark isn't there.
bool Cut(const std::string& said, const std::string& mark, std::string* before,
         std::string* behind) {
  const size_t at = said.find(mark);
  if (at == std::string::npos) return false;
  *before = said.substr(0, at);
  *behind = said.substr(at + mark.size());
  return true;
}

// The parser's sentences about options that stand there too often, without a value, or beside one
// that they don't go with; others as they are.
std::string InOurWords(const std::string& said) {
  std::string name, rest, wanted, given;
  if (Cut(said, ": At Most ", &name, &rest) &&
      Cut(rest, " required but received ", &wanted, &given))
    return absl::StrCat(name, " stands there ", given, " times; write it ",
                        wanted == "1" ? "once" : absl::StrCat(wanted, " times at most"));
  if (Cut(said, ": At least ", &name, &rest) &&
      Cut(rest, " required but received ", &wanted, &given))
    return absl::StrCat(name, " wants ", wanted, " values at least; it has ", given);
  if (absl::EndsWith(said, " missing") && Cut(said, " required ", &rest, &wanted) &&
      Cut(rest, ": ", &name, &given))
    return absl::StrCat(name, " wants a value behind it: ",
                        wanted.substr(0, wanted.size() - std::string_view(" missing").size()));
  if (Cut(said, " excludes ", &name, &rest))
    return absl::StrCat(name, " and ", rest, " don't go together; leave one of them out");
  if (Cut(said, " requires ", &name, &rest))
    return absl::StrCat(name, " goes with ", rest, " only; write that, too");
  return said;
}

// "step is required: prepare, sign, drop", where the parser knows all the words that it takes.
std::string WithItsWords(const std::string& said, const CLI::App& at) {
  for (const CLI::Option* option : at.get_options()) {
    const std::string type = option->get_type_name();  // "TEXT:{prepare,sign,drop}"
    const size_t open = type.find('{'), close = type.find('}');
    if (said != option->get_name() + " is required" || open == std::string::npos ||
        close == std::string::npos)
      continue;
    const std::string words = type.substr(open + 1, close - open - 1);
    return absl::StrCat(said, ": ", absl::StrReplaceAll(words, {{",", ", "}}));
  }
  return said;
}

// One usage error: what was wrong and where help is. Everything on stderr, exit 2.
int UsageError(const Session& session, const CLI::App& root, const CLI::ParseError& error) {
  std::string name = "muster";
  const CLI::App* at = &root;
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands().front();
    absl::StrAppend(&name, " ", at->get_name());
  }
  std::string what = error.what();
  for (const CLI::ExitCodes code : {CLI::ExitCodes::ArgumentMismatch, CLI::ExitCodes::RequiresError,
                                    CLI::ExitCodes::ExcludesError}) {
    if (error.get_exit_code() == static_cast<int>(code)) what = InOurWords(error.what());
  }
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError))
    what = WithItsWords(what, *at);
  std::vector<std::string> unknown = root.remaining(true);
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::RequiredError) &&
      at->get_require_subcommand_min() > 0) {
    std::vector<std::string> names;
    for (const CLI::App* sub : at->get_subcommands([](const CLI::App*) { return true; }))
      names.push_back(sub->get_name());
    what = unknown.empty() ? absl::StrCat("say what to do: ", absl::StrJoin(names, ", "))
                           : absl::StrCat("no such command or option: ", unknown.front(), ".",
                                          CommandLike(unknown.front(), name, *at, names));
  }
  if (error.get_exit_code() == static_cast<int>(CLI::ExitCodes::ExtrasError) && !unknown.empty()) {
    std::reverse(unknown.begin(), unknown.end());       // as they were written
    if (unknown.size() > 1) std::erase(unknown, "--");  // ends the options, and is none
    const auto option = std::find_if(unknown.begin(), unknown.end(), [](const std::string& word) {
      return word.size() > 1 && word[0] == '-';
    });
    what = option == unknown.end()
               ? absl::StrCat("does not take this: ", absl::StrJoin(unknown, " "))
               : absl::StrCat("no such option: ", *option, ".", OptionLike(*option, *at, root));
  }
  session.Err(absl::StrCat("muster: ", what, "\n  Help: ", name, " --help\n"));
  return kExitBadInput;
}

// Every command takes the flags of the root, and its help says so. Of a flag that takes several,
// each use gives one, or some with commas between: the word behind it is the command's own.
void SetUp(CLI::App* app) {
  for (CLI::Option* option : app->get_options()) {
    if (!option->get_positional()) option->allow_extra_args(false);
  }
  for (CLI::App* sub : app->get_subcommands([](CLI::App*) { return true; })) {
    sub->fallthrough();
    sub->footer(
        "Everywhere:  --server unix:///PATH   --context NAME   -o table|wide|json|jsonl|yaml|name  "
        " --columns A,B");
    SetUp(sub);
  }
}

int ParseAndRun(CLI::App& root, Session& session, int argc, char** argv) {
  try {
    root.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    session.Out(root.help());  // the chosen command's, with its whole name
    return kExitOk;
  } catch (const CLI::CallForVersion& version) {
    session.Out(absl::StrCat(version.what(), "\n"));
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return UsageError(session, root, error);
  }
  return session.command();
}

int Main(Session& session, int argc, char** argv) {
  CLI::App root(
      "Muster places training jobs on GPU clusters.  The first minute:  muster up,  muster submit "
      "JOB.yaml,  muster jobs",
      "muster");
  root.require_subcommand(1);
  root.set_help_flag("-h,--help", "Say this");
  root.set_version_flag("--version", absl::StrCat("muster ", MUSTER_VERSION),
                        "Version of this program");
  root.add_option(
      "--server", session.server_flag,
      "unix:///path or login:///path; default: MUSTER_SERVER, the context's, the local socket");
  root.add_option("--context", session.context_flag, "Of ~/.config/muster/config.yaml");
  root.add_option("-o,--output", session.output_flag, "table, wide, json, jsonl, yaml or name")
      ->check(CLI::IsMember({"table", "wide", "json", "jsonl", "yaml", "name"}));
  root.add_option("--columns", session.columns_flag, "Of a table, by name, with commas between");
  AddUp(root, session);
  AddSubmit(root, session);
  AddTune(root, session);
  AddScore(root, session);
  AddValidate(root, session);
  AddRun(root, session);
  AddJobs(root, session);
  AddCheckpoints(root, session);
  AddProfile(root, session);
  AddStorage(root, session);
  AddFollow(root, session);
  AddExec(root, session);
  AddDev(root, session);
  AddExplain(root, session);
  AddTop(root, session);
  AddQueue(root, session);
  AddFleet(root, session);
  AddAccess(root, session);
  AddSecret(root, session);
  AddLogin(root, session);
  AddLogout(root, session);
  AddTrust(root, session);
  AddToken(root, session);
  AddSandbox(root, session);
  AddAdmin(root, session);
  AddAbout(root, session);
  SetUp(&root);
  if (argc > 1 && argv[1] == std::string_view(kCompleteCommand)) {
    session.Out(Completions(
        root, {argv + 2, argv + argc}, [&](NameOf what) { return ServerNames(session, what); },
        [&](const std::string& flag, const std::string& value) {
          if (flag == "server") session.server_flag = value;
          if (flag == "context") session.context_flag = value;
        }));
    return kExitOk;
  }
  if (argc > 1 &&
      argv[1] == std::string_view("help")) {  // `muster help queue apply` is what people try first
    std::vector<std::string> words(argv + 2, argv + argc);
    std::erase_if(words, [](const std::string& word) { return word[0] == '-'; });
    words.emplace_back("--help");
    std::vector<char*> asked = {argv[0]};
    for (std::string& word : words) asked.push_back(word.data());
    asked.push_back(nullptr);
    return ParseAndRun(root, session, static_cast<int>(asked.size()) - 1, asked.data());
  }
  return ParseAndRun(root, session, argc, argv);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  muster::Session session;
  session.arguments.assign(argv + 1, argv + argc);
  return session.Finish(muster::Main(session, argc, argv));
}
