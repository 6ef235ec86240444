// A library with the names of NVIDIA's, for tests: what it finds stands in files of the directory
// $FAKE_NVML. `devices` has a line "name|uuid|bytes" for each, `uses` a line "index|percent|bytes
// used" for each that tells what it does; a line "device|type|data" added to `events` is told once,
// to whoever waits.
#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {

struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned gpu, memory;
};
struct EventData {
  void* device;
  unsigned long long type, data;
  unsigned gpu_instance, compute_instance;
};

std::vector<std::vector<std::string>> Lines(const char* name) {
  std::vector<std::vector<std::string>> lines;
  const char* directory = std::getenv("FAKE_NVML");
  std::ifstream file(std::string(directory == nullptr ? "" : directory) + "/" + name);
  for (std::string line; std::getline(file, line);) {
    std::vector<std::string>& words = lines.emplace_back();
    std::istringstream in(line);
    for (std::string word; std::getline(in, word, '|');) words.push_back(word);
    if (words.size() != 3) lines.pop_back();  // not whole yet
  }
  return lines;
}

// Handles are the indexes, from 1.
const std::vector<std::string>* Find(void* device, std::vector<std::vector<std::string>>* devices) {
  *devices = Lines("devices");
  const size_t index = reinterpret_cast<uintptr_t>(device);
  return index == 0 || index > devices->size() ? nullptr : &(*devices)[index - 1];
}

int Text(void* device, size_t column, char* out, unsigned size) {
  std::vector<std::vector<std::string>> devices;
  const std::vector<std::string>* words = Find(device, &devices);
  if (words == nullptr) return 1;
  std::snprintf(out, size, "%s", (*words)[column].c_str());
  return 0;
}

// What stands behind the device's index in `uses`; nullptr: it tells nothing.
const std::vector<std::string>* FindUse(void* device, std::vector<std::vector<std::string>>* uses) {
  *uses = Lines("uses");
  for (const std::vector<std::string>& words : *uses) {
    if (std::stoul(words[0]) + 1 == reinterpret_cast<uintptr_t>(device)) return &words;
  }
  return nullptr;
}

size_t g_told = 0;

}  // namespace

extern "C" {

int nvmlInit_v2() { return Lines("devices").empty() ? 9 : 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = static_cast<unsigned>(Lines("devices").size());
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<uintptr_t>(index) + 1);
  return 0;
}
int nvmlDeviceGetName(void* device, char* out, unsigned size) { return Text(device, 0, out, size); }
int nvmlDeviceGetUUID(void* device, char* out, unsigned size) { return Text(device, 1, out, size); }
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  char text[32];
  if (Text(device, 2, text, sizeof text) != 0) return 1;
  memory->total = memory->free = std::strtoull(text, nullptr, 10);
  std::vector<std::vector<std::string>> uses;
  const std::vector<std::string>* use = FindUse(device, &uses);
  memory->used = use == nullptr ? 0 : std::strtoull((*use)[2].c_str(), nullptr, 10);
  memory->free -= memory->used;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void* device, Utilization* utilization) {
  std::vector<std::vector<std::string>> uses;
  const std::vector<std::string>* use = FindUse(device, &uses);
  if (use == nullptr) return 3;  // NVML_ERROR_NOT_SUPPORTED
  utilization->gpu = static_cast<unsigned>(std::strtoul((*use)[1].c_str(), nullptr, 10));
  utilization->memory = 0;
  return 0;
}
int nvmlDeviceGetSupportedEventTypes(void*, unsigned long long* types) {
  *types = 1 | 2 | 8;
  return 0;
}
int nvmlEventSetCreate(void** set) {
  *set = &g_told;
  g_told = Lines("events").size();
  return 0;
}
int nvmlDeviceRegisterEvents(void*, unsigned long long types, void*) {
  return (types & ~10ull) == 0 ? 0 : 2;
}
int nvmlEventSetFree(void*) { return 0; }
int nvmlEventSetWait_v2(void*, EventData* data, unsigned timeout_ms) {
  for (unsigned waited = 0;; waited += 5) {
    const std::vector<std::vector<std::string>> lines = Lines("events");
    if (lines.size() > g_told) {
      const std::vector<std::string>& words = lines[g_told++];
      std::memset(data, 0, sizeof *data);
      data->device = reinterpret_cast<void*>(
          static_cast<uintptr_t>(std::strtoul(words[0].c_str(), nullptr, 10)) + 1);
      data->type = std::strtoull(words[1].c_str(), nullptr, 10);
      data->data = std::strtoull(words[2].c_str(), nullptr, 10);
      return 0;
    }
    if (waited >= timeout_ms) return 10;  // NVML_ERROR_TIMEOUT
    const timespec pause{0, 5'000'000};
    ::nanosleep(&pause, nullptr);
  }
}
}
