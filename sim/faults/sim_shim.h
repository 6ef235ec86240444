// A shim of a simulated host: the loop that ships (agent/shim/loop.h) over a model of the kernel
// below it, with processes that are sim/faults/programs.h's, files that lose what was not synced,
// and a clock that drifts. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "agent/reconcile/record.h"
#include "agent/shim/loop.h"
#include "sim/faults/machine.h"
#include "sim/faults/standstill.h"

namespace muster::sim::faults {

class SimShim final : public std::enable_shared_from_this<SimShim>,
                      private shim::Clock,
                      private shim::Files,
                      private shim::Processes,
                      private shim::Voice {
 public:
  // `machine` outlives this object and hears of its end by ShimEnded.
  SimShim(Shared* shared, Machine* machine, const agent::AttemptRecord& record, shim::Spec spec);

  // Its program begins so long after it was made.
  void BeginAfter(int64_t delay_ns) { Later(delay_ns, &SimShim::Claim); }
  void SignalAfter(int64_t delay_ns);  // SIGUSR1
  void Kill();                         // SIGKILL; its processes die with it
  void PowerOff();                     // as that, and what was not synced is lost
  void StandStill(int64_t until_ns);   // SIGSTOP; its processes go on
  void Sleep(int64_t until_ns);        // its machine does
  // The machine is destroyed: nothing that was put off is done any more.
  void Abandon() { pause_.Die(); }

  const agent::AttemptId& id() const { return id_; }
  bool claimed() const { return claimed_; }
  bool begun() const { return begun_; }
  bool killed() const { return loop_.rules().killed(); }  // it has killed its processes
  bool TakeKilledByItsFenceInSleep();
  const pb::AttemptKey& key() const { return prepare_.key(); }

 private:
  struct Process {
    int32_t rank = 0;
    bool runs = true;   // its program does
    bool there = true;  // the kernel has not taken it down yet
  };

  void Later(int64_t delay_ns, void (SimShim::*what)());
  // Now, or once it goes on if it stands still; never if it is dead by then.
  void Act(std::function<void()> what);
  void WakeUp();  // something has happened: its next turn comes at once
  void Claim();
  void Run();
  void Turn();
  void Exited(pid_t pid, int exit_code, int signal);
  void KillProcess(pid_t pid, Process* process);
  void End(bool recorded);
  std::string Path(const char* name) const;

  // ---- its kernel ----
  int64_t WallNs() override;
  int64_t BootNs() override;
  int ReadClaim(shim::Claim* claim) override;
  int MakeClaim(shim::Claim* winner) override;
  int Read(const char* name, std::string* content) override;
  int Replace(const char* name, std::string_view content, bool sync) override;
  void Reserve(const char* name) override;
  int WriteEvents(int64_t at, std::string_view text) override;
  int SyncEvents() override;
  bool Forgotten() override;
  pid_t Start(const shim::Launch& launch, std::string* problem) override;
  bool SignalGroup(pid_t pid, int signal) override;
  bool GroupLives(pid_t pid) override;
  void Kill(pid_t pid) override;
  std::string SetupExports(size_t) override { return ""; }
  void Log(int32_t, const std::string&) override {}
  void Report(const std::string&) override {}
  int64_t OomKills() override { return 0; }
  std::optional<shim::Measured> MeasureUse() override;
  bool HasNamespace() override { return true; }
  void EndAll() override;
  bool SetDeadline(int64_t) override { return false; }  // no keeper: the loop has to do it alone
  void Say(const std::string&) override {}

  Shared* const shared_;
  Machine* const machine_;
  const agent::AttemptId id_;
  const pb::Prepare prepare_;
  const std::string prepared_boot_id_;  // of the agent's record
  const std::string directory_;
  Random random_;
  size_t ranks_ = 0;
  shim::Loop loop_;
  Standstill pause_;
  bool claimed_ = false, begun_ = false, started_ = false, over_ = false;
  bool slept_alive_ = false;  // its processes were not killed when its machine began to sleep
  bool turn_queued_ = false;
  uint64_t turns_ = 0;
  std::map<pid_t, Process> processes_;
  pid_t next_pid_ = 1;
  int64_t start_ns_ = 0;

  // DIR/events: how much a loss of power leaves, and from where on the kernel has dropped what it
  // could not write.
  int64_t events_bytes_ = 0, durable_bytes_ = 0, dropped_from_ = INT64_MAX;
  bool exits_failed_ = false;
  bool ended_all_ = false;
};

}  // namespace muster::sim::faults
