// What the agent asks of a shim whose attempt runs, and what the shim answers, over the socket
// kTunnelSocket in the attempt's directory (tunnels.h).
//
// One connection a tunnel. The agent sends one byte with descriptors: a file in memory that holds
// the request, and, of a command without a terminal, its standard input, output and error. The shim
// answers with one datagram a reply. When the agent closes the connection, the command is ended.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace muster::shim {

inline constexpr char kTunnelSocket[] = "tunnels";
inline constexpr size_t kTunnelRequestBytes = 1 << 20;
inline constexpr int kCommandsAtOnce = 16;      // of an attempt on one host, beside its workers
inline constexpr int kConnectionsAtOnce = 128;  // that are being made

struct TunnelRequest {
  int32_t rank = 0;
  std::vector<std::string> argv;  // a command; empty: a connection to `port`
  bool terminal = false;
  int32_t rows = 0, columns = 0;
  std::string term;
  int32_t port = 0;
};

std::string FormatTunnelRequest(const TunnelRequest& request);
bool ParseTunnelRequest(std::string_view content, TunnelRequest* request, std::string* error);

struct TunnelReply {
  // kBegun brings a descriptor: of a command with a terminal that terminal's master side, of a
  // connection its socket. kFailed and kEnded are the last.
  enum class Kind { kBegun, kEnded, kFailed } kind = Kind::kBegun;
  int32_t exit_code = 0, signal = 0;  // kEnded
  std::string why;                    // kFailed
};

std::string FormatTunnelReply(const TunnelReply& reply);
bool ParseTunnelReply(std::string_view content, TunnelReply* reply);

// Of one listening socket, as a line of /proc/net/tcp or tcp6 says it. False: it is no such line,
// or of no socket that listens on `port` for who connects to 127.0.0.1.
bool ListensOn(std::string_view line, int32_t port, uint64_t* inode);

}  // namespace muster::shim
