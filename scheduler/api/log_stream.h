// One Logs call: asks the hosts of an attempt for its output and passes on what they send; with
// `follow`, goes on with the task's next attempts until the task has ended.
//
// A host sends so much, then ends with `more` and is asked again from where it was, once the reader
// has taken most of that: what waits here is bounded, and nothing is left out for a slow reader. A
// host that disconnects is asked again likewise, with `follow`, when it is back.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "muster/v1/job_service.pb.h"
#include "scheduler/api/context.h"
#include "scheduler/api/guard.h"
#include "scheduler/api/queued_writer.h"
#include "scheduler/api/watch.h"

namespace muster {

// Logs calls of this process at once: of one user, and of all of them.
inline constexpr int kLogReadersMax = 192, kLogReadersOfAll = 256;

class LogStream : public QueuedWriter<grpc::ServerWriteReactor<pb::LogsResponse>, pb::LogsResponse>,
                  public std::enable_shared_from_this<LogStream> {
 public:
  LogStream(const ApiContext* context, WatchHub* hub, pb::LogsRequest request,
            const Caller& caller);
  void Begin();

 protected:
  void Gone() override;
  void Written() override;

 private:
  // A host of the attempt that is read.
  struct Source {
    enum { kToAsk, kOpen, kDone } state = kToAsk;
    std::string cluster, host;
    std::map<int32_t, int64_t> next_offsets;  // by rank
    bool heard = false;     // output of it came, to this call or the one that this goes on with
    bool resumable = true;  // all of that told where it goes on: not from an agent that can't
    int breaks = 0;         // since the attempt has ended, or where nobody follows
    std::string broken;     // why the last answer broke off, unless it ended as it should
  };

  // The hub's thread: starts what can be started, ends when nothing more can come.
  void Look(const View& view, const JobRow* job);
  const AttemptRow* NextAttempt(const JobRow& job, int32_t task) const;
  void EndWithout(const JobRow& job, int32_t task, const std::string& incomplete);
  void EndNotFound(const std::string& why);
  bool OneOnly() const { return request_.attempt() != 0 || !request_.follow(); }
  // Of an attempt: its hosts, to be asked. Empty: none has the rank.
  std::vector<Source> SourcesOf(const View& view, const JobRow& job, int32_t task,
                                const AttemptRow& attempt) const;
  // Asks those that are to be asked. True once all are done.
  bool AskHosts(const JobRow& job, int32_t task);                 // under state_mutex_
  void Incomplete(const Source& source, const std::string& why);  // under state_mutex_
  void Chunk(const std::string& task, int32_t attempt, const pb::LogChunk& chunk);

  const ApiContext* const context_;
  WatchHub* const hub_;
  const pb::LogsRequest request_;
  const std::shared_ptr<const Principal> who_;
  std::shared_ptr<const JobRow> job_;  // until Begin: it may hold a whole State

  // The hub's thread's.
  int32_t attempt_ = 0;  // the newest that was begun, or the one before that to go on with
  bool begun_ = false;   // attempt_ is set
  bool asked_ = false;   // hosts of one were asked
  std::string task_;     // once chosen

  std::mutex state_mutex_;
  uint64_t watch_ = 0;
  bool over_ = false;                // Gone was called
  bool counted_ = false;             // among the readers
  std::vector<Source> sources_;      // of attempt_
  std::map<uint64_t, size_t> open_;  // requests at agents without an end yet: whose
  std::string incomplete_;           // what is missing and why; told at the end
};

}  // namespace muster
