#include "scheduler/state/bytes.h"

#include <cstdint>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/wire_format_lite.h"

namespace muster {

std::string DeterministicBytes(const google::protobuf::MessageLite& message) {
  std::string bytes(message.ByteSizeLong(), '\0');
  google::protobuf::io::ArrayOutputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  google::protobuf::io::CodedOutputStream coded(&stream);
  coded.SetSerializationDeterministic(true);
  message.SerializeWithCachedSizes(&coded);
  return bytes;
}

void AppendField(int number, const std::string& message_bytes, std::string* bytes) {
  using google::protobuf::internal::WireFormatLite;
  uint8_t head[20];
  uint8_t* end = google::protobuf::io::CodedOutputStream::WriteTagToArray(
      WireFormatLite::MakeTag(number, WireFormatLite::WIRETYPE_LENGTH_DELIMITED), head);
  end = google::protobuf::io::CodedOutputStream::WriteVarint64ToArray(message_bytes.size(), end);
  bytes->append(reinterpret_cast<const char*>(head), static_cast<size_t>(end - head));
  bytes->append(message_bytes);
}

}  // namespace muster
