// A named range of time in a profile (`train --profile`): from construction to the end of the
// scope. Costs some nanoseconds while nothing is profiled: the name is made only then.
#pragma once

#include <string>

#include <ATen/record_function.h>

namespace muster::trainer {

class Range {
 public:
  // `name`: called, if at all, at once; returns something that std::string takes.
  template <class MakeName>
  explicit Range(MakeName name) {
    if (!guard_.isActive()) return;
    name_ = name();
    guard_.before(at::RecordFunction::FunctionDescriptor(std::string_view(name_)));
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  std::string name_;  // outlives guard_, which only looks at it
  at::RecordFunction guard_{at::RecordScope::USER_SCOPE};
};

}  // namespace muster::trainer
