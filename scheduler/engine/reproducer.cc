#include "scheduler/engine/reproducer.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/files.h"
#include "scheduler/state/validate.h"

namespace muster {
namespace {

void AppendText(std::string_view text, std::string* out) {
  for (int i = 0; i < 4; ++i) out->push_back(static_cast<char>(text.size() >> (8 * i)));
  out->append(text);
}

bool TakeText(std::string_view* in, std::string* text) {
  if (in->size() < 4) return false;
  size_t size = 0;
  for (int i = 0; i < 4; ++i)
    size |= static_cast<size_t>(static_cast<uint8_t>((*in)[i])) << (8 * i);
  if (in->size() - 4 < size) return false;
  text->assign(in->substr(4, size));
  in->remove_prefix(4 + size);
  return true;
}

}  // namespace

absl::Status SaveRows(const std::string& path, const std::vector<RowChange>& rows) {
  std::string content;
  for (const RowChange& row : rows) {
    AppendText(row.kind, &content);
    AppendText(row.id, &content);
    AppendText(row.bytes.value_or(""), &content);
  }
  return WriteFileDurably(path, content);
}

absl::StatusOr<std::vector<RowChange>> LoadRows(const std::string& path) {
  absl::StatusOr<std::string> content = ReadFile(path);
  if (!content.ok()) return content.status();
  std::vector<RowChange> rows;
  std::string_view rest = *content;
  while (!rest.empty()) {
    RowChange row;
    row.bytes.emplace();
    if (!TakeText(&rest, &row.kind) || !TakeText(&rest, &row.id) || !TakeText(&rest, &*row.bytes)) {
      return absl::DataLossError(absl::StrCat(path, ": ends inside row ", rows.size()));
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

absl::Status SaveRefusedPlan(const std::string& directory, const State& state, const Plan& plan,
                             int64_t now_ns, const absl::Status& why) {
  std::string text = absl::StrCat("refused: ", why.ToString(), "\nnow_ns: ", now_ns, "\n");
  for (size_t i = 0; i < plan.events.size(); ++i)
    absl::StrAppend(&text, "event ", i, ":\n", plan.events[i].DebugString());
  absl::Status status = MakeDirectories(directory);
  if (status.ok()) status = WriteFileDurably(directory + "/plan.txt", text);
  if (status.ok()) status = SaveRows(directory + "/rows", state.AllRows());
  return status;
}

absl::StatusOr<RefusedAgain> ReplayRefusedPlan(
    const std::string& directory, const SchedulingOptions& options,
    const std::function<Plan(const State&, int64_t, const SchedulingOptions&)>& decide) {
  constexpr std::string_view kWhy = "refused: ", kWhen = "\nnow_ns: ";
  const absl::StatusOr<std::string> text = ReadFile(directory + "/plan.txt");
  if (!text.ok()) return text.status();
  const size_t when = text->find(kWhen);
  int64_t now_ns = 0;
  if (text->rfind(kWhy, 0) != 0 || when == std::string::npos ||
      !absl::SimpleAtoi(
          text->substr(when + kWhen.size(), text->find('\n', when + 1) - when - kWhen.size()),
          &now_ns)) {
    return absl::DataLossError(
        absl::StrCat(directory, "/plan.txt: doesn't begin with why a plan was refused, and when"));
  }
  const absl::StatusOr<std::vector<RowChange>> rows = LoadRows(directory + "/rows");
  if (!rows.ok()) return rows.status();
  const absl::StatusOr<State> state = State::Load(*rows);
  if (!state.ok())
    return absl::DataLossError(absl::StrCat(directory, "/rows: ", state.status().message()));
  const Plan plan = decide(*state, now_ns, options);
  RefusedAgain again;
  again.then = text->substr(kWhy.size(), when - kWhy.size());
  if (const absl::Status status = Validate(*state, plan); !status.ok())
    again.now = status.ToString();
  again.events = plan.events.size();
  return again;
}

}  // namespace muster
