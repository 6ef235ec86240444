// Runs a fuzz target without libFuzzer: every file of its corpus, then so many of their mutations.
// For builds with gcc and its sanitizers; where clang is, bench/fuzz.sh links libFuzzer in its
// place, which also learns from the branches that an input takes.
//
//   fuzz_NAME [--runs 20000] [--seed 1] CORPUS_FOLDER
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

constexpr size_t kMostBytes = 4096;

void Try(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size());
}

std::string Mutated(const std::vector<std::string>& corpus, std::mt19937_64* random) {
  const auto below = [&](size_t n) { return n == 0 ? 0 : (*random)() % n; };
  std::string text = corpus[below(corpus.size())];
  for (size_t changes = 1 + below(6); changes > 0; --changes) {
    const size_t at = below(text.size() + 1), length = std::min(below(32), text.size() - at);
    switch (below(6)) {
      case 0:
        text.insert(at, 1, static_cast<char>(below(256)));
        break;
      case 1:
        text.erase(at, length);
        break;
      case 2:
        text.insert(at, text.substr(at, length));
        break;
      case 3:
        if (at < text.size()) text[at] = static_cast<char>(text[at] ^ (1u << below(8)));
        break;
      case 4: {
        const std::string& other = corpus[below(corpus.size())];
        const size_t from = below(other.size() + 1);
        text.insert(at, other.substr(from, below(64)));
        break;
      }
      default: {
        static const char* const kNumbers[] = {
            "0",     "-1",         "9223372036854775807",  "-9223372036854775808",
            "1e999", "4294967296", "\xff\xff\xff\xff\x0f", "{",
            "[",     "\n"};
        text.insert(at, kNumbers[below(std::size(kNumbers))]);
      }
    }
  }
  text.resize(std::min(text.size(), kMostBytes));
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  long runs = 20'000;
  uint64_t seed = 1;
  std::vector<std::string> corpus;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--runs") == 0 && i + 1 < argc) {
      runs = std::atol(argv[++i]);
    } else if (std::strcmp(argv[i], "--seed") == 0 && i + 1 < argc) {
      seed = std::strtoull(argv[++i], nullptr, 10);
    } else {
      std::vector<std::filesystem::path> files;
      for (const auto& entry : std::filesystem::directory_iterator(argv[i]))
        files.push_back(entry.path());
      std::sort(files.begin(), files.end());
      for (const std::filesystem::path& path : files) {
        std::ifstream file(path, std::ios::binary);
        corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
      }
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr,
                 "usage: %s [--runs N] [--seed N] CORPUS_FOLDER (which holds a file at least)\n",
                 argv[0]);
    return 2;
  }
  std::mt19937_64 random(seed);
  for (const std::string& input : corpus) Try(input);
  for (long run = 0; run < runs; ++run) Try(Mutated(corpus, &random));
  std::printf("Done %ld runs\n", runs + static_cast<long>(corpus.size()));
  return 0;
}
