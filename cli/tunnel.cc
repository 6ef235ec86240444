#include "cli/tunnel.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <thread>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/render/format.h"
#include "common/base/check.h"

namespace muster {
namespace {

constexpr size_t kPiece = 64 << 10;

// False: nobody reads there any more.
bool WriteAll(int fd, const std::string& data) {
  for (size_t done = 0; done < data.size();) {
    const ssize_t wrote = write(fd, data.data() + done, data.size() - done);
    if (wrote < 0 && errno == EAGAIN) {
      pollfd ready{fd, POLLOUT, 0};
      poll(&ready, 1, -1);
    } else if (wrote < 0 && errno != EINTR) {
      return false;
    }
    if (wrote > 0) done += static_cast<size_t>(wrote);
  }
  return true;
}

// Sends what `in` says, in a thread of its own, until its end, or until it is told to stop.
class Sender {
 public:
  Sender(TunnelCall* call, const TunnelEnds& ends, TunnelWindow* window)
      : call_(call), ends_(ends), window_(window), stop_(eventfd(0, EFD_CLOEXEC)) {
    MUSTER_CHECK(stop_ >= 0);
    thread_ = std::thread([this] { Run(); });
  }
  ~Sender() {
    const uint64_t one = 1;
    MUSTER_CHECK(write(stop_, &one, sizeof one) == sizeof one);
    window_->Close();
    thread_.join();
    close(stop_);
  }
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;

 private:
  void Run() {
    bool reads = true;
    while (true) {
      pollfd polled[3] = {
          {stop_, POLLIN, 0}, {reads ? ends_.in : -1, POLLIN, 0}, {ends_.resized, POLLIN, 0}};
      if (poll(polled, 3, -1) < 0 && errno != EINTR) return;
      if (polled[0].revents != 0) return;
      if (polled[2].revents != 0 && !SendSize()) return;
      if (polled[1].revents != 0 && !SendPiece(&reads)) return;
    }
  }
  bool SendSize() const {
    uint64_t times = 0;
    if (read(ends_.resized, &times, sizeof times) < 0) return true;
    pb::TunnelInput input;
    *input.mutable_size() = SizeOf(ends_.in);
    return call_->Write(input);
  }
  bool SendPiece(bool* reads) {
    pb::TunnelInput input;
    std::string* data = input.mutable_data();
    data->resize(kPiece);
    const ssize_t got = read(ends_.in, data->data(), data->size());
    if (got < 0 && (errno == EINTR || errno == EAGAIN)) return true;
    if (got > 0) {
      data->resize(static_cast<size_t>(got));
      return window_->Take(got) && call_->Write(input);
    }
    *reads = false;
    if (ends_.terminal) {
      // No Ctrl+D, which is a byte like others: the terminal has gone away. An end of input would
      // let a shell at the other end leave with success.
      call_->Cancel();
      return false;
    }
    input.set_end(true);
    return call_->Write(input);
  }

  TunnelCall* const call_;
  const TunnelEnds ends_;
  TunnelWindow* const window_;
  const int stop_;
  std::thread thread_;
};

// False: the call is to end, as nobody takes what comes.
bool Deliver(const pb::TunnelOutput& output, const TunnelEnds& ends) {
  switch (output.body_case()) {
    case pb::TunnelOutput::kOut:
      return WriteAll(ends.out, output.out());
    case pb::TunnelOutput::kErr:
      return WriteAll(ends.err, output.err());
    case pb::TunnelOutput::kOutEnd:
      if (ends.is_connection) shutdown(ends.out, SHUT_WR);
      return true;
    default:
      return true;
  }
}

// What musterd of the version before says of the job and its host, UNAVAILABLE and without details.
// It is its word all the same.
constexpr std::string_view kEnded[] = {"the job has ended", "the attempt has ended"};
constexpr std::string_view kOfTheHost[] = {" is not connected now; try again once it is",
                                           " doesn't answer; try again in a moment",
                                           "the host's muster-agent is gone, and with it what it "
                                           "held open"};

bool IsOldWord(std::string_view said) {
  return std::any_of(std::begin(kOfTheHost), std::end(kOfTheHost),
                     [&](std::string_view word) { return said.ends_with(word); });
}

}  // namespace

bool TunnelWindow::Take(int64_t bytes) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return closed_ || sent_bytes_ + bytes - taken_bytes_ <= kBytes; });
  if (closed_) return false;
  sent_bytes_ += bytes;
  return true;
}

void TunnelWindow::Taken(int64_t in_all) {
  std::lock_guard lock(mutex_);
  taken_bytes_ = std::max(taken_bytes_, in_all);
  changed_.notify_all();
}

void TunnelWindow::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

pb::TerminalSize SizeOf(int terminal) {
  winsize size{};
  pb::TerminalSize told;
  if (ioctl(terminal, TIOCGWINSZ, &size) != 0 || size.ws_row == 0 || size.ws_col == 0)
    size = {24, 80, 0, 0};
  told.set_rows(size.ws_row);
  told.set_columns(size.ws_col);
  return told;
}

CutOff WhyCutOff(const absl::Status& status) {
  if (status.ok()) return {"musterd ended the call", true};
  const std::string said = Plain(std::string(status.message()));
  if (!absl::IsUnavailable(status)) return {said, false};
  // Musterd's own word is about the host; without one nobody has spoken.
  if (status.GetPayload(kDetailsUrl).has_value()) return {said, true};
  if (std::find(std::begin(kEnded), std::end(kEnded), said) != std::end(kEnded))
    return {said, false};
  if (IsOldWord(said)) return {said, true};
  return {absl::StrCat("the connection to musterd was lost", said.empty() ? "" : " (", said,
                       said.empty() ? "" : ")", ": it was started anew, or the network failed"),
          true};
}

TunnelOutcome CarryTunnel(TunnelCall* call, const pb::TunnelInput& start, const TunnelEnds& ends,
                          const std::function<void()>& on_begun) {
  TunnelOutcome outcome;
  TunnelWindow window;
  std::unique_ptr<Sender> sender;
  call->Write(start);
  pb::TunnelOutput output;
  while (call->Read(&output)) {
    if (output.has_begun() && !outcome.begun) {
      outcome.begun = true;
      if (on_begun) on_begun();
      sender = std::make_unique<Sender>(call, ends, &window);
    }
    if (output.body_case() == pb::TunnelOutput::kTakenBytes) window.Taken(output.taken_bytes());
    if (output.has_end()) {
      outcome.ended = true;
      outcome.end.Swap(output.mutable_end());
    } else if (!Deliver(output, ends)) {
      call->Cancel();
      break;
    }
  }
  sender.reset();
  outcome.status = call->Finish();
  return outcome;
}

}  // namespace muster
