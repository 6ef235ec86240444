// What a user asks of a program while it runs: files in a directory of its attempt
// (docs/programs.md, Requests). The file is taken away once it was seen.
#pragma once

#include <chrono>
#include <memory>
#include <string>

namespace muster::trainer {

// Of one rank, which tells the others. A thread of its own looks into the directory, and nobody
// ever waits for it: a storage that doesn't answer holds up neither a step nor the end.
class Requests {
 public:
  static constexpr std::chrono::milliseconds kBetween{500};

  // Empty: nobody asks.
  explicit Requests(const std::string& directory, std::chrono::milliseconds between = kBetween);
  ~Requests();
  Requests(const Requests&) = delete;
  Requests& operator=(const Requests&) = delete;

  // A checkpoint is asked for, until SaveBegins.
  bool save() const;
  void SaveBegins();
  // Steps that are to be recorded, at most kMostProfiled; 0: none. Each request is told once.
  int TakeProfile();

  static constexpr int kMostProfiled = 100;

 private:
  struct Seen;
  std::shared_ptr<Seen> seen_;  // null: nobody asks
};

}  // namespace muster::trainer
