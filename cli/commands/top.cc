#include <CLI/CLI.hpp>

#include "absl/strings/str_cat.h"
#include "cli/commands/commands.h"
#include "cli/interrupt.h"
#include "cli/keys.h"
#include "cli/render/ledger.h"
#include "cli/render/top.h"

namespace muster {
namespace {

struct TopOptions {
  std::string by = "queue";
  int limit = 30;
  bool once = false, watch = false;
};

int ShowTop(Session& session, const pb::TopRequest& request, bool redraw) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  absl::StatusOr<pb::TopResponse> top = (*client)->Top(request);
  if (!top.ok()) return session.Fail(top.status());
  std::vector<const google::protobuf::Message*> rows;
  std::vector<std::string> names;
  for (const auto& row : top->rows()) {
    rows.push_back(&row);
    names.push_back(row.job() != 0 ? absl::StrCat(row.job()) : row.name());
  }
  if (redraw) session.Out("\x1b[H\x1b[2J");
  if (session.for_people()) session.Out(absl::StrCat(TopHead(*top, session.out_screen()), "\n"));
  if (rows.empty() && session.for_people()) {
    session.Err("Nothing runs, nothing waits, and no queue has a quota.\n");
    return kExitOk;
  }
  const int code = session.Show(TopTable(*top, request.by()), *top, rows, names);
  if (top->left_out() > 0 && session.for_people())
    session.Err(absl::StrCat(top->left_out(), " more rows: --limit N shows them.\n"));
  return code;
}

int Top(Session& session, const TopOptions& options) {
  pb::TopRequest request;
  request.set_limit(options.limit);
  request.set_by(options.by == "cluster" ? pb::TopRequest::CLUSTER
                 : options.by == "user"  ? pb::TopRequest::USER
                 : options.by == "job"   ? pb::TopRequest::JOB
                                         : pb::TopRequest::QUEUE);
  const bool live = session.out_screen().live && session.for_people();
  if (options.once || (!live && !options.watch)) return ShowTop(session, request, false);
  Interrupt interrupt;
  Keys keys(live);
  for (;;) {
    const int code = ShowTop(session, request, live);
    if (code != kExitOk || session.out_failed()) return code;
    const Keys::Woken woken = keys.WaitFor(interrupt, 2000);
    if (woken == Keys::kQuit) return kExitOk;
    if (woken == Keys::kInterrupt) return kExitInterrupted;
    if (!live && session.for_people()) session.Out("\n");
  }
}

int ShowLedger(Session& session, const std::string& by) {
  absl::StatusOr<Client*> client = session.client();
  if (!client.ok()) return session.Fail(client.status());
  pb::GetLedgerRequest request;
  request.set_by(by == "queue"  ? pb::GetLedgerRequest::QUEUE
                 : by == "user" ? pb::GetLedgerRequest::USER
                 : by == "job"  ? pb::GetLedgerRequest::JOB
                                : pb::GetLedgerRequest::NOTHING);
  absl::StatusOr<pb::LedgerResponse> ledger = (*client)->Ledger(request);
  if (!ledger.ok()) return session.Fail(ledger.status());
  std::vector<const google::protobuf::Message*> rows;
  std::vector<std::string> names;
  for (const auto& entry : ledger->entries()) {
    if (!by.empty()) break;
    rows.push_back(&entry);
    names.push_back(entry.class_());
  }
  for (const auto& row : ledger->rows()) {
    rows.push_back(&row);
    names.push_back(row.job() != 0 ? absl::StrCat(row.job()) : row.name());
  }
  if (session.for_people()) session.Err(LedgerLine(*ledger));
  return session.Show(by.empty() ? LedgerTable(*ledger) : LedgerRowsTable(*ledger, request.by()),
                      *ledger, rows, names);
}

}  // namespace

void AddTop(CLI::App& root, Session& session) {
  auto options = std::make_shared<TopOptions>();
  CLI::App* top =
      root.add_subcommand("top", "Who uses what now, live on a terminal until q (sinfo)");
  top->add_option("--by", options->by, "queue, cluster, user or job")
      ->check(CLI::IsMember({"queue", "cluster", "user", "job"}))
      ->capture_default_str();
  top->add_option("--limit", options->limit, "At most so many rows")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  top->add_flag("-1,--once", options->once, "Once, even on a terminal");
  top->add_flag("-w,--watch", options->watch, "Again every 2 s until Ctrl+C, even in a pipe");
  top->callback([&session, options] {
    session.command = [&session, options] { return Top(session, *options); };
  });

  auto by = std::make_shared<std::string>();
  CLI::App* ledger =
      root.add_subcommand("ledger", "Where every device-second went, by class (sreport)");
  ledger->add_option("--by", *by, "queue, user or job")
      ->check(CLI::IsMember({"queue", "user", "job"}));
  ledger->callback(
      [&session, by] { session.command = [&session, by] { return ShowLedger(session, *by); }; });
}

}  // namespace muster
