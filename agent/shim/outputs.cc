#include "agent/shim/outputs.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

namespace muster::shim {
namespace {

constexpr int kTurnBytes = 1 << 20;  // read of a stream before others are looked at
constexpr size_t kExportsBytes = size_t{4} << 20;

}  // namespace

Outputs::~Outputs() {
  for (const Stream& stream : streams_) {
    if (stream.fd >= 0) ::close(stream.fd);
  }
}

void Outputs::AddLog(int fd, int32_t rank, bool is_error) {
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  streams_.push_back({fd, rank, false, 0, LineBuffer(line_bytes_, is_error)});
}

void Outputs::AddExports(int fd, size_t worker) {
  ::fcntl(fd, F_SETFL, O_NONBLOCK);
  streams_.push_back({fd, 0, true, worker, LineBuffer(line_bytes_, false)});
}

void Outputs::AddTo(std::vector<pollfd>* polled) const {
  for (const Stream& stream : streams_) polled->push_back({stream.fd, POLLIN, 0});
}

void Outputs::Read(const std::vector<pollfd>& polled) {
  for (const pollfd& ready : polled) {
    if (ready.revents == 0) continue;
    for (Stream& stream : streams_) {
      if (stream.fd == ready.fd) Read(&stream);
    }
  }
  std::erase_if(streams_, [](const Stream& stream) { return stream.fd < 0; });
}

std::string Outputs::Exports(size_t worker) {
  for (Stream& stream : streams_) {
    if (stream.exports && stream.worker == worker && stream.fd >= 0) Read(&stream);
  }
  return exports_[worker];
}

LogWriter* Outputs::Writer(int32_t rank) {
  std::unique_ptr<LogWriter>& log = logs_[rank];
  const bool reports = rank == kReports;
  if (log == nullptr)
    log = std::make_unique<LogWriter>(directory_, rank, reports ? kReportsFileBytes : file_bytes_,
                                      reports ? kReportsFiles : files_);
  return log.get();
}

void Outputs::Log(int32_t rank, const std::string& line, bool is_error) {
  Writer(rank)->Append(MarkedLine(line, is_error) + "\n");
}

void Outputs::Report(const std::string& line) { Writer(kReports)->Append(line + "\n"); }

void Outputs::Close(Stream* stream) {
  ::close(stream->fd);
  stream->fd = -1;
  if (!stream->exports) stream->lines.Finish(Writer(stream->rank));
}

void Outputs::Read(Stream* stream) {
  char buffer[kTurnBytes / 16];
  // So much a turn, so that one talkative process can't starve the others.
  for (int i = 0; i < 16; ++i) {
    const ssize_t got = ::read(stream->fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) return Close(stream);
    const std::string_view bytes(buffer, static_cast<size_t>(got));
    if (stream->exports) {
      std::string& exports = exports_[stream->worker];
      if (exports.size() < kExportsBytes) exports.append(bytes);
    } else {
      stream->lines.Add(bytes, Writer(stream->rank));
    }
  }
}

void Outputs::Drain() {
  for (Stream& stream : streams_) {
    int left = 0;
    for (::ioctl(stream.fd, FIONREAD, &left); left > 0 && stream.fd >= 0; left -= kTurnBytes)
      Read(&stream);
    if (stream.fd >= 0) Close(&stream);
  }
  streams_.clear();
}

}  // namespace muster::shim
