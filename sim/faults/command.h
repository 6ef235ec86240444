// The command line of the fault simulator: muster-sim --seed N [--seeds COUNT] [--config FILE]
// [--only I,J,…].
#pragma once

namespace muster::sim::faults {

// argv[0] is the program's name. 0: everything held; 1: a violation, told with all that replays it;
// 2: wrong arguments.
int Main(int argc, char** argv);

}  // namespace muster::sim::faults
