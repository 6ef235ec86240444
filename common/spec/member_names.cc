#include "common/spec/member_names.h"

#include <algorithm>
#include <functional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/view.h"
#include "common/spec/members.h"
#include "common/spec/problem.h"
#include "common/spec/yaml_tree.h"

namespace muster {
namespace {

constexpr char kWayOut[] = ". Is it another program's? Put that text into a file";

// Words of Go's and Jinja's templates, which are no names.
bool IsTemplateWord(std::string_view word) {
  static const std::set<std::string, std::less<>> words = {
      "else", "end", "endif", "endfor", "endraw", "endblock", "endmacro", "raw"};
  return words.contains(word);
}

// '_' for '-' between letters: {{learning-rate}} can be no name.
std::string WithUnderscores(std::string_view word) {
  std::string out(word);
  if (!out.empty() && out.front() != '-' && out.back() != '-')
    std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

std::string WordOf(const std::string& inner) {
  const absl::string_view stripped = absl::StripAsciiWhitespace(inner);
  return WithUnderscores({stripped.data(), stripped.size()});
}

// Whether the word is nearly the name: four letters or more, of which one is wrong. {{message}} is
// no slip of `messages`: another program's names come in both forms.
bool IsSlip(std::string_view word, std::string_view name) {
  constexpr size_t kLeastLetters = 4;
  if (!IsPlainName(word) && !SetsTrainer(word)) return false;
  if (word.size() < kLeastLetters || IsTemplateWord(word) || !IsOneEditFrom(word, name))
    return false;
  const bool plural = absl::EqualsIgnoreCase(absl::StrCat(View(word), "s"), View(name)) ||
                      absl::EqualsIgnoreCase(View(word), absl::StrCat(View(name), "s"));
  return !plural;
}

// {{learning_rate}} or {{model.layers}} for a name that begins with `trainer.`.
bool LacksItsBeginning(std::string_view word, std::string_view name) {
  return word.size() < name.size() && SetsTrainer(name) &&
         absl::EndsWithIgnoreCase(View(name), absl::StrCat(".", View(word)));
}

// Each text of the job in which names are replaced, with its field's path.
void ForEachText(const pb::JobSpec& spec, bool short_form,
                 const std::function<void(const std::string& text, const std::string& path)>& on) {
  for (int t = 0; t < spec.tasks_size(); ++t) {
    const pb::TaskSpec& task = spec.tasks(t);
    const std::string path = short_form ? "" : IndexPath("tasks", static_cast<size_t>(t));
    on(task.run().shell(), JoinPath(path, "run"));
    for (const std::string& word : task.run().exec()) on(word, JoinPath(path, "run"));
    on(task.setup(), JoinPath(path, "setup"));
    on(ExportOf(task), JoinPath(JoinPath(path, "trainer"), "export"));
    for (const auto& [name, value] : task.env()) on(value, JoinPath(JoinPath(path, "env"), name));
  }
  for (const auto& [name, value] : spec.env()) on(value, JoinPath("env", name));
}

bool HasName(const pb::JobSpec& spec, const std::string& name) {
  return std::any_of(spec.sweep().begin(), spec.sweep().end(),
                     [&](const pb::SweepValues& of) { return of.name() == name; });
}

}  // namespace

bool IsPlainName(std::string_view name) {
  return !name.empty() && name.size() <= 63 && !(name[0] >= '0' && name[0] <= '9') &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return c == '_' || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
                  (c >= '0' && c <= '9');
         });
}

std::vector<Placeholder> PlaceholdersOf(const pb::JobSpec& spec, bool short_form) {
  std::vector<Placeholder> found;
  ForEachText(spec, short_form, [&](const std::string& text, const std::string& path) {
    for (size_t at = text.find("{{"); at != std::string::npos; at = text.find("{{", at + 2)) {
      const size_t end = text.find("}}", at);
      if (end == std::string::npos) return;
      found.push_back({path, text.substr(at + 2, end - at - 2)});
    }
  });
  return found;
}

std::string WrongPlaceholder(const std::string& inner, const std::vector<std::string>& names) {
  const std::string word = WordOf(inner);
  for (const std::string& name : names) {
    if (absl::EqualsIgnoreCase(word, name))
      return absl::StrCat("{{", inner, "}} is replaced by nothing; write {{", name, "}}", kWayOut);
  }
  for (const std::string& name : names) {
    if (IsSlip(word, name) || LacksItsBeginning(word, name))
      return absl::StrCat("{{", inner, "}} is no name of this job's members. Did you mean ", name,
                          "? Known: ", absl::StrJoin(names, ", "), kWayOut);
  }
  return "";
}

std::vector<std::string> UntakenNames(const pb::JobSpec& spec) {
  std::vector<std::string> untaken;
  for (const pb::SweepValues& of : spec.sweep()) {
    const std::string braced = absl::StrCat("{{", of.name(), "}}"),
                      variable = SweepVariable(of.name());
    bool taken = SetsTrainer(of.name());
    ForEachText(spec, /*short_form=*/false, [&](const std::string& text, const std::string&) {
      taken = taken || absl::StrContains(text, braced) || absl::StrContains(text, variable);
    });
    if (!taken) untaken.push_back(of.name());
  }
  return untaken;
}

std::string WhyUntaken(const std::string& name, const pb::JobSpec& spec) {
  for (const Placeholder& placeholder : PlaceholdersOf(spec, /*short_form=*/false)) {
    const std::string word = WordOf(placeholder.inner);
    if (word == "index" || HasName(spec, placeholder.inner) || !IsPlainName(word) ||
        IsTemplateWord(word) || DidYouMean(word, {name}).empty())
      continue;
    return absl::StrCat("nothing takes it, and {{", placeholder.inner, "}} has no value. Write {{",
                        name, "}}, or call it ", word, kWayOut);
  }
  return "";
}

std::vector<std::string> NotesOnNames(const pb::JobSpec& spec) {
  std::vector<std::string> notes, taken;
  const std::vector<std::string> untaken = UntakenNames(spec);
  for (const pb::SweepValues& of : spec.sweep()) {
    if (std::find(untaken.begin(), untaken.end(), of.name()) == untaken.end())
      taken.push_back(of.name());
  }
  for (const std::string& name : untaken) {
    const std::string like = DidYouMean(name, taken);
    notes.push_back(absl::StrCat("sweep.", name, ": no {{", name, "}} stands in the job",
                                 like.empty() ? "; only" : absl::StrCat(".", like, " Only"),
                                 " a program that reads ", SweepVariable(name),
                                 " takes its values"));
  }
  const bool has_index = MembersOf(spec) > 0;
  std::set<std::string> told;
  for (const Placeholder& of : PlaceholdersOf(spec, spec.tasks_size() == 1)) {
    const std::string word = WordOf(of.inner);
    if (!IsPlainName(word) || IsTemplateWord(word) || HasName(spec, of.inner) ||
        (has_index && of.inner == "index") || !told.insert(of.inner).second)
      continue;
    notes.push_back(absl::StrCat(
        of.path, ": {{", of.inner, "}} stays as it stands: ",
        of.inner == "index" ? "the job is no array" : "no sweep of the job has that name"));
  }
  return notes;
}

}  // namespace muster
