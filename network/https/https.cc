#include "network/https/https.h"

#include <curl/curl.h>

#include <memory>
#include <mutex>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

struct FreeHandle {
  void operator()(CURL* handle) const { curl_easy_cleanup(handle); }
};
struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};

struct Body {
  std::string text;
  size_t most = 0;
  bool too_long = false;
};

size_t Take(char* data, size_t, size_t size, void* to) {
  Body* body = static_cast<Body*>(to);
  body->too_long = size > body->most - body->text.size();
  if (body->too_long) return 0;  // ends the transfer
  body->text.append(data, size);
  return size;
}

// Not 0 ends the transfer.
int Stopped(void* stop, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  return *static_cast<std::atomic<bool>*>(stop) ? 1 : 0;
}

std::string Form(CURL* handle, const HttpsQuestion& question) {
  std::string text;
  for (const auto& [name, value] : question.form) {
    char* escaped = curl_easy_escape(handle, value.data(), static_cast<int>(value.size()));
    absl::StrAppend(&text, text.empty() ? "" : "&", name, "=", escaped == nullptr ? "" : escaped);
    curl_free(escaped);
  }
  return text;
}

}  // namespace

absl::StatusOr<HttpsAnswer> Ask(const HttpsQuestion& question) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  const std::unique_ptr<CURL, FreeHandle> handle(curl_easy_init());
  if (handle == nullptr) return absl::UnavailableError("libcurl did not start");
  CURL* const curl = handle.get();
  Body body;
  body.most = question.bytes_max;
  char why[CURL_ERROR_SIZE] = "";
  curl_easy_setopt(curl, CURLOPT_URL, question.url.c_str());
  curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "https");
  curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 0L);
  curl_easy_setopt(curl, CURLOPT_SSLVERSION, static_cast<long>(CURL_SSLVERSION_TLSv1_2));
  curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 1L);
  curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 2L);
  if (!question.ca_file.empty()) {
    curl_easy_setopt(curl, CURLOPT_CAINFO, question.ca_file.c_str());
    curl_easy_setopt(curl, CURLOPT_CAPATH, nullptr);  // those and no others
  }
  curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, static_cast<long>(question.timeout_ns / kMillisecond));
  curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, why);
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, Take);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &body);
  if (question.stop != nullptr) {
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, Stopped);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, question.stop);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
  }
  curl_easy_setopt(curl, CURLOPT_USERAGENT, "muster");
  const std::unique_ptr<curl_slist, FreeList> headers(
      curl_slist_append(nullptr, "Accept: application/json"));
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  const std::string form = Form(curl, question);
  if (!question.form.empty()) curl_easy_setopt(curl, CURLOPT_COPYPOSTFIELDS, form.c_str());
  const CURLcode code = curl_easy_perform(curl);
  if (body.too_long) {
    return absl::UnavailableError(absl::StrCat(question.url, ": the answer has more than ",
                                               question.bytes_max >> 10, " KiB"));
  }
  if (code != CURLE_OK) {
    return absl::UnavailableError(
        absl::StrCat(question.url, ": ", why[0] != '\0' ? why : curl_easy_strerror(code)));
  }
  HttpsAnswer answer;
  long status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  answer.status = status;
  answer.body = std::move(body.text);
  return answer;
}

}  // namespace muster
