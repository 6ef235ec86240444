// One run: scheduler, hosts, users and faults on one heap, and what has to hold in the end.
//
// Inside of sim/faults.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "sim/faults/config.h"
#include "sim/faults/run.h"
#include "sim/faults/scheduler.h"
#include "sim/faults/sim_agent.h"

namespace muster::sim::faults {

inline constexpr char kFlavour[] = "h100-80g";                      // of all devices
inline constexpr const char* kUserNames[] = {"ann", "bob", "cid"};  // of users
inline constexpr int64_t kClientPatienceNs = 8 * kSecond;

// The hosts' state directories, on a file system in memory where there is one.
class Workplace {
 public:
  Workplace();
  ~Workplace();
  Workplace(const Workplace&) = delete;
  Workplace& operator=(const Workplace&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct User {
  pb::JobSpec spec;
  std::string name, key;  // another user may have the same key
  uint64_t number = 0;    // acknowledged
  bool wants_cancel = false, cancelled = false;
  bool put_on_holder = false;  // it was drawn on whose devices its job runs
  bool placed_behind = false;  // it was drawn whom its job comes after
};

class World {
 public:
  World(const Config& config, uint64_t seed, const std::vector<Fault>& faults);
  RunResult Run();

 private:
  void MakeHosts();
  void StartScheduler();
  void SchedulerDied(Scheduler* scheduler);
  Scheduler* current() {
    return schedulers_.empty() || !schedulers_.back()->alive() ? nullptr : schedulers_.back().get();
  }

  // users.cc
  void MakeUsers();
  pb::JobSpec DrawSpec();
  void MakeArray(pb::JobSpec* spec);
  void PutTogether(pb::JobSpec* spec);
  void MakeMultiples(pb::JobSpec* spec);
  void MakeSchedule(pb::JobSpec* spec);
  void EndSchedules();
  void Submit(size_t user);
  void PlaceBehind(size_t user);
  void PutOnHolder(size_t user);
  void Cancel(size_t user);
  void Drain(const std::string& target, bool drained);
  pb::QueueTree DrawQueues(uint64_t seed) const;
  void ApplyQueues(const pb::QueueTree& tree);

  // inject.cc
  void Inject(const Fault& fault);
  bool InjectInNetwork(const Fault& fault);
  bool InjectInScheduler(const Fault& fault);
  bool InjectInMachine(const Fault& fault);
  void MassCut(const Fault& fault);
  void Takeover();
  void LoseStateAlone(const Fault& fault);
  void BreakDevice(const Fault& fault);
  void HangStorage(const Fault& fault);
  void RebootAtMarker(const Fault& fault);
  void LateShims(const Fault& fault);
  void Reboot(int32_t host, int64_t down_ns, bool forget);
  void ConfirmOff(int32_t host);
  bool JustAdopted(int64_t apart_ns) const {
    return restored_ns_ != 0 && shared_.heap.now_ns() - restored_ns_ < apart_ns;
  }
  void Restore(const Database& backup);
  // The store is another's from now on: what it doesn't know was never said.
  void Adopted(bool newest);
  void Clone(int64_t both_ns);
  // Once, with the store as it was when the gang's first host was told to prepare, and with the
  // word to start on its way.
  void RestoreAtStart();
  void Stagger(const Fault& fault);
  void HoldAck(int32_t host, const pb::SchedulerMessage& message);

  // world.cc
  void HealAll();
  void TellStuck();
  std::vector<std::string> Leaks() const;
  void CheckJournal();

  const std::vector<Fault> faults_;
  const uint64_t seed_;
  Workplace workplace_;
  Shared shared_;
  Random random_;
  Network network_;
  Scheduler::Setup setup_;
  Database database_;
  std::vector<std::unique_ptr<Database>>
      originals_;  // of which it is a copy, each with a scheduler that goes on
  std::vector<std::unique_ptr<Machine>> machines_;
  std::vector<std::unique_ptr<SimAgent>> agents_;
  std::vector<std::unique_ptr<Scheduler>>
      schedulers_;  // the newest last; dead ones stay until the end
  std::vector<User> users_;
  std::map<int32_t, Fault> held_acks_;          // by host
  bool healed_ = false, was_set_back_ = false;  // the latter: a scheduler's clock
  int64_t began_ns_ = 0;
  int64_t restored_ns_ = 0;  // the newest one; 0: none
};

}  // namespace muster::sim::faults
