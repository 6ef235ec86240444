#include "cli/commands/completion.h"

#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {
namespace {

// Subcommands and options that may follow, with those of the root, which every command takes.
std::string Words(const CLI::App& app, const CLI::App& root) {
  std::vector<std::string> words;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) words.push_back(sub->get_name());
  auto options = [&](const CLI::App& of) {
    for (const CLI::Option* option : of.get_options()) {
      for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
    }
  };
  options(app);
  if (&app != &root) options(root);
  return absl::StrJoin(words, " ");
}

void Cases(const CLI::App& app, const CLI::App& root, const std::string& path, std::string* out) {
  absl::StrAppend(out, "    \"", path, "\") words=\"", Words(app, root), "\" ;;\n");
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    Cases(*sub, root, path.empty() ? sub->get_name() : absl::StrCat(path, " ", sub->get_name()), out);
  }
}

}  // namespace

std::string BashCompletion(const CLI::App& root) {
  std::string cases;
  Cases(root, root, "", &cases);
  return absl::StrCat(R"sh(# bash completion for muster:  source <(muster completion bash)
_muster() {
  local path="" words="" word current="${COMP_WORDS[COMP_CWORD]}" i
  for ((i = 1; i < COMP_CWORD; i++)); do
    word="${COMP_WORDS[i]}"
    [[ $word == -* ]] && continue
    case " queue cluster host " in
      *" $path "*) path="$path $word"; break ;;
    esac
    [[ -z $path ]] && path="$word"
  done
  case "$path" in
)sh",
                      cases, R"sh(  esac
  case "$path" in
    submit|validate|"queue apply"|"queue diff")
      [[ $current != -* ]] && { compopt -o filenames; COMPREPLY=($(compgen -f -- "$current")); return; } ;;
    show|explain|attach|logs|wait|cancel)
      [[ $current != -* ]] && words="$(muster jobs -o name 2>/dev/null)" ;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -F _muster muster
)sh");
}

}  // namespace muster
