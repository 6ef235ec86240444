// How the subcommands tell what went wrong.
#pragma once

#include <exception>
#include <string>

#include "trainer/model/config.h"

namespace muster::trainer {

// Prints all problems of what was asked for; returns exit code 2.
int Refuse(const std::string& what, const Problems& problems);

// An exception's message without c10's stack; what a collective says when a peer is gone gets its
// meaning in front.
std::string Message(const std::exception& e);

}  // namespace muster::trainer
