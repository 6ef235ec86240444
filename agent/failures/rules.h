// What lines say of the cause of an end: the table behind Classify.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "agent/failures/classify.h"

namespace muster {

enum class Weight : uint8_t {
  kHint = 1,    // goes with many causes: believed when nothing else is said
  kWarned = 2,  // names a cause, in a warning or before another try
  kConsequence =
      3,       // what a failure elsewhere looks like from here; an exception, whatever led to it
  kCause = 4,  // names what went wrong
};

struct Rule {
  FailureClass cls;
  Weight weight;
  // Pieces between '*', lower case: they stand in the line in this order, whatever is between them.
  // A piece that begins or ends with '<' or '>' begins or ends at the border of a word.
  std::string_view pattern;
  // It speaks of devices or their driver: of a process that held none it is the program's mistake.
  bool of_devices = false;
};

// Of these the first that a line matches decides: sentences that speak of more than they know, and
// such as would match others wrongly.
std::span<const Rule> WholeSentenceRules();
// Of these the one of the largest weight.
std::span<const Rule> FailureRules();

// What an NVIDIA driver's Xid means for who is to blame (NVIDIA, "XID Errors", table of causes):
// false = the program's own.
bool XidBlamesDevice(int xid);
// After it the device serves nobody until it, or its host, was reset (the same document, "immediate
// action": reset, reboot, or RMA).
bool XidNeedsReset(int xid);

}  // namespace muster
