// Puts the chunks of a log stream on stdout: whole lines, with their rank in front when there are several.
#pragma once

#include <map>
#include <string>

#include "cli/session.h"

namespace muster {

class LogWriter {
 public:
  LogWriter(Session& session, const pb::Job& job, const pb::LogsRequest& request);
  void Write(const pb::LogsResponse& chunk);
  void End();  // what is left of unfinished lines

 private:
  Session& session_;
  bool with_rank_;
  std::map<int, std::string> unfinished_;  // by rank
};

}  // namespace muster
