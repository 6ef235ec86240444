#include "agent/daemon/served.h"

#include <errno.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <future>
#include <string>
#include <vector>

namespace muster::agent {
namespace {

// Nobody takes connections there: they wait, until there is no room for one more.
TEST(Served, ASchedulerThatStandsStillIsNotWaitedForWithoutEnd) {
  char name[] = "/tmp/muster-served-test-XXXXXX";
  const std::string directory = ::mkdtemp(name);
  const std::string path = directory + "/socket";
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  memcpy(address.sun_path, path.data(), path.size());
  const auto* bound = reinterpret_cast<const sockaddr*>(&address);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  ASSERT_EQ(::bind(listener, bound, sizeof address), 0);
  ASSERT_EQ(::listen(listener, 4), 0);
  const Trust trust{.single_user = true};
  EXPECT_EQ(WhyNotServedLocally(path, trust), "");
  std::vector<int> waiting;
  do {
    waiting.push_back(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  } while (::connect(waiting.back(), bound, sizeof address) == 0);
  ASSERT_EQ(errno, EAGAIN);
  std::future<std::string> why =
      std::async(std::launch::async, [&] { return WhyNotServedLocally(path, trust); });
  EXPECT_EQ(why.wait_for(std::chrono::seconds(20)), std::future_status::ready);
  ::close(listener);  // ends whoever still waits
  EXPECT_EQ(why.get(),
            path +
                ": musterd takes no connections: it stands still, or has too much to do. See "
                "what it does (ps -o pid,stat,pcpu -C musterd) and its log (journalctl -u "
                "musterd; of muster up: logs/musterd.log)");
  for (const int fd : waiting) ::close(fd);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace muster::agent
