// What the exits of an attempt's processes say. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agent/reconcile/record.h"
#include "muster/v1/agent.pb.h"

namespace muster::agent {

// Adds exits of ranks that have none: their records were lost with the shim or the boot.
void FillExits(AttemptRecord* record, const std::string& detail, int64_t now_ns);

// A detail without the shim's mark of whose fault it is: the cause says it already.
std::string WithoutMark(const std::string& detail);

// Why the processes did not get as far as their program, where the shim says so.
v1::Cause LaunchCause(const std::vector<v1::WorkerExit>& exits);

// Somebody else has the port that this host found free for the attempt's rendezvous (contract 15):
// the process that was to listen there says so, and names that port or none.
void TellCollision(int32_t port, std::vector<v1::WorkerExit>* exits);

// The scheduler refuses a report whose texts exceed 16 KiB or are no UTF-8, and would again each
// time it is repeated.
std::string Shortened(const std::string& text);

}  // namespace muster::agent
