// musterd and one agent on this machine, kept running: the inside of `muster up`.
#pragma once

#include <memory>
#include <string>

#include "cli/client.h"
#include "cli/interrupt.h"
#include "cli/up/child.h"
#include "cli/up/machine.h"

namespace muster {

struct UpPlan {
  std::string data_dir;
  std::string server;           // unix:///path
  std::string binaries_dir;     // musterd, muster-agent and their like
  int slots = 0;                // stand-ins to declare; 0: what the agent finds
  bool adopt_restored = false;  // the store below data_dir is a backup or a copy
};

// Holds <data_dir>/up.lock while it lives, with its pid and server inside: one `muster up` a
// directory.
class UpLock {
 public:
  // ALREADY_EXISTS: held by another process (its pid in *holder, its server in *server). Others:
  // the file can't be made.
  static absl::StatusOr<std::unique_ptr<UpLock>> Take(const std::string& data_dir,
                                                      const std::string& server, pid_t* holder,
                                                      std::string* held_server);
  // Who holds it; 0: nobody.
  static pid_t Holder(const std::string& data_dir, std::string* server);
  // Until nobody holds it. False: interrupted.
  static bool WaitUntilFree(const std::string& data_dir, const Interrupt& interrupt);
  ~UpLock();

 private:
  explicit UpLock(int fd) : fd_(fd) {}
  int fd_;
};

class Supervisor {
 public:
  Supervisor(UpPlan plan, const Interrupt& interrupt);

  // Starts both and waits until the agent is known to the daemon. CANCELLED: interrupted. Errors
  // carry the log's last lines.
  absl::Status Start();
  // Until interrupted; a child that ends is started again. An error: one keeps ending.
  absl::Status Run();
  // The daemon first: nothing is accepted any more. Then the agent. Processes of jobs go on.
  void Stop();

  Client& client() { return *client_; }
  std::string Describe();  // what was found, for people; after Start

 private:
  absl::Status WriteFiles();
  // Until ready() is true; fails when `child` ends first.
  template <typename Ready>
  absl::Status WaitReady(Child& child, Ready ready);

  UpPlan plan_;
  const Interrupt& interrupt_;
  std::unique_ptr<Child> daemon_, agent_;
  std::unique_ptr<Client> client_;
};

}  // namespace muster
