#include "agent/shim/tunnel_format.h"

#include <gtest/gtest.h>

namespace muster::shim {
namespace {

TEST(TunnelRequest, ReadsBackWhatItSays) {
  TunnelRequest request;
  request.rank = 3;
  request.argv = {"bash", "-c", "echo \"a b\"\n%41\xff", ""};
  request.terminal = true;
  request.rows = 24;
  request.columns = 80;
  request.term = "xterm-256color";
  TunnelRequest read;
  std::string error;
  ASSERT_TRUE(ParseTunnelRequest(FormatTunnelRequest(request), &read, &error)) << error;
  EXPECT_EQ(read.rank, 3);
  EXPECT_EQ(read.argv, request.argv);
  EXPECT_TRUE(read.terminal);
  EXPECT_EQ(read.rows, 24);
  EXPECT_EQ(read.columns, 80);
  EXPECT_EQ(read.term, request.term);
}

TEST(TunnelRequest, WhatIsNoneIsRefused) {
  TunnelRequest request;
  std::string error;
  const auto refused = [&] {
    TunnelRequest read;
    return !ParseTunnelRequest(FormatTunnelRequest(request), &read, &error);
  };
  EXPECT_TRUE(refused()) << "neither a command nor a port";
  request.port = 8888;
  EXPECT_FALSE(refused()) << error;
  request.argv = {"true"};
  EXPECT_TRUE(refused()) << "both";
  request.port = 0;
  EXPECT_FALSE(refused()) << error;
  request.argv = {std::string("a\0b", 3)};
  EXPECT_TRUE(refused()) << "the kernel would see another word";
  request.argv = {"true"};
  request.term = "a=b";
  EXPECT_TRUE(refused());
  request.term = "xterm";
  request.rank = -1;
  EXPECT_TRUE(refused());
  TunnelRequest read;
  const std::string whole = FormatTunnelRequest({.rank = 0, .argv = {"true"}});
  EXPECT_FALSE(ParseTunnelRequest(whole.substr(0, whole.size() - 4), &read, &error)) << "cut off";
}

TEST(TunnelReply, ReadsBackWhatItSays) {
  TunnelReply reply, read;
  EXPECT_TRUE(ParseTunnelReply(FormatTunnelReply(reply), &read));
  EXPECT_EQ(read.kind, TunnelReply::Kind::kBegun);
  reply.kind = TunnelReply::Kind::kEnded;
  reply.exit_code = 7;
  ASSERT_TRUE(ParseTunnelReply(FormatTunnelReply(reply), &read));
  EXPECT_EQ(read.exit_code, 7);
  reply.exit_code = 0;
  reply.signal = 15;
  ASSERT_TRUE(ParseTunnelReply(FormatTunnelReply(reply), &read));
  EXPECT_EQ(read.signal, 15);
  reply.kind = TunnelReply::Kind::kFailed;
  reply.why = "exec x: No such file or directory\n";
  ASSERT_TRUE(ParseTunnelReply(FormatTunnelReply(reply), &read));
  EXPECT_EQ(read.why, reply.why);
  for (const char* text : {"", "begun", "ended\n", "ended exit_code=256 signal=0\n", "other\n"})
    EXPECT_FALSE(ParseTunnelReply(text, &read)) << text;
}

// Lines as the kernel writes them: 8888 is 22B8.
TEST(ListensOn, OnlyListenersThatAConnectionToLoopbackReaches) {
  constexpr char kRest[] = " 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100";
  const auto line = [&](const std::string& local, const std::string& state) {
    return "   0: " + local + " 00000000:0000 " + state + kRest;
  };
  const std::string nothing6(32, '0');
  const struct {
    std::string text;
    bool listens;
  } cases[] = {
      {line("0100007F:22B8", "0A"), true},
      {line("00000000:22B8", "0A"), true},
      {line(nothing6 + ":22B8", "0A"), true},
      {line("0000000000000000FFFF00000100007F:22B8", "0A"), true},
      {line("0100007F:22B8", "01"), false},  // a connection
      {line("0100007F:22B9", "0A"), false},
      {line("0200000A:22B8", "0A"), false},                          // another address
      {line("00000000000000000000000001000000:22B8", "0A"), false},  // ::1
      {"  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid", false},
      {"", false},
      {"0: 0100007F:22B8 x 0A", false},
  };
  for (const auto& c : cases) {
    uint64_t inode = 0;
    EXPECT_EQ(ListensOn(c.text, 8888, &inode), c.listens) << c.text;
    if (c.listens) {
      EXPECT_EQ(inode, 4711u) << c.text;
    }
  }
}

}  // namespace
}  // namespace muster::shim
