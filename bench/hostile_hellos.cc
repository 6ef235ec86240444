#include "bench/hostile_hellos.h"

#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <unordered_map>
#include <vector>

#include "network/testing/hostile_connection.h"

namespace muster::bench {
namespace {

constexpr size_t kAtOnce = 300;        // below what may be silent
constexpr int64_t kPatienceMs = 3000;  // for the server's end
constexpr size_t kRecordHeader = 5, kMostBytes = 64 << 10;

void SetLength(std::string* hello, size_t at, size_t bytes, size_t value) {
  for (size_t i = 0; i < bytes && at + i < hello->size(); ++i)
    (*hello)[at + i] = static_cast<char>(value >> (8 * (bytes - 1 - i)));
}

}  // namespace

std::string Mutate(std::string hello, std::mt19937_64* random) {
  const auto below = [random](size_t n) { return n == 0 ? 0 : (*random)() % n; };
  const auto byte = [&] { return static_cast<char>(below(256)); };
  for (size_t times = 1 + below(4); times > 0; --times) {
    switch (below(8)) {
      case 0:
        hello[below(hello.size())] = byte();
        break;
      case 1:
        hello[below(hello.size())] ^= static_cast<char>(1 << below(8));
        break;
      case 2:  // the record ends early; the lengths stay
        hello.resize(1 + below(hello.size()));
        break;
      case 3: {  // a part comes twice
        const size_t at = below(hello.size()), size = 1 + below(hello.size() - at);
        if (hello.size() + size < kMostBytes) hello.insert(at, hello.substr(at, size));
        break;
      }
      case 4: {  // a part is missing
        const size_t at = below(hello.size()), size = below(hello.size() - at);
        if (size < hello.size()) hello.erase(at, size);
        break;
      }
      case 5:  // what looks like a length
        SetLength(&hello, below(hello.size()), 1 + below(3),
                  below(2) == 0 ? SIZE_MAX : below(70000));
        break;
      case 6:  // other lengths of record and message, which agree
        SetLength(&hello, 3, 2, below(20000));
        SetLength(&hello, kRecordHeader + 1, 3, below(20000));
        break;
      default:  // rubbish in between
        for (size_t n = below(64), at = below(hello.size()); n > 0; --n)
          hello.insert(at, 1, byte());
    }
  }
  return hello;
}

namespace {

struct Try {
  std::string hello;
  int64_t since_ms = 0;
  bool sent = false;
  uint64_t got = 0;
  char first = 0;
};

// Keeps so many connections going until all hellos were said.
class Sayer {
 public:
  Sayer(const std::string& address, const std::vector<std::string>& sources, uint64_t seed)
      : address_(address), sources_(sources), random_(seed), epoll_(epoll_create1(EPOLL_CLOEXEC)) {}
  ~Sayer() { close(epoll_); }

  HelloCounts Say(uint64_t count, int64_t until_ms) {
    const TlsClient client(nullptr);
    std::vector<std::string> genuine;  // their random parts differ
    for (int i = 0; i < 16; ++i) genuine.push_back(client.Hello());
    const size_t at_once = std::min<size_t>(kAtOnce, 100 * std::max<size_t>(1, sources_.size()));
    uint64_t begun = 0;
    int64_t looked_ms = NowMs();
    while (begun < count || !tries_.empty()) {
      const int64_t now_ms = NowMs();
      if (now_ms >= until_ms) count = begun;
      while (begun < count && tries_.size() < at_once) {
        if (!BeginOne(Mutate(genuine[begun % genuine.size()], &random_))) break;
        ++begun;
      }
      epoll_event events[128];
      const int ready = epoll_wait(epoll_, events, 128, 50);
      for (int i = 0; i < ready; ++i) On(events[i].data.fd, events[i].events);
      if (now_ms - looked_ms < 250) continue;
      looked_ms = now_ms;
      std::vector<int> late;
      for (const auto& [fd, what] : tries_)
        if (now_ms - what.since_ms > kPatienceMs) late.push_back(fd);
      for (const int fd : late) {
        ++counts_.unended;
        End(fd);
      }
    }
    counts_.said = begun;
    return counts_;
  }

 private:
  bool BeginOne(std::string hello) {
    const int fd = Begin(address_, sources_.empty() ? "" : sources_[next_++ % sources_.size()]);
    if (fd < 0) {
      ++counts_.no_connection;
      return false;
    }
    epoll_event event{};
    event.events = EPOLLOUT;
    event.data.fd = fd;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event);
    tries_[fd] = {std::move(hello), NowMs()};
    return true;
  }
  void On(int fd, uint32_t events) {
    const auto it = tries_.find(fd);
    if (it == tries_.end()) return;
    Try& what = it->second;
    if (!what.sent && (events & EPOLLOUT) != 0) {
      what.sent = true;
      // They fit into the socket's buffer. Then no more is said: the server has to make an end.
      (void)send(fd, what.hello.data(), what.hello.size(), MSG_NOSIGNAL);
      shutdown(fd, SHUT_WR);
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.fd = fd;
      epoll_ctl(epoll_, EPOLL_CTL_MOD, fd, &event);
      return;
    }
    char bytes[8192];
    while (true) {
      const ssize_t got = recv(fd, bytes, sizeof bytes, 0);
      if (got < 0 && errno == EAGAIN && (events & (EPOLLHUP | EPOLLERR)) == 0) return;
      if (got <= 0) break;
      if (what.got == 0) what.first = bytes[0];
      what.got += static_cast<uint64_t>(got);
    }
    if (what.got == 0) {
      ++counts_.silent;
    } else if (what.first == 0x16) {
      ++counts_.answered;
    } else if (what.first == 0x15) {
      ++counts_.alerts;
    } else {
      ++counts_.strange;
    }
    End(fd);
  }
  void End(int fd) {
    tries_.erase(fd);
    close(fd);
  }

  const std::string address_;
  const std::vector<std::string> sources_;
  std::mt19937_64 random_;
  const int epoll_;
  size_t next_ = 0;
  std::unordered_map<int, Try> tries_;
  HelloCounts counts_;
};

}  // namespace

HelloCounts SayHellos(const std::string& address, const std::vector<std::string>& sources,
                      uint64_t count, uint64_t seed, int64_t until_ms) {
  return Sayer(address, sources, seed).Say(count, until_ms);
}

}  // namespace muster::bench
