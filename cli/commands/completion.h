// Shell completion, asked of the parser itself each time, so that it can't fall behind: the shells'
// scripts only pass on the words and show the answer. What users name (jobs, queues, hosts,
// clusters, flavours) comes from the server, if one answers.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace muster {

class Session;

// `muster __complete WORDS…`: how the scripts ask. The last word is the one that is being written,
// and may be empty.
inline constexpr char kCompleteCommand[] = "__complete";

// What names of the server's things may stand somewhere.
enum class NameOf {
  kNothing,
  kJob,
  kUnfinishedJob,
  kQueue,
  kHost,
  kCluster,
  kHostOrCluster,
  kFlavour
};
using NamesOf = std::function<std::vector<std::string>(NameOf)>;

// A line for each word that may stand in the last one's place, then a tab and what it is for, if
// there is more to say;
// ":files" for paths. `flags`: what the words before say of --server and --context is told to it
// first.
std::string Completions(
    const CLI::App& root, const std::vector<std::string>& words, const NamesOf& names,
    const std::function<void(const std::string& flag, const std::string& value)>& flags);

// Of the session's server; none if nobody answers.
std::vector<std::string> ServerNames(Session& session, NameOf what);

// The script of "bash", "zsh" or "fish".
std::string CompletionScript(const std::string& shell);

}  // namespace muster
