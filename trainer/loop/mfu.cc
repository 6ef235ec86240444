#include "trainer/loop/mfu.h"

#include <cctype>

namespace muster::trainer {

FlopsPerToken ModelFlopsPerToken(const ModelConfig& config, double length,
                                 int64_t adapter_parameters, bool dpo) {
  const auto active = static_cast<double>(config.NumActiveParameters());
  double parameters =
      (adapter_parameters > 0 ? 4.0 : 6.0) * active + 6.0 * static_cast<double>(adapter_parameters);
  double attention =
      6.0 * static_cast<double>(config.num_layers * config.num_heads * config.head_dim) * length;
  if (dpo && adapter_parameters > 0) parameters += 2.0 * active, attention += attention / 3;
  return {parameters + attention, parameters + 2 * attention};
}

namespace {

struct Device {
  const char* name;
  double bf16, fp32;  // FLOPS
  int capability;
};
// First match counts: the more special name stands first.
constexpr Device kDevices[] = {
    {"H100 PCIE", 756e12, 51e12, 90}, {"H100 NVL", 835e12, 60e12, 90},
    {"H100", 989e12, 67e12, 90},      {"H200", 989e12, 67e12, 90},
    {"GH200", 989e12, 67e12, 90},     {"B200", 2250e12, 75e12, 100},
    {"A100", 312e12, 19.5e12, 80},    {"A800", 312e12, 19.5e12, 80},
    {"H800", 989e12, 67e12, 90},      {"L40S", 362e12, 91.6e12, 89},
    {"A40", 149.7e12, 37.4e12, 86},   {"A10", 125e12, 31.2e12, 86},
};

const Device* FindDevice(const std::string& device_name) {
  for (const Device& device : kDevices) {
    if (IsOfModel(device_name, device.name)) return &device;
  }
  return nullptr;
}

}  // namespace

bool IsOfModel(const std::string& device_name, const std::string& known) {
  std::string name = device_name;
  for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (size_t at = name.find(known); at != std::string::npos; at = name.find(known, at + 1)) {
    const size_t end = at + known.size();
    if (end == name.size() || std::isdigit(static_cast<unsigned char>(name[end])) == 0) return true;
  }
  return false;
}

double PeakFlops(const std::string& device_name, bool bf16) {
  const Device* device = FindDevice(device_name);
  return device == nullptr ? 0 : bf16 ? device->bf16 : device->fp32;
}

int CapabilityOf(const std::string& device_name) {
  const Device* device = FindDevice(device_name);
  return device == nullptr ? 0 : device->capability;
}

std::string KnownDevices() {
  std::string names;
  for (const Device& device : kDevices)
    names += (names.empty() ? "" : ", ") + std::string(device.name);
  return names;
}

}  // namespace muster::trainer
