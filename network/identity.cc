#include "network/identity.h"

#include <sys/stat.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/files.h"

namespace muster {
namespace {

constexpr absl::string_view kFirstLine = "muster-identity 1";
constexpr std::string_view kBegin = "-----BEGIN ", kEnd = "-----END ";
constexpr size_t kMaxAddresses = 16;
constexpr std::string_view kFingerprintKind = "sha256:";
constexpr size_t kFingerprintDigits = 64;

absl::Status Not(absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("this is no identity of Muster: ", why));
}

// Each PEM block of the text, with its newline.
std::vector<std::string> Blocks(std::string_view text) {
  std::vector<std::string> blocks;
  while (true) {
    const size_t begin = text.find(kBegin);
    if (begin == text.npos) return blocks;
    const size_t end = text.find(kEnd, begin);
    if (end == text.npos) return blocks;
    size_t after = text.find('\n', end);
    if (after == text.npos) after = text.size() - 1;
    blocks.emplace_back(text.substr(begin, after + 1 - begin));
    text.remove_prefix(after + 1);
  }
}

}  // namespace

std::string WhyNoAddress(std::string_view address, int example_port) {
  const size_t colon = address.rfind(':');
  int port = 0;
  const bool good_host =
      colon != address.npos && colon > 0 && colon <= 253 &&
      std::all_of(address.begin(), address.begin() + static_cast<ptrdiff_t>(colon), [](char c) {
        return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '-';
      });
  const std::string_view digits = good_host ? address.substr(colon + 1) : "";
  if (good_host && !digits.empty() && digits.size() <= 5 &&
      std::all_of(digits.begin(), digits.end(),
                  [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); }) &&
      absl::SimpleAtoi(std::string(digits), &port) && port >= 1 && port <= 65535)
    return "";
  return absl::StrCat("\"", std::string(address.substr(0, 300)),
                      "\" is no HOST:PORT, such as m1.example:", example_port);
}

std::string WhyNoFingerprint(std::string_view text) {
  const std::string_view digits = text.substr(0, kFingerprintKind.size()) == kFingerprintKind
                                      ? text.substr(kFingerprintKind.size())
                                      : "";
  if (digits.size() == kFingerprintDigits &&
      digits.find_first_not_of("0123456789abcdef") == digits.npos)
    return "";
  return absl::StrCat("--ca: \"", std::string(text.substr(0, 300)),
                      "\" is no fingerprint, which is sha256: and 64 digits (0 to 9, a to f). Copy "
                      "the line whole; `muster ca show` on musterd's machine has the fingerprint");
}

std::string WriteIdentity(const Identity& identity) {
  std::string text = absl::StrCat(kFirstLine, "\n");
  for (const std::string& address : identity.addresses)
    absl::StrAppend(&text, "address ", address, "\n");
  if (!identity.join_address.empty()) absl::StrAppend(&text, "join ", identity.join_address, "\n");
  return absl::StrCat(text, identity.key, identity.certificate, identity.authorities);
}

absl::StatusOr<Identity> ReadIdentity(std::string_view text) {
  if (text.size() > kMaxPemBytes) return Not("it is too large");
  const size_t pem = text.find(kBegin);
  if (pem == text.npos) return Not("it holds no key");
  const std::vector<std::string> lines =
      absl::StrSplit(std::string(text.substr(0, pem)), '\n', absl::SkipEmpty());
  if (lines.empty() || kFirstLine != lines[0]) return Not("its first line is another");
  Identity identity;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::pair<std::string, std::string> words =
        absl::StrSplit(lines[i], absl::MaxSplits(' ', 1));
    if (const std::string why = WhyNoAddress(words.second); !why.empty()) return Not(why);
    if (words.first == "address" && identity.addresses.size() < kMaxAddresses) {
      identity.addresses.push_back(words.second);
    } else if (words.first == "join") {
      identity.join_address = words.second;
    } else {
      return Not("it has a line that isn't known");
    }
  }
  if (identity.addresses.empty()) return Not("it names no address");
  const std::vector<std::string> blocks = Blocks(text.substr(pem));
  if (blocks.size() < 3) return Not("it must hold a key, a certificate and an authority");
  identity.key = blocks[0];
  identity.certificate = blocks[1];
  for (size_t i = 2; i < blocks.size(); ++i) identity.authorities += blocks[i];
  const absl::StatusOr<Certificate> own = ReadCertificate(identity.certificate);
  if (!own.ok()) return Not(own.status().message());
  const absl::StatusOr<std::vector<Certificate>> authorities =
      ReadCertificates(identity.authorities);
  if (!authorities.ok()) return Not(authorities.status().message());
  if (absl::Status fit = CheckIdentity(identity.key + identity.certificate); !fit.ok())
    return Not(fit.message());
  const std::optional<Holder> holder = ParseHolder(own->uri);
  if (!holder.has_value()) return Not("its certificate names nobody");
  identity.holder = *holder;
  identity.validity = own->validity;
  return identity;
}

absl::StatusOr<Identity> LoadIdentity(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxPemBytes + 1);
  if (!text.ok()) return text.status();
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || (info.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": others may read it, and it holds a private key; chmod 0600 ", path));
  }
  absl::StatusOr<Identity> identity = ReadIdentity(*text);
  if (!identity.ok())
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", identity.status().message()));
  return identity;
}

absl::Status SaveIdentity(const std::string& path, const Identity& identity) {
  return WriteFileDurably(path, WriteIdentity(identity), 0600);
}

}  // namespace muster
