// Puts the chunks of a log stream on the screen: when there are several ranks, whole lines with
// their rank in front, and of a longer line pieces of 64 KiB.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "cli/interrupt.h"
#include "cli/render/escapes.h"
#include "cli/session.h"

namespace muster {

class LogWriter {
 public:
  // A log is data: all of it goes to stdout. Apart: what the processes wrote to standard error goes
  // to stderr.
  enum Streams { kTogether, kApart };

  LogWriter(Session& session, const pb::Job& job, const pb::LogsRequest& request, Streams streams);
  void Write(const pb::LogsResponse& chunk);
  void End();                            // what is left of unfinished lines
  bool wrote() const { return wrote_; }  // anything at all
  bool has_gaps() const {
    return has_gaps_;
  }  // output was deleted before it was read; it is told where that is
  std::string_view tail() const { return tail_; }  // its last 8 KiB, of all ranks, or somewhat more

 private:
  void WritePart(int rank, bool is_error, std::string_view data);
  // As it may reach where it goes: as it is, unless that is a terminal.
  void Put(bool is_error, const std::string& text);

  Session& session_;
  const bool with_rank_;
  const Streams streams_;
  bool wrote_ = false, has_gaps_ = false;
  std::string tail_;
  std::map<std::pair<int, bool>, std::string>
      unfinished_;  // by rank and whether it is of standard error
  std::map<std::pair<int, bool>, TerminalText> shown_;  // likewise; of what goes to a terminal
};

// Reads what is asked for, to the end. With follow, a server that goes away is waited for, some
// minutes, and what came is not asked for again. `tells`: and that is said. `on_piece`: after each
// piece of output. An error: the output is not complete, or there is none.
absl::Status ReadLogs(Session& session, Client& client, pb::LogsRequest request,
                      const Interrupt& interrupt, LogWriter* writer, bool tells,
                      const std::function<void()>& on_piece = nullptr);

}  // namespace muster
