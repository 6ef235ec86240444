// musterd and one agent on this machine, and the exporter if asked for, kept running: the inside of
// `muster up`.
#pragma once

#include <memory>
#include <string>

#include "cli/client.h"
#include "cli/interrupt.h"
#include "cli/up/child.h"
#include "cli/up/lock.h"
#include "cli/up/machine.h"

namespace muster {

struct UpPlan {
  std::string data_dir;
  std::string server;           // unix:///path
  std::string binaries_dir;     // musterd, muster-agent and their like
  std::string exporter;         // muster-exporter's configuration; empty: none is run
  int slots = 0;                // stand-ins to declare; 0: what the agent finds
  bool adopt_restored = false;  // the store below data_dir is a backup or a copy
};

class Supervisor {
 public:
  Supervisor(UpPlan plan, const Interrupt& interrupt, UpLock* lock);

  // Starts both and waits until the agent is known to the daemon. CANCELLED: interrupted. Errors
  // carry the log's last lines.
  absl::Status Start();
  // Until interrupted. A child that ends is started again, after growing pauses; meanwhile the lock
  // says so. So is a daemon whose socket was removed.
  void Run();
  // The daemon first: nothing is accepted any more. Then the agent. Processes of jobs go on.
  void Stop();

  Client& client() { return *client_; }
  std::string Describe();  // what was found, for people; after Start

 private:
  absl::Status WriteFiles();
  // Until ready() is true; fails when `child` ends first.
  template <typename Ready>
  absl::Status WaitReady(Child& child, Ready ready);

  // A child, and what is known of its ends.
  struct Kept {
    Child* child = nullptr;
    RestartPause pause;
    int64_t started_ns = 0;
    int64_t due_ns = 0;  // when it is started again; 0: it runs
    std::string trouble;
  };
  absl::Status StartExporter();
  void Keep(Kept* kept);
  void KeepSocket(Kept* daemon);

  UpPlan plan_;
  const Interrupt& interrupt_;
  UpLock* const lock_;
  bool socket_seen_ = false;  // since the daemon was started
  std::unique_ptr<Child> daemon_, agent_, exporter_;
  std::unique_ptr<Client> client_;
};

}  // namespace muster
