#include "agent/daemon/log_sender.h"

#include <unistd.h>

#include <utility>

#include "agent/shim/log_writer.h"
#include "common/base/protocol.h"
#include "common/base/units.h"

namespace muster::agent {
namespace {

constexpr int64_t kInterval = 30 * kMillisecond;  // of followed logs
// The longest line, with its mark and its end. With the ranges of stderr, of which each line may
// have one, less than a message may have.
constexpr int64_t kChunkBytes = (64 << 10) + 2;
// Read of logs before heartbeats and commands are looked at again.
constexpr int64_t kTurnBytes = 4 << 20;
constexpr size_t kQueueBytes = 4 << 20;
constexpr size_t kRequests = 256;

}  // namespace

v1::AgentMessage LogSender::ChunkOf(uint64_t request) const {
  v1::AgentMessage message;
  *message.mutable_session() = attempts_->session();
  message.mutable_log_chunk()->set_request(request);
  return message;
}

void LogSender::Start(const v1::LogRequest& request) {
  Reader reader;
  reader.id = IdOf(request.key());
  reader.rank = request.rank();
  reader.follow = request.follow();
  reader.tail_lines = request.tail_lines();
  if (request.max_bytes() > 0) reader.left_bytes = request.max_bytes();
  reader.from.insert(request.from().begin(), request.from().end());
  const bool known =
      IsValid(reader.id) && (attempts_->Find(reader.id) != nullptr ||
                             ::access(state_->LogDirectory(reader.id).c_str(), F_OK) == 0);
  if (!known || readers_.size() >= kRequests) {
    v1::AgentMessage message = ChunkOf(request.request());
    message.mutable_log_chunk()->set_end(true);
    message.mutable_log_chunk()->set_error(
        known ? "this host answers too many log requests already"
              : "no logs of this attempt on this host, or no longer");
    sender_->Send(std::move(message));
    return;
  }
  readers_[request.request()] = std::move(reader);
  next_ns_ = 0;
}

void LogSender::Turn(int64_t now_ns) {
  if (readers_.empty() || now_ns < next_ns_) return;
  turn_bytes_ = kTurnBytes;
  // One after the other, from turn to turn: whoever asks for much holds up nobody else.
  for (size_t left = readers_.size(); left > 0 && turn_bytes_ > 0; --left) {
    auto reader = readers_.upper_bound(served_);
    if (reader == readers_.end()) reader = readers_.begin();
    served_ = reader->first;
    if (!Pump(reader->first, &reader->second)) readers_.erase(reader);
  }
  next_ns_ = turn_bytes_ > 0 ? now_ns + kInterval : now_ns;
}

// The shim knows no protocol, and has a name of its own for it.
static_assert(shim::kReports == kReportsRank);

bool LogSender::Pump(uint64_t request, Reader* reader) {
  const std::string directory = state_->LogDirectory(reader->id);
  const AttemptRecord* record = attempts_->Find(reader->id);
  // Asked before reading: what is read then is all.
  const bool over = !reader->follow || record == nullptr || record->gone();
  for (const int32_t rank : shim::LogRanks(directory)) {
    const bool asked = reader->rank == -1 ? rank >= 0 : reader->rank == rank;
    if (!asked || reader->cursors.count(rank) != 0) continue;
    const auto from = reader->from.find(rank);
    reader->cursors.emplace(rank, from != reader->from.end()
                                      ? LogCursor::At(directory, rank, from->second)
                                      : LogCursor(directory, rank, reader->tail_lines));
  }
  bool more = false;
  for (auto& [rank, cursor] : reader->cursors) {
    cursor.MoveTo(directory);
    more = PumpRank(request, rank, &cursor, &reader->left_bytes) || more;
  }
  const bool spent = reader->left_bytes <= 0;
  if (!spent && (!over || more)) return true;
  v1::AgentMessage message = ChunkOf(request);
  message.mutable_log_chunk()->set_rank(reader->rank);
  message.mutable_log_chunk()->set_end(true);
  message.mutable_log_chunk()->set_more(spent);
  sender_->Send(std::move(message));
  return false;
}

bool LogSender::PumpRank(uint64_t request, int32_t rank, LogCursor* cursor, int64_t* left_bytes) {
  if (!cursor->Seek(&turn_bytes_)) return true;
  while (*left_bytes > 0) {
    if (link_->queued_bytes() > kQueueBytes || turn_bytes_ <= 0) return true;
    v1::AgentMessage message = ChunkOf(request);
    v1::LogChunk* chunk = message.mutable_log_chunk();
    int64_t dropped = 0;
    LogCursor::Piece piece = cursor->Read(kChunkBytes, &dropped);
    chunk->set_data(std::move(piece.data));
    for (const auto& [begin, end] : piece.from_stderr) {
      v1::ByteRange* range = chunk->add_from_stderr();
      range->set_begin(begin);
      range->set_end(end);
    }
    if (chunk->data().empty() && dropped == 0) return false;
    chunk->set_rank(rank);
    chunk->set_dropped_bytes(dropped);
    chunk->set_next_offset(cursor->offset());
    *left_bytes -= static_cast<int64_t>(chunk->data().size());
    turn_bytes_ -= static_cast<int64_t>(chunk->data().size());
    sender_->Send(std::move(message));
  }
  return false;
}

}  // namespace muster::agent
