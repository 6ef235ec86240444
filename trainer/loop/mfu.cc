#include "trainer/loop/mfu.h"

#include <cctype>

namespace muster::trainer {

FlopsPerToken ModelFlopsPerToken(const ModelConfig& config, double length,
                                 int64_t adapter_parameters) {
  const double parameters =
      (adapter_parameters > 0 ? 4.0 : 6.0) * static_cast<double>(config.NumActiveParameters()) +
      6.0 * static_cast<double>(adapter_parameters);
  const double attention =
      6.0 * static_cast<double>(config.num_layers * config.num_heads * config.head_dim) * length;
  return {parameters + attention, parameters + 2 * attention};
}

namespace {

struct Device {
  const char* name;
  double bf16, fp32;
};
// First match counts: the more special name stands first.
constexpr Device kDevices[] = {
    {"H100 PCIE", 756e12, 51e12}, {"H100 NVL", 835e12, 60e12}, {"H100", 989e12, 67e12},
    {"H200", 989e12, 67e12},      {"GH200", 989e12, 67e12},    {"B200", 2250e12, 75e12},
    {"A100", 312e12, 19.5e12},    {"A800", 312e12, 19.5e12},   {"H800", 989e12, 67e12},
    {"L40S", 362e12, 91.6e12},    {"A40", 149.7e12, 37.4e12},  {"A10", 125e12, 31.2e12},
};

}  // namespace

double PeakFlops(const std::string& device_name, bool bf16) {
  std::string name = device_name;
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (const Device& device : kDevices) {
    if (name.find(device.name) != std::string::npos) return bf16 ? device.bf16 : device.fp32;
  }
  return 0;
}

std::string KnownDevices() {
  std::string names;
  for (const Device& device : kDevices)
    names += (names.empty() ? "" : ", ") + std::string(device.name);
  return names;
}

}  // namespace muster::trainer
