// Who the processes of an attempt run as, where the agent serves several users
// (docs/decisions/078-run-as-the-owner.md). Part of the shim: no dependencies beyond the standard
// library.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "agent/shim/format.h"

namespace muster::shim {

inline constexpr uint32_t kFirstPerson = 1000;  // the lowest uid that a job may have, unless told

// Why nothing may run as this user, whoever asks for it; empty: it may. The agent asks before it
// starts a shim, and the shim asks again.
std::string WhyNotRunAs(const User& user);
// The same of a spec, for a shim that runs as `own`: root never runs what names nobody.
std::string WhyNotRunAs(const Spec& spec, uid_t own);

// Makes the calling process, which has one thread and is root's, the user's for good: bounding and
// ambient capabilities, groups, gid, uid, capability sets, each looked at afterwards. It clears
// PDEATHSIG, as the kernel does. 0, or an errno with the step that failed.
int BecomeUser(const User& user, std::string* step);

// What else a program of a user's must not have from root: new privileges by setuid files, the
// keyring, a place before others in scheduling. After BecomeUser. 0, or an errno with the step.
int GiveUpTheRest(std::string* step);

// What only root may give back: its protection from the kernel's killing for memory and its place
// in scheduling. Before BecomeUser; what can't be set stays.
void GiveUpPrecedence();

}  // namespace muster::shim
