// Assertions that stay on in every build: a process whose state is wrong stops instead of going on.
#pragma once

namespace muster {

// Prints place, condition and message to stderr, then aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition,
                              const char* message);

}  // namespace muster

#define MUSTER_CHECK(condition)                      \
  (__builtin_expect(static_cast<bool>(condition), 1) \
       ? (void)0                                     \
       : ::muster::CheckFailed(__FILE__, __LINE__, #condition, ""))

#define MUSTER_CHECK_MSG(condition, message)         \
  (__builtin_expect(static_cast<bool>(condition), 1) \
       ? (void)0                                     \
       : ::muster::CheckFailed(__FILE__, __LINE__, #condition, message))
