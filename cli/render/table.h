// Tables as text: a header, rows of cells, columns aligned. Columns may be kept for `-o wide` or
// chosen by name.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/render/format.h"

namespace muster {

class Table {
 public:
  enum Align { kLeft, kRight };
  struct Column {
    std::string title = "";  // upper case; --columns takes it in any case, blanks as '-'
    Align align = kLeft;
    bool wide_only = false;
    int spare = 0;  // above 0: left out on a live screen that is too narrow for the last column's
                    // sake, the highest first
    bool wrap = false;  // of the last: on a live screen it goes on in the next line, uncut
  };

  explicit Table(std::vector<Column> columns);
  // As many cells as columns. Control characters in cells are made harmless here; an empty cell
  // shows as "-".
  void AddRow(std::vector<std::string> cells);
  bool empty() const { return rows_.empty(); }

  struct Shape {
    bool wide = false;
    std::vector<std::string> columns;  // names; empty: all of the shape
    bool header = true;
  };
  // INVALID_ARGUMENT: an unknown column name; the message lists those there are. On a live screen
  // lines are cut at the screen's width; for the last column's sake wide ones are cut, and spare
  // ones left out.
  absl::StatusOr<std::string> Render(const Screen& screen, const Shape& shape) const;
  std::string Render(const Screen& screen) const;  // all columns but the wide ones

 private:
  std::string RenderColumns(const Screen& screen, std::vector<size_t> chosen, bool header) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace muster
