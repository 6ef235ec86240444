#include "common/spec/problem.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/utf8.h"

namespace muster {
namespace {

constexpr size_t kProblemsShown = 50;
constexpr int kLineShown = 110;  // characters of a source line

// Control characters would reach the reader's terminal: shown as '?', a tab as a space so that
// carets stay below.
std::string Printable(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c == '\t') c = ' ';
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return out;
}

// UTF-8 characters; a byte that belongs to none, and a control character of two bytes, is shown as
// '?'.
std::vector<std::string> Characters(std::string_view text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t size = CharacterSize(text, at);
    const bool control =
        size == 2 && text[at] == '\xc2' && static_cast<unsigned char>(text[at + 1]) < 0xa0;
    out.emplace_back(size > 0 && !control ? text.substr(at, size) : "?");
    at += std::max<size_t>(size, 1);
  }
  return out;
}

// The source line and the carets below, cut to a window around them when the line is long.
void AppendPicture(const Problem& problem, const std::string& indent, bool color,
                   std::string* out) {
  std::vector<std::string> line = Characters(Printable(problem.source_line));
  int column = std::max(problem.column, 1) - 1;
  if (static_cast<int>(line.size()) > kLineShown) {
    const int start =
        std::clamp(column - kLineShown / 3, 0, static_cast<int>(line.size()) - kLineShown);
    std::vector<std::string> window(line.begin() + start, line.begin() + start + kLineShown);
    if (start > 0) window.insert(window.begin(), "...");
    if (start + kLineShown < static_cast<int>(line.size())) window.emplace_back("...");
    column = column - start + (start > 0 ? 3 : 0);
    line = std::move(window);
  }
  std::string text;
  for (const std::string& character : line) text += character;
  const int room = std::max(1, kLineShown + 3 - column);
  const std::string carets(static_cast<size_t>(std::clamp(problem.caret_width, 1, room)), '^');
  const std::string number = absl::StrCat(problem.line);
  absl::StrAppend(out, indent, number, " | ", text, "\n");
  absl::StrAppend(out, indent, std::string(number.size(), ' '), " | ",
                  std::string(static_cast<size_t>(column), ' '), color ? "\033[31m" : "", carets,
                  color ? "\033[0m" : "", "\n");
}

// Insertions, deletions, replacements and swaps of neighbours (optimal string alignment).
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> above(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      next[j] =
          std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        next[j] = std::min(next[j], above[j - 2] + 1);
    }
    above.swap(row);
    row.swap(next);
  }
  return row[b.size()];
}

// How words are compared: without case, '-' like '_'.
std::string Folded(std::string_view word) {
  std::string out(word);
  for (char& c : out) c = c == '-' ? '_' : static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c);
  return out;
}

}  // namespace

std::string DidYouMean(std::string_view word, const std::vector<std::string>& names) {
  if (word.empty() || word.size() > 64) return "";
  const std::string wanted = Folded(word);
  const std::string* best = nullptr;
  size_t best_distance = std::max<size_t>(1, word.size() / 4) + 1;
  for (const std::string& name : names) {
    const std::string folded = Folded(std::string_view(name).substr(0, 128));
    if (wanted.size() >= 3 && name.size() <= 64 && folded.substr(0, wanted.size()) == wanted &&
        best == nullptr)
      best = &name;
    const size_t distance = EditDistance(wanted, folded);
    if (distance < best_distance && distance < word.size()) {
      best = &name;
      best_distance = distance;
    }
  }
  return best == nullptr ? "" : absl::StrCat(" Did you mean ", *best, "?");
}

bool IsOneEditFrom(std::string_view word, std::string_view name) {
  if (word.size() > 64 || word.size() > name.size() + 1 || name.size() > word.size() + 1)
    return false;
  return EditDistance(Folded(word), Folded(name)) == 1;
}

std::string FormatProblems(const std::vector<Problem>& problems, std::string_view filename,
                           const ProblemFormat& format) {
  std::string out = absl::StrCat(
      format.color ? "\033[1m" : "", Printable(filename), format.color ? "\033[0m" : "", ": ",
      problems.size(), problems.size() == 1 ? " problem, " : " problems, ", format.outcome, "\n");
  const size_t shown = std::min(problems.size(), kProblemsShown);
  const auto place = [](const Problem& problem) {
    return problem.line == 0 ? std::string("-") : absl::StrCat(problem.line, ":", problem.column);
  };
  size_t width = 0;
  for (size_t i = 0; i < shown; ++i) width = std::max(width, place(problems[i]).size());
  const std::string indent(width + 3, ' ');
  int pictured = 0;
  for (size_t i = 0; i < shown; ++i) {
    const Problem& problem = problems[i];
    std::string where = place(problem);
    where.resize(width, ' ');
    const std::vector<std::string> lines = absl::StrSplit(problem.message, '\n');
    absl::StrAppend(&out, " ", where, "  ", Printable(problem.path),
                    problem.path.empty() ? "" : ": ", Printable(lines[0]), "\n");
    for (size_t k = 1; k < lines.size(); ++k)
      absl::StrAppend(&out, indent, Printable(lines[k]), "\n");
    if (problem.line == 0 || problem.line == pictured || lines.size() > 1) continue;
    AppendPicture(problem, indent, format.color, &out);
    pictured = problem.line;
  }
  if (shown < problems.size())
    absl::StrAppend(&out, " ... and ", problems.size() - shown, " more\n");
  if (!format.footer.empty()) absl::StrAppend(&out, format.footer, "\n");
  return out;
}

std::string FieldsHint(const std::vector<Problem>& problems) {
  std::string field;  // the first problem's, without tasks[i]
  for (const Problem& problem : problems) {
    std::string_view path = problem.path;
    if (path.substr(0, 6) == "tasks[")
      path = path.find('.') == std::string_view::npos ? "" : path.substr(path.find('.') + 1);
    path = path.substr(0, path.find_first_of(".["));
    static const std::vector<std::string> kWithFields = {"workers", "resources",  "topology", "run",
                                                         "trainer", "checkpoint", "input"};
    if (std::find(kWithFields.begin(), kWithFields.end(), path) != kWithFields.end()) {
      field = std::string(path);
      break;
    }
  }
  return absl::StrCat("All fields: muster fields", field.empty() ? "" : " ", field);
}

std::string JobFooter(const std::vector<Problem>& problems, std::string_view filename) {
  return absl::StrCat(FieldsHint(problems), "     Check offline: muster validate --offline ",
                      Printable(filename));
}

}  // namespace muster
