// For simulations, whose log would be full of the faults they make.
#pragma once

namespace muster {

void SilenceLog();  // nothing is logged any more by this process

}  // namespace muster
