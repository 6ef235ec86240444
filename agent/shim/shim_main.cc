// muster-shim DIR: see shim.h.
#include "agent/shim/act.h"
#include "agent/shim/image.h"
#include "agent/shim/shim.h"

#include <cstdio>
#include <cstring>

int main(int argc, char** argv) {
  if (argc == 2 && strcmp(argv[1], "--act") == 0) return muster::shim::RunAct();
  if (argc >= 2 && argc <= 3 && strcmp(argv[1], "--can-enter") == 0)
    return muster::shim::RunCanEnter(argc == 3 && strcmp(argv[2], "nobody") == 0);
  if (argc >= 2 && strcmp(argv[1], "--enter") == 0) return muster::shim::RunEnter(argc, argv);
  if (argc != 2 || argv[1][0] == '-') {
    fprintf(
        stderr,
        "usage: muster-shim ATTEMPT_DIRECTORY < SPEC\n       muster-shim --act < REQUEST\n"
        "       muster-shim --enter STATUS IMAGE WORD...\n       muster-shim --can-enter [nobody]\n"
        "Started by muster-agent; runs the processes of one attempt, or makes the job's "
        "directories and publishes its export as its owner, or enters the image that a program of "
        "the job runs in, or tries whether images can be entered here.\n");
    return argc == 2 && strcmp(argv[1], "--help") == 0 ? 0 : 2;
  }
  return muster::shim::RunShim(argv[1]);
}
