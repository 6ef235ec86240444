// An input as a list of messages: protobuf's text format, with a line "---" between them. What
// follows the dashes, if anything does, names the stream that it comes on. Left out is text that
// isn't a message, and what no peer can send: strings that aren't UTF-8.
#pragma once

#include <string>
#include <vector>

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/stubs/logging.h>
#include <google/protobuf/text_format.h>

#include "absl/strings/str_split.h"

namespace muster::fuzz {

template <typename Message>
struct Input {
  int stream = 0;
  Message message;
};

class Silent : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, google::protobuf::io::ColumnNumber, const std::string&) override {}
};

template <typename Message>
std::vector<Input<Message>> Read(const uint8_t* data, size_t size) {
  std::vector<Input<Message>> inputs;
  int stream = 0;
  std::string text;
  Silent silent;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&silent);
  parser.SetRecursionLimit(32);
  google::protobuf::SetLogHandler(nullptr);
  const auto add = [&] {
    Input<Message> input;
    input.stream = stream;
    Message read;
    const bool sendable = inputs.size() < 64 && parser.ParseFromString(text, &read) &&
                          input.message.ParseFromString(read.SerializeAsString());
    if (sendable) inputs.push_back(std::move(input));
    text.clear();
  };
  for (const absl::string_view line :
       absl::StrSplit(absl::string_view(reinterpret_cast<const char*>(data), size), '\n')) {
    if (line.substr(0, 3) == "---") {
      add();
      stream = line.size() > 3 ? line[3] & 3 : 0;
    } else {
      text.append(line.data(), line.size());
      text.push_back('\n');
    }
  }
  add();
  return inputs;
}

}  // namespace muster::fuzz
