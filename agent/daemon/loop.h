// The agent's life as a machine that events drive: it feeds the Reconciler from the stream, the
// shims' files and their ends, sends what it says, and keeps session, lease and heartbeats. What it
// waits with is behind ports, so the simulator of faults runs the very loop that ships.
//
// Whoever drives it calls Begin once, then tells what has happened (On...) and calls Turn. Not
// thread-safe; times are CLOCK_BOOTTIME unless said.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/daemon/log_sender.h"
#include "agent/daemon/ports.h"
#include "agent/host/causes.h"
#include "agent/host/disk_guard.h"
#include "agent/host/state_dir.h"
#include "agent/host/storage_threads.h"
#include "agent/reconcile/reconciler.h"

namespace muster::agent {

class AgentLoop final : public Sender {
 public:
  struct Options {
    std::string server;  // for the log
    HostIds identity;
    v1::Inventory inventory;
    Retention retention;
    int64_t sweep_ns = 0;        // all live attempts are looked at so often, whatever else is told
    bool runs_as_owner = false;  // each job runs as its owner
  };
  struct Ports {
    AgentClock* clock = nullptr;
    Link* link = nullptr;
    Shims* shims = nullptr;
    Files* files = nullptr;  // of the same directory as `state`
    Processes* processes = nullptr;
    StateDirectory* state = nullptr;
    StorageThreads* storage = nullptr;  // nullptr: nobody does anything there for the ports
    // Begins a check beside the loop, which OnChecked ends; false: one is under way. Null: this
    // host can't be checked, and says so.
    std::function<bool(const v1::CheckHost&, const v1::Inventory&)> check_host;
    // Joins a tunnel to an attempt of this host's, or says there why not. Null: none are opened.
    std::function<void(const v1::OpenTunnel&)> open_tunnel;
    // Says how the agent is to whoever looks at this host (agent/host/unit.h). Null: to nobody.
    std::function<void(const std::string&)> say_status;
  };

  // `records`: what `state` held at start. All outlive this object.
  AgentLoop(Options options, const Ports& ports, std::vector<AttemptRecord> records);

  void Begin();

  void OnOpened(uint64_t generation);  // a stream, for which the Hello is sent
  // Of that stream, or of one before it.
  void OnMessage(uint64_t generation, const v1::SchedulerMessage& message);
  // `ours`: Link::Restart was called.
  void OnClosed(const std::string& reason, bool ours = false);
  void OnInventory(v1::Inventory found);  // it has taken until now
  void OnDisk(const DiskNews& news);
  void OnDeviceEvent(int32_t device, int32_t xid);  // a critical error
  void OnGpus(const std::vector<GpuLook>& looks);   // at all of this host's
  void OnFiles(const AttemptId& id);                // of an attempt have changed
  void OnFilesMissed() { next_sweep_ns_ = 0; }      // of some
  void OnShimEnded(const AttemptId& id);
  void OnStorage();  // some work there is done
  void OnChecked(v1::HostChecked checked);

  // Does what is due; returns when it wants to be called again, if nothing happens before.
  int64_t Turn();

  // By the scheduler, for good; empty: no.
  const std::string& refused() const { return refused_; }
  const Reconciler& attempts() const { return *reconciler_; }

  void Send(v1::AgentMessage message) override {
    ports_.link->Send(generation_, std::move(message));
  }

 private:
  // One attempt whose shim is, or may be, alive.
  struct Watched {
    bool lives = false;
    int64_t events_read = 0;
    ShimNews news;
  };
  // A critical error that the driver told of.
  struct DeviceEvent {
    int32_t device = 0;
    std::string text;
    int64_t at_ns = 0;  // Unix time
  };

  void OnWelcome(const v1::SchedulerMessage& message);
  void SayStatus(const std::string& status) const {
    if (ports_.say_status) ports_.say_status(status);
  }
  void Tell(const v1::SchedulerMessage& message);
  void Hold(const v1::SchedulerMessage& message);
  void Heartbeat(int64_t now_ns);
  DeviceEvents EventsOf(const AttemptRecord& record) const;
  void WatchAttempts();
  void WatchCommanded(const AttemptId& id);
  void Watch(const AttemptId& id);
  void Unwatch(const AttemptId& id);
  void Refresh(const AttemptId& id);
  int64_t NextNs() const;

  const Options options_;
  const Ports ports_;
  v1::Inventory inventory_;
  std::unique_ptr<Reconciler> reconciler_;
  LogSender logs_;
  std::map<StorageKey, v1::SchedulerMessage> held_;  // commands whose work on storage is under way

  std::vector<DeviceEvent> told_;  // by the driver; the newest last
  // By device and Xid: of those that were told.
  std::map<std::pair<int32_t, int32_t>, int64_t> newest_event_ns_;
  std::map<int32_t, std::string> broken_;  // devices that have to be reset, and why

  uint64_t generation_ = 0;
  bool open_ = false;  // a stream is there, welcomed or not
  std::string last_reason_, refused_;
  std::string check_session_;  // that asked for the newest check
  int64_t lease_ns_, heartbeat_ns_;
  int64_t next_heartbeat_ns_ = 0;
  int64_t heard_ns_ = 0;
  int64_t next_sweep_ns_ = 0;
  int64_t next_prune_ns_ = 0;
  int64_t looked_at_gpus_ns_ = 0;
  uint64_t heartbeat_sequence_ = 0;

  std::map<AttemptId, Watched> watched_;
  std::set<AttemptId> strays_;  // their shim is dead, what it left is being killed
};

}  // namespace muster::agent
