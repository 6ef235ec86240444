// One Logs call: asks the hosts of an attempt for its output and passes on what they send; with `follow`, goes on with the
// task's next attempts until the task has ended.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "muster/v1/job_service.pb.h"
#include "scheduler/api/context.h"
#include "scheduler/api/queued_writer.h"
#include "scheduler/api/watch.h"

namespace muster {

class LogStream : public QueuedWriter<grpc::ServerWriteReactor<pb::LogsResponse>, pb::LogsResponse>,
                  public std::enable_shared_from_this<LogStream> {
 public:
  LogStream(const ApiContext* context, WatchHub* hub, pb::LogsRequest request);
  void Begin(uint64_t job);

 protected:
  void Gone() override;

 private:
  // The hub's thread: starts what can be started, ends when nothing more can come.
  void Look(const View& view, const JobRow* job);
  grpc::Status Ask(const View& view, const JobRow& job, int32_t task, const AttemptRow& attempt);
  void Chunk(const std::string& task, int32_t attempt, const pb::LogChunk& chunk);

  const ApiContext* const context_;
  WatchHub* const hub_;
  const pb::LogsRequest request_;

  std::mutex state_mutex_;
  uint64_t job_ = 0;
  uint64_t watch_ = 0;
  bool over_ = false;                   // Gone was called
  int32_t asked_ = 0;                   // newest attempt whose output was asked for
  std::string task_;                    // once chosen
  std::set<uint64_t> open_;             // requests at agents without an end yet
  int64_t dropped_bytes_ = 0;           // not sent, because the reader is slow
  std::string error_;                   // of a host; told at the end
};

}  // namespace muster
