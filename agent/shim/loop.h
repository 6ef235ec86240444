// The shim's life as a machine that events drive: claim, start, obey stops and the fence, tell what
// happens, end. Every effect is behind a port, so the simulator of faults runs the very loop that
// ships.
//
// Whoever drives it calls ReadyToClaim, TryClaim and Begin, then tells what has happened since
// (On...) and calls Turn, again and again, until Over. Not thread-safe; times are CLOCK_BOOTTIME
// unless said.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/shim/ports.h"
#include "agent/shim/progress.h"
#include "agent/shim/rules.h"

namespace muster::shim {

// When Turn wants to be called again, if nothing happens before.
struct Wake {
  int64_t at_ns = kNever;
  // Also right after the machine has slept past it, before any program of the attempt runs on for
  // long: a fence's time.
  int64_t alarm_ns = kNever;
};

class Loop {
 public:
  // The ports outlive this object.
  Loop(Spec spec, Ports ports);

  // False: nothing may start here, by what an earlier shim or an earlier boot left.
  bool ReadyToClaim(const std::string& boot_id);
  // Durable when it returns kClaimed. Else nothing starts, and this object has done its work.
  enum class Claimed { kClaimed, kLate, kNotClaimed, kFailed };
  Claimed TryClaim();
  // Reads what the agent said meanwhile, and starts what may start.
  void Begin();

  // The agent has signalled: DIR/stop has a new content.
  void OnStopFile() { stop_file_ = true; }
  void OnTerminate() { terminate_ = true; }  // SIGTERM, to the shim itself
  // A datagram of a program; longer ones than kProgressLineBytes may be cut.
  void OnProgress(std::string_view line);
  // The process that Processes::Start made has reached its exec, or says why not.
  void OnExec(pid_t pid, std::string problem);
  void OnEnded(pid_t pid, int exit_code, int signal);
  // Processes beside the attempt's were killed: if the kernel did it for memory, that says nothing
  // of the attempt's.
  void OnOthersEnded() { KilledForMemory(); }
  // The waiting itself has failed: what runs can't be looked after.
  void OnBlind();

  Wake Turn();
  bool Over() const { return phase_ == Phase::kOver; }
  // No process of it is left, and none will be.
  bool ended() const { return phase_ != Phase::kRunning; }

  const Rules& rules() const { return rules_; }
  bool fenced() const { return fenced_; }
  size_t running() const { return running_; }  // processes

 private:
  enum class Phase { kRunning, kTelling, kOver };
  struct Child {
    size_t worker = 0;
    int32_t rank = 0;
    bool setup = false;
    bool running = true;
    bool begun = false;  // its exec was reached
    bool group = true;   // its process group may have members; false: its number may be anybody's
  };
  struct Starting {
    pid_t pid = 0;
    std::string program;
    int64_t until_ns = 0;
  };
  struct Ended {
    pid_t pid = 0;
    int exit_code = 0;
    int signal = 0;
  };

  void QueueWorker(size_t index);
  void QueueProcesses(size_t index);
  void StartNext();
  void LookAtExec();
  void NotBegun(const Starting& starting, const std::string& problem);
  void ChildEnded(const Ended& ended);
  void SetupEnded(const Child& child, const Ended& ended, const std::string& detail);
  void RecordExit(int32_t rank, int exit_code, int signal, std::string detail, bool at_once = true,
                  bool own = false);
  bool KilledForMemory();

  void ReadStop();
  bool Fenced();
  bool Late();
  void SetDeadline();
  void Stop(int64_t grace_ns);
  void LookAtStops();
  void SignalAll(int signal);
  bool AnyLeft();
  int64_t LookAtGroups(int64_t now_ns);

  void AppendEvent(const Line& line) { pending_events_ += FormatLine(line); }
  bool WriteEvents(bool durable);
  bool EventsFailed(int error);
  void Keep(const agent::ProgressLine& read, std::string_view line);
  void Take(DurableLines* lines, bool last);
  void WriteDurableLines(bool last);
  void WriteProgress();
  void WriteTimes();
  int64_t MeasureUsage(int64_t now_ns);
  int64_t WriteWhatIsDue(int64_t now_ns);
  Wake Tell();

  const Spec spec_;
  const Ports ports_;
  Phase phase_ = Phase::kRunning;

  std::deque<Launch> to_start_;
  std::optional<Starting> starting_;                  // between its fork and its exec
  bool exec_hangs_ = false;                           // one did not get as far as its exec in time
  std::vector<std::pair<pid_t, std::string>> execs_;  // told by OnExec, and not taken in yet
  std::vector<Ended> ends_;                           // likewise
  std::map<pid_t, Child> children_;                   // stays after the end, for the process group
  size_t running_ = 0;
  int64_t groups_due_ns_ = 0;
  int64_t oom_kills_ = 0;

  Rules rules_;
  Fence fence_;
  bool fenced_ = false;
  bool stop_file_ = false, terminate_ = false;
  bool deadline_over_ = false;
  int64_t start_ns_ = 0;  // Unix time

  std::string pending_events_;    // not yet written
  std::string unsynced_events_;   // written, and to be written once more if their sync fails
  int64_t events_bytes_ = 0;      // of whole lines that are written
  int64_t events_due_ns_ = 0;     // when what is pending is written
  int64_t events_retry_ns_ = 0;   // 0: the last ones could be written
  bool durable_pending_ = false;  // what is to be synced is among them
  bool lines_pending_ = false;    // durable lines are

  // Of an ended attempt.
  bool last_lines_taken_ = false;
  int events_tries_ = 0;
  int64_t tell_again_ns_ = 0;
  bool exits_failed_ = false;

  RateLimit metrics_limit_, reports_limit_;
  DurableLines checkpoint_lines_, other_lines_;
  std::string newest_metrics_;
  int64_t metrics_written_ns_ = 0;
  StepTimes times_;
  bool times_new_ = false;  // since they were written
  int64_t times_written_ns_ = 0;
  int64_t lines_dropped_ = 0;

  UsageMeter usage_;
  int64_t begun_ns_ = 0;
  int64_t next_measure_ns_ = kNever;  // kNever: it can't be told what the processes use
};

}  // namespace muster::shim
