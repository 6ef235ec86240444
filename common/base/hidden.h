#pragma once

namespace muster {

// Stands for the value of an environment variable that the reader may not see.
inline constexpr char kHiddenValue[] = "(hidden)";

}  // namespace muster
