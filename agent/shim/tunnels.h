// Tunnels into a running attempt: commands beside its workers, and connections to the ports on
// which its processes listen (docs/decisions/140-tunnels.md). The agent asks for them over a socket
// (tunnel_format.h); what flows through them doesn't pass the shim.
//
// Not thread-safe. Nothing here blocks on a job's storage or processes; times are CLOCK_BOOTTIME.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "agent/shim/host.h"
#include "agent/shim/rules.h"
#include "agent/shim/tunnel_format.h"

namespace muster::shim {

class Tunnels {
 public:
  // Both outlive this object.
  Tunnels(HostProcesses* processes, Voice* voice) : processes_(processes), voice_(voice) {}
  ~Tunnels();
  Tunnels(const Tunnels&) = delete;
  Tunnels& operator=(const Tunnels&) = delete;

  // Before the attempt's namespaces are made. Where it can't, there are no tunnels, and it says so.
  void Listen(const std::string& directory);
  void AddTo(std::vector<pollfd>* polled) const;
  // Takes what has come, and does what is due. When to be called again; kNever: when something
  // comes.
  int64_t Turn(int64_t now_ns);
  // A child of the shim's has ended. False: none of these.
  bool Ended(pid_t pid, int exit_code, int signal);
  // The attempt has ended, and so have all its processes.
  void EndAll();

 private:
  struct Tunnel {
    int connection = -1;  // -1: the agent has closed it
    pid_t pid = -1;       // the command, or who makes the connection
    bool is_command = false;
    bool reaped = false;
    int slot = -1;    // of numbers_
    int status = -1;  // between fork and exec
    std::string said;
    int master = -1;              // of its terminal, until the agent has it
    int64_t kill_at_ns = kNever;  // since the agent has closed it
  };
  void StopListening();

  void Accept();
  void TakeRequest(Tunnel* tunnel, int64_t now_ns);
  void Begin(Tunnel* tunnel, const std::vector<int>& descriptors, int64_t now_ns);
  std::string StartCommand(Tunnel* tunnel, const TunnelRequest& request,
                           const std::vector<int>& descriptors);
  std::string StartConnection(Tunnel* tunnel, int32_t port);
  std::string OpenTerminal(Tunnel* tunnel, const TunnelRequest& request, int* slave) const;
  void LookAtExec(Tunnel* tunnel);
  void HangUp(Tunnel* tunnel, int64_t now_ns);
  // False: there is nothing left of it.
  bool Continue(Tunnel* tunnel, int64_t now_ns, int64_t* wake_ns);
  void Reply(const Tunnel& tunnel, const TunnelReply& reply, int descriptor = -1) const;
  void Fail(Tunnel* tunnel, const std::string& why);
  int FreeSlot() const;

  HostProcesses* const processes_;
  Voice* const voice_;
  int listener_ = -1;
  std::string socket_;  // its name, which goes when the attempt ends
  std::list<Tunnel> tunnels_;
  volatile pid_t* numbers_ = nullptr;  // of commands in their namespace, by slot
};

}  // namespace muster::shim
