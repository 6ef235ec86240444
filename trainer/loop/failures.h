// How the subcommands tell what went wrong.
#pragma once

#include <exception>
#include <functional>
#include <string>

#include "trainer/model/config.h"

namespace muster::trainer {

// Prints all problems of what was asked for; returns exit code 2.
int Refuse(const std::string& what, const Problems& problems);

// An exception's message without c10's stack; what a collective says when a peer is gone gets its
// meaning in front.
std::string Message(const std::exception& e);

// An exception that leaves a thread ends the process by our own words, with exit code 1, once
// `last` (which may be null) was called with them. NCCL's watchdog tells of a peer that doesn't
// answer in no other way.
void EndByOurWords(int rank, std::function<void(const std::string&)> last);

}  // namespace muster::trainer
