// `muster-shim --serve`: makes shims for an agent by forking, so that an attempt's start pays for
// no exec of its own (decision 040).
//
// Its standard input is a SOCK_SEQPACKET socket. A request is an attempt's directory, with a
// descriptor from which its shim reads its spec; the answer is the shim's pid, or an errno,
// negative. Shims are children of the server's parent, as if that had spawned them, and look the
// same to everybody: their command line is `muster-shim DIRECTORY`. The server ends with the
// agent's end of the socket; nothing depends on it once a shim has been made.
#pragma once

#include <cstddef>

namespace muster::shim {

inline constexpr char kServeFlag[] = "--serve";
// Room for a shim's command line: of so many bytes the server's last argument has to be.
inline constexpr size_t kServeRoom = 1024;

// `words` is the memory of the process's arguments, which the command lines of shims are written
// to. In the server: returns when the agent is gone. In each shim: does not return.
int ServeShims(char* words, size_t bytes);

}  // namespace muster::shim
