// For tests: ranks as threads of one process, with a Gloo group each.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "trainer/parallel/groups.h"

namespace muster::trainer {

inline int FreePort() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  ::close(fd);
  return ntohs(address.sin_port);
}

// Runs `body` on each of `size` ranks, in `pp` stages, shard groups of `shard_size` (0: one), parts
// of rows of `cp` and slices of `tp`; experts are shared out among `ep`.
inline void OnRanks(int size, const std::function<void(World&)>& body, int shard_size = 0,
                    int tp = 1, int pp = 1, bool ring = false, int ep = 1, int cp = 1) {
  const int port = FreePort();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      at::NoGradGuard no_grad;
      WorldInfo info;
      info.rank = rank, info.size = size, info.local_size = size, info.master_port = port;
      std::unique_ptr<World> world = World::Connect(info, at::kCPU);
      world->MakeGroups(Mesh(size, tp, shard_size, pp, ep, cp), ring);
      body(*world);
      world->GatherRows({0});  // rank 0 hosts the store until all are done
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace muster::trainer
