#include "cli/render/table.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/base/check.h"

namespace muster {
namespace {

std::string Key(const std::string& title) {
  return absl::StrReplaceAll(absl::AsciiStrToLower(title), {{" ", "-"}, {"_", "-"}});
}

constexpr int kWords = 24, kLeast = 12;

// Room for every column, the last, which says why, with some words of it.
int Wanted(const std::vector<int>& widths) {
  int wanted = std::min(widths.back(), kWords) + 2 * static_cast<int>(widths.size() - 1);
  for (size_t i = 0; i + 1 < widths.size(); ++i) wanted += widths[i];
  return wanted;
}

// Where the lines are wider than the screen, the widest columns but the first and the last give way
// until the last, which says why, has room for some words. False: they are as narrow as they may
// be, and it has not.
bool MakeRoom(int screen_width, std::vector<int>* widths) {
  if (widths->size() < 3) return true;
  for (int wanted = Wanted(*widths); wanted > screen_width; --wanted) {
    const auto widest = std::max_element(widths->begin() + 1, widths->end() - 1);
    if (*widest <= kLeast) return false;
    --*widest;
  }
  return true;
}

// The line, its last cell broken at blanks so that it goes on below where it begins.
std::string Folded(const std::string& line, int width, int begin) {
  size_t at = 0;  // byte of column `begin`
  for (int seen = 0; at < line.size(); ++at) {
    if ((static_cast<unsigned char>(line[at]) & 0xc0) != 0x80 && seen++ == begin) break;
  }
  const int room = std::max(kLeast, width - begin);
  const std::string folded = Wrapped(line.substr(at), room);
  return absl::StrCat(
      line.substr(0, at),
      absl::StrReplaceAll(folded, {{"\n", absl::StrCat("\n", std::string(begin, ' '))}}));
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

void Table::AddRow(std::vector<std::string> cells) {
  MUSTER_CHECK(cells.size() == columns_.size());
  for (std::string& cell : cells) cell = cell.empty() ? "-" : Plain(cell);
  rows_.push_back(std::move(cells));
}

std::string Table::RenderColumns(const Screen& screen, std::vector<size_t> chosen,
                                 bool header) const {
  std::vector<int> widths, whole_widths;
  for (size_t c : chosen) {
    int width = header ? DisplayWidth(columns_[c].title) : 0;
    for (const auto& row : rows_) width = std::max(width, DisplayWidth(row[c]));
    whole_widths.push_back(width);
  }
  for (widths = whole_widths; screen.live && !MakeRoom(screen.width, &widths);
       widths = whole_widths) {
    const auto spare = std::max_element(chosen.begin(), chosen.end(), [this](size_t a, size_t b) {
      return columns_[a].spare < columns_[b].spare;
    });
    if (columns_[*spare].spare == 0) break;
    whole_widths.erase(whole_widths.begin() + (spare - chosen.begin()));
    chosen.erase(spare);
  }
  if (screen.live) MakeRoom(screen.width, &widths);
  auto line = [&](auto cell_of) {
    std::string text;
    int begin = 0;  // of the last column
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (i > 0) begin = DisplayWidth(text) + 2;
      const std::string& whole = cell_of(chosen[i]);
      const bool last = i + 1 == chosen.size();  // it may be wider: the line is cut
      const std::string cell = last ? whole : Truncated(whole, widths[i], screen.utf8);
      std::string padding(static_cast<size_t>(std::max(0, widths[i] - DisplayWidth(cell))), ' ');
      if (i > 0) text += "  ";
      text += columns_[chosen[i]].align == kRight ? absl::StrCat(padding, cell)
                                                  : absl::StrCat(cell, padding);
    }
    std::string trimmed(absl::StripTrailingAsciiWhitespace(text));
    const bool wraps = columns_[chosen.back()].wrap;
    if (screen.live && wraps && DisplayWidth(trimmed) > screen.width)
      return Folded(trimmed, screen.width, begin);
    return screen.live ? Truncated(trimmed, screen.width, screen.utf8) : trimmed;
  };
  std::string out;
  if (header) {
    std::string titles = line([&](size_t c) -> const std::string& { return columns_[c].title; });
    out = screen.color ? absl::StrCat("\x1b[1m", titles, "\x1b[0m\n") : absl::StrCat(titles, "\n");
  }
  for (const auto& row : rows_)
    absl::StrAppend(&out, line([&](size_t c) -> const std::string& { return row[c]; }), "\n");
  return out;
}

absl::StatusOr<std::string> Table::Render(const Screen& screen, const Shape& shape) const {
  std::vector<size_t> chosen;
  for (const std::string& name : shape.columns) {
    size_t c = 0;
    while (c < columns_.size() && Key(columns_[c].title) != Key(name)) ++c;
    if (c == columns_.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--columns: no column \"", name, "\" here. There are ",
                       absl::StrJoin(columns_, ", ", [](std::string* out, const Column& column) {
                         out->append(Key(column.title));
                       })));
    }
    chosen.push_back(c);
  }
  if (shape.columns.empty()) {
    for (size_t c = 0; c < columns_.size(); ++c)
      if (shape.wide || !columns_[c].wide_only) chosen.push_back(c);
  }
  Screen chosen_screen = screen;
  if (shape.wide || !shape.columns.empty()) chosen_screen.live = false;  // asked for: not cut
  return RenderColumns(chosen_screen, chosen, shape.header);
}

std::string Table::Render(const Screen& screen) const {
  std::vector<size_t> chosen;
  for (size_t c = 0; c < columns_.size(); ++c)
    if (!columns_[c].wide_only) chosen.push_back(c);
  return RenderColumns(screen, chosen, true);
}

}  // namespace muster
