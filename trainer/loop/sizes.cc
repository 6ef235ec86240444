#include "trainer/loop/sizes.h"

#include <cstdio>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace muster::trainer {

int64_t ParseBytes(const std::string& text) {
  const size_t digits = text.find_first_not_of("0123456789.");
  double number = 0;
  if (!absl::SimpleAtod(text.substr(0, digits), &number) || !(number > 0)) return 0;
  std::string unit = digits == std::string::npos
                         ? ""
                         : absl::AsciiStrToUpper(absl::StripAsciiWhitespace(text.substr(digits)));
  int power = 0;
  if (!unit.empty() && unit != "B") {
    constexpr std::string_view kLetters = "KMGT";
    const size_t letter = kLetters.find(unit[0]);
    if (letter == std::string_view::npos) return 0;
    power = static_cast<int>(letter) + 1;
    unit.erase(0, 1);
    if (unit != "" && unit != "IB" && unit != "B") return 0;
  } else {
    unit.clear();
  }
  for (; power > 0; --power) number *= unit == "B" ? 1000 : 1024;
  return number < 1 || number > 1e18 ? 0 : static_cast<int64_t>(number);
}

int64_t MemoryInName(const std::string& device) {
  const size_t dash = device.rfind('-');
  std::string size =
      dash == std::string::npos ? "" : absl::AsciiStrToUpper(device.substr(dash + 1));
  if (size.ends_with('B')) size.pop_back();  // "A100-SXM4-80GB" has 80 GiB
  return size.ends_with('G') ? ParseBytes(size) : 0;
}

std::string SizeText(int64_t bytes, int width) {
  char text[40];
  const double mib = static_cast<double>(bytes) / (1 << 20);
  if (mib < 1)
    std::snprintf(text, sizeof text, "%*.1f KiB", width, mib * 1024);
  else if (mib < 1024)
    std::snprintf(text, sizeof text, "%*.1f MiB", width, mib);
  else
    std::snprintf(text, sizeof text, "%*.2f GiB", width, mib / 1024);
  return text;
}

}  // namespace muster::trainer
