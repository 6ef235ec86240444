// What a browser brings back.
#include "cli/provider/loopback.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

#include "common/base/units.h"

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

TEST(Callback, ParametersAreDecoded) {
  EXPECT_THAT(CallbackParameters("GET /callback?code=a%2Fb+c&state=s HTTP/1.1"),
              ElementsAre(Pair("code", "a/b c"), Pair("state", "s")));
  EXPECT_THAT(CallbackParameters("GET /callback?state=s&state=t&code= HTTP/1.1"),
              ElementsAre(Pair("code", ""), Pair("state", "")));
  EXPECT_THAT(CallbackParameters("GET /callback?a=%&b=%4&c=%zz HTTP/1.1"),
              ElementsAre(Pair("a", "%"), Pair("b", "%4"), Pair("c", "%zz")));
  for (const char* other : {"", "GET / HTTP/1.1", "POST /callback?code=a HTTP/1.1",
                            "GET /callback?code=a", "GET /callbackk?code=a HTTP/1.1"})
    EXPECT_THAT(CallbackParameters(other), IsEmpty()) << other;
}

std::string Visit(const std::string& url, const std::string& path) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(static_cast<uint16_t>(std::stoi(url.substr(url.rfind(':') + 1))));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  EXPECT_EQ(connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  const std::string text = "GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n";
  EXPECT_EQ(send(fd, text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  std::string answer(4096, '\0');
  answer.resize(static_cast<size_t>(std::max<ssize_t>(recv(fd, answer.data(), 4096, 0), 0)));
  close(fd);
  return answer;
}

TEST(Loopback, OnlyWhoHasTheStateIsHeard) {
  absl::StatusOr<Loopback> loopback = Loopback::Open(0);
  ASSERT_TRUE(loopback.ok()) << loopback.status();
  std::thread browser([url = loopback->url()] {
    EXPECT_THAT(Visit(url, "/favicon.ico"), HasSubstr("400"));
    EXPECT_THAT(Visit(url, "/callback?code=evil&state=guess"), HasSubstr("no answer"));
    EXPECT_THAT(Visit(url, "/callback?code=evil"), HasSubstr("no answer"));
    EXPECT_THAT(Visit(url, "/callback?code=good&state=s"), HasSubstr("200 OK"));
  });
  const auto back = loopback->Wait("s", kMinute);
  browser.join();
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->at("code"), "good");
}

TEST(Loopback, WhoeverDoesNotComeIsNotWaitedForForEver) {
  absl::StatusOr<Loopback> loopback = Loopback::Open(0);
  ASSERT_TRUE(loopback.ok()) << loopback.status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(loopback->Wait("s", kMillisecond).status()));
}

}  // namespace
}  // namespace muster
