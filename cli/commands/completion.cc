#include "cli/commands/completion.h"

#include <CLI/CLI.hpp>

#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace muster {
namespace {

constexpr char kFiles[] = ":files";

struct Candidates {
  std::string prefix, lines;

  void Add(const std::string& word, const std::string& help = "") {
    if (!absl::StartsWith(word, prefix)) return;
    absl::StrAppend(&lines, word, help.empty() ? "" : "\t", help.substr(0, help.find('\n')), "\n");
  }
};

const CLI::Option* OptionNamed(const std::string& word, const CLI::App& app, const CLI::App& root) {
  for (const CLI::App* of : {&app, &root}) {
    for (const CLI::Option* option : of->get_options()) {
      for (const std::string& name : option->get_lnames())
        if (word == "--" + name) return option;
      for (const std::string& name : option->get_snames())
        if (word == "-" + name) return option;
    }
  }
  return nullptr;
}

const CLI::App* CommandNamed(const std::string& word, const CLI::App& app) {
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; }))
    if (sub->get_name() == word) return sub;
  return nullptr;
}

// What stands for an option's or a positional's value: by its name, and what the command does with
// it.
NameOf KindOf(const std::string& name, const std::string& command) {
  if ((name == "job" || name == "jobs") &&
      (command == "cancel" || command == "wait" || command == "attach" || command == "explain"))
    return NameOf::kUnfinishedJob;
  if (name == "after" || name == "after-any") return NameOf::kUnfinishedJob;
  static const std::map<std::string, NameOf> kinds = {
      {"job", NameOf::kJob},           {"jobs", NameOf::kJob},
      {"queue", NameOf::kQueue},       {"cluster", NameOf::kCluster},
      {"cluster/host", NameOf::kHost}, {"drain", NameOf::kHostOrCluster},
      {"gpu-type", NameOf::kFlavour}};
  const auto found = kinds.find(name);
  return found == kinds.end() ? NameOf::kNothing : found->second;
}

bool IsPath(const std::string& name) {
  return name == "file" || name == "files" || name == "submit" || name == "queues" ||
         name == "data-dir" || name == "workdir" || name == "image" || name == "directory" ||
         name == "schema";
}

void AddValues(const CLI::Option& option, const std::string& command, const NamesOf& names,
               Candidates* out) {
  const std::string name =
      option.get_lnames().empty() ? option.get_name(true) : option.get_lnames().front();
  // The check for one of a few words shows them in the type: TEXT:{table,wide,json}.
  const std::string type = option.get_type_name();
  const size_t open = type.find('{'), close = type.rfind('}');
  if (open != std::string::npos && close != std::string::npos && open < close) {
    for (absl::string_view word :
         absl::StrSplit(absl::string_view(type).substr(open + 1, close - open - 1), ',')) {
      out->Add(std::string(absl::StripAsciiWhitespace(word)));
    }
  } else if (IsPath(name) || type == "FILE") {
    absl::StrAppend(&out->lines, kFiles, "\n");
  } else if (const NameOf kind = KindOf(name, command); kind != NameOf::kNothing) {
    for (const std::string& word : names(kind)) out->Add(word);
  }
}

}  // namespace

std::string Completions(const CLI::App& root, const std::vector<std::string>& words,
                        const NamesOf& names,
                        const std::function<void(const std::string&, const std::string&)>& flags) {
  const CLI::App* app = &root;
  const CLI::Option* wants_value = nullptr;
  size_t positionals = 0;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (wants_value != nullptr) {
      for (const std::string& name : wants_value->get_lnames()) flags(name, word);
      wants_value = nullptr;
    } else if (word == "--") {
      return absl::StrCat(kFiles, "\n");  // another program's words
    } else if (absl::StartsWith(word, "-")) {
      const CLI::Option* option = OptionNamed(word, *app, root);
      if (option != nullptr && option->get_items_expected_max() > 0) wants_value = option;
    } else if (const CLI::App* sub = CommandNamed(word, *app); sub != nullptr) {
      app = sub;
    } else {
      ++positionals;
    }
  }
  Candidates out;
  out.prefix = words.empty() ? "" : words.back();
  if (wants_value != nullptr) {
    AddValues(*wants_value, app->get_name(), names, &out);
    return out.lines;
  }
  if (absl::StartsWith(out.prefix, "-")) {
    for (const CLI::App* of : {app, &root}) {
      for (const CLI::Option* option : of->get_options()) {
        for (const std::string& name : option->get_lnames())
          out.Add("--" + name, option->get_description());
      }
      if (app == &root) break;
    }
    return out.lines;
  }
  if (positionals == 0) {
    for (const CLI::App* sub : app->get_subcommands([](const CLI::App*) { return true; }))
      out.Add(sub->get_name(), sub->get_description());
  }
  size_t place = 0;
  for (const CLI::Option* option : app->get_options()) {
    if (!option->get_positional()) continue;
    const bool here =
        place++ == positionals || (place <= positionals && option->get_items_expected_max() > 1);
    if (here) AddValues(*option, app->get_name(), names, &out);
  }
  return out.lines;
}

std::string CompletionScript(const std::string& shell) {
  if (shell == "zsh") {
    return R"sh(#compdef muster
# zsh completion for muster:  source <(muster completion zsh)
_muster() {
  local -a found
  local line
  for line in "${(@f)$(muster __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}"; do
    case $line in
      '') ;;
      :files) _files ;;
      *) found+=("${${line//:/\\:}/$'\t'/:}") ;;
    esac
  done
  (( $#found )) && _describe muster found
}
compdef _muster muster
)sh";
  }
  if (shell == "fish") {
    return R"sh(# fish completion for muster:  muster completion fish | source
function __muster_complete
  set -l words (commandline -opc) (commandline -ct)
  for line in (muster __complete $words[2..-1] 2>/dev/null)
    if test "$line" = :files
      __fish_complete_path (commandline -ct)
    else
      echo $line
    end
  end
end
complete -c muster -f -a '(__muster_complete)'
)sh";
  }
  return R"sh(# bash completion for muster:  source <(muster completion bash)
_muster() {
  local line
  COMPREPLY=()
  while IFS= read -r line; do
    case "$line" in
      :files) compopt -o filenames; COMPREPLY+=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}")) ;;
      *) COMPREPLY+=("${line%%$'\t'*}") ;;
    esac
  done < <(muster __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _muster muster
)sh";
}

}  // namespace muster
