// What agent and shim say to each other of tunnels, and the kernel's lines of sockets: what is read
// is written alike.
#include <cstdint>
#include <string>

#include "agent/shim/tunnel_format.h"
#include "common/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace muster::shim;
  const std::string text(reinterpret_cast<const char*>(data), size);
  std::string error;
  TunnelRequest request, again;
  if (ParseTunnelRequest(text, &request, &error)) {
    MUSTER_CHECK(ParseTunnelRequest(FormatTunnelRequest(request), &again, &error));
    MUSTER_CHECK(again.argv == request.argv && again.port == request.port);
  }
  TunnelReply reply;
  if (ParseTunnelReply(text, &reply))
    MUSTER_CHECK(ParseTunnelReply(FormatTunnelReply(reply), &reply));
  uint64_t inode = 0;
  if (ListensOn(text, 8888, &inode)) MUSTER_CHECK(inode != 0);
  return 0;
}
