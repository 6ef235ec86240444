// What is wrong with a file that a user wrote, and where; and how that is shown.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster {

// One problem with its place. Lines and columns count from 1, columns in characters; line 0: the
// file as a whole.
struct Problem {
  std::string file;
  int line = 0;
  int column = 0;
  std::string path;     // field, such as tasks[1].workers.max; empty: the file's YAML itself
  std::string message;  // what is wrong and what would be right; a second line, if any, is a remedy
  std::string source_line;  // the line as written
  int caret_width = 1;      // characters to underline, from `column`
};

struct ProblemFormat {
  std::string outcome = "nothing was submitted";  // ends the first line
  std::string
      footer;  // last line, without '\n'; empty: none. JobFooter makes the one for job files
  bool color = false;  // ANSI: bold file, red carets
};

// "sft.yaml: 3 problems, nothing was submitted", then each problem with its source line and carets
// as `muster validate` shows it. Problems of one line share its picture; a remedy stands in the
// picture's place. Control characters are shown as '?'.
std::string FormatProblems(const std::vector<Problem>& problems, std::string_view filename,
                           const ProblemFormat& format = {});

// "All fields: muster fields resources", of the first problem's field.
std::string FieldsHint(const std::vector<Problem>& problems);
// The same of a file: "All fields: muster fields resources     Check offline: muster validate
// --offline sft.yaml"
std::string JobFooter(const std::vector<Problem>& problems, std::string_view filename);

// " Did you mean gpus?" for the nearest of `names`, whatever their case, within a quarter of the
// word's length (at least 1 edit), else for one that the word begins; empty if there is none.
std::string DidYouMean(std::string_view word, const std::vector<std::string>& names);

// Whether one letter is missing, too many or another one, or two neighbours are swapped; whatever
// their case. Of words of up to 64 characters.
bool IsOneEditFrom(std::string_view word, std::string_view name);

}  // namespace muster
