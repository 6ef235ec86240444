#include "common/spec/check_workers.h"

#include "absl/strings/str_cat.h"
#include "common/spec/check_spec.h"

namespace muster {
namespace {

bool InRange(int32_t count) { return count >= 1 && count <= kMaxWorkers; }

std::string NoRange(int32_t count) {
  return absl::StrCat("must be a whole number from 1 to ", kMaxWorkers, "; got ", count);
}

// "4 or 8": the multiples next to `count`, as far as a task may have them.
std::string Nearest(int32_t count, int32_t multiple) {
  const int32_t below = count / multiple * multiple, above = below + multiple;
  if (below == 0) return absl::StrCat(above);
  return above > kMaxWorkers ? absl::StrCat(below) : absl::StrCat(below, " or ", above);
}

}  // namespace

void CheckWorkers(const v1::Workers& workers, const std::string& path,
                  const std::function<void(const std::string&, const std::string&)>& emit) {
  const int32_t least = workers.min(), most = workers.max(), multiple = workers.multiple_of();
  if (least == most) {
    if (!InRange(least)) emit(path, NoRange(least));
  } else {
    if (!InRange(least)) emit(path + ".min", NoRange(least));
    if (!InRange(most)) {
      emit(path + ".max", NoRange(most));
    } else if (most < least) {
      emit(path + ".max", absl::StrCat(most, " is below min ", least));
    }
  }
  if (multiple == 0) return;
  if (!InRange(multiple)) return emit(path + ".multiple_of", NoRange(multiple));
  const auto check = [&](const char* field, int32_t count) {
    if (!InRange(count) || count % multiple == 0) return;
    emit(absl::StrCat(path, field), absl::StrCat(count, " is no multiple of ", multiple,
                                                 " (multiple_of); use ", Nearest(count, multiple)));
  };
  check(".min", least);
  if (most != least) check(".max", most);
}

}  // namespace muster
