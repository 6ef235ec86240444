// Progress lines that are told once, where the reader is slow or away.
#include "trainer/loop/progress.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace muster::trainer {
namespace {

using nlohmann::ordered_json;

class Reader {
 public:
  explicit Reader(const std::string& path)
      : path_(path), fd_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
    EXPECT_EQ(::bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0)
        << std::strerror(errno);
  }
  ~Reader() {
    ::close(fd_);
    ::unlink(path_.c_str());
  }
  // The numbers "n" of what has come.
  std::vector<int> Take() {
    std::vector<int> numbers;
    char text[4096];
    for (ssize_t got; (got = ::recv(fd_, text, sizeof text, 0)) >= 0;)
      numbers.push_back(ordered_json::parse(std::string(text, static_cast<size_t>(got)))["n"]);
    return numbers;
  }

 private:
  const std::string path_;
  const int fd_;
};

std::string SocketPath() {
  return std::filesystem::temp_directory_path() / ("progress_test." + std::to_string(::getpid()));
}

// Lines as they are sent at every step, until the reader's queue takes no more; how many it took.
int Fill(Progress& progress, Reader& reader) {
  // What is sent beyond the queue is dropped, so far more than it ever has.
  for (int n = 0; n < 5000; ++n) progress.Send({{"n", n}});
  const int took = static_cast<int>(reader.Take().size());
  for (int n = 0; n < took; ++n) progress.Send({{"n", n}});
  return took;
}

TEST(Progress, WhatIsToldOnceComesAfterAFullQueueAndBeforeLaterLines) {
  Reader reader(SocketPath());
  Progress progress(SocketPath());
  const int took = Fill(progress, reader);
  ASSERT_LT(took, 5000);
  progress.Send({{"n", 10000}}, Progress::kDurable);
  progress.Send({{"n", 10001}});  // dropped: there is room for neither
  EXPECT_FALSE(progress.Delivered());
  EXPECT_EQ(reader.Take().size(), static_cast<size_t>(took));
  progress.Send({{"n", 10002}});
  EXPECT_TRUE(progress.Delivered());
  EXPECT_EQ(reader.Take(), (std::vector<int>{10000, 10002}));
}

TEST(Progress, WhatIsToldWhileNobodyReadsIsKeptInOrderAndWithinBounds) {
  Progress progress(SocketPath());
  constexpr int kSent = static_cast<int>(Progress::kMostKept) + 3;
  for (int n = 0; n < kSent; ++n) progress.Send({{"n", n}}, Progress::kDurable);
  EXPECT_FALSE(progress.Delivered());
  Reader reader(SocketPath());
  std::vector<int> found;
  while (!progress.Delivered()) {  // the queue is shorter than what is kept
    for (const int n : reader.Take()) found.push_back(n);
  }
  for (const int n : reader.Take()) found.push_back(n);
  std::vector<int> wanted;
  for (int n = 3; n < kSent; ++n) wanted.push_back(n);
  EXPECT_EQ(found, wanted);
}

TEST(Progress, WhatIsKeptIsSentAtTheEnd) {
  std::optional<Progress> progress(SocketPath());
  progress->Send({{"n", 7}}, Progress::kDurable);
  Reader reader(SocketPath());
  progress.reset();
  EXPECT_EQ(reader.Take(), std::vector<int>{7});
}

}  // namespace
}  // namespace muster::trainer
