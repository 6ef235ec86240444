// Puts the chunks of a log stream on the screen: whole lines, with their rank in front when there are several.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "cli/session.h"

namespace muster {

class LogWriter {
 public:
  // A log is data: all of it goes to stdout. Apart: what the processes wrote to standard error goes to stderr.
  enum Streams { kTogether, kApart };

  LogWriter(Session& session, const pb::Job& job, const pb::LogsRequest& request, Streams streams);
  void Write(const pb::LogsResponse& chunk);
  void End();  // what is left of unfinished lines
  bool wrote() const { return wrote_; }   // anything at all

 private:
  void WritePart(int rank, bool is_error, std::string_view data);

  Session& session_;
  const bool with_rank_;
  const Streams streams_;
  bool wrote_ = false;
  std::map<std::pair<int, bool>, std::string> unfinished_;  // by rank and whether it is of standard error
};

}  // namespace muster
