// muster-shim DIR: see shim.h. muster-shim --serve: see serve.h.
#include <cstdio>
#include <cstring>

#include "agent/shim/cgroup.h"
#include "agent/shim/serve.h"
#include "agent/shim/shim.h"

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], muster::shim::kServeFlag) == 0) {
    if (muster::shim::kPlainForks) return 2;  // then shims are spawned
    return muster::shim::ServeShims(argv[0],
                                    static_cast<size_t>(argv[2] + strlen(argv[2]) + 1 - argv[0]));
  }
  if (argc != 2 || argv[1][0] == '-') {
    fprintf(stderr,
            "usage: muster-shim ATTEMPT_DIRECTORY < SPEC\nStarted by muster-agent; runs the "
            "processes of one attempt.\n");
    return argc == 2 && strcmp(argv[1], "--help") == 0 ? 0 : 2;
  }
  return muster::shim::RunShim(argv[1]);
}
