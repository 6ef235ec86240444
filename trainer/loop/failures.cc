#include "trainer/loop/failures.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include <c10/util/Exception.h>

namespace muster::trainer {

int Refuse(const std::string& what, const Problems& problems) {
  std::fprintf(stderr, "%s: %zu problem%s, nothing was started\n%s", what.c_str(), problems.size(),
               problems.size() == 1 ? "" : "s", ToText(problems).c_str());
  return 2;
}

std::string Message(const std::exception& e) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&e);
  std::string text = torch_error != nullptr ? torch_error->what_without_backtrace() : e.what();
  if (const size_t stack = text.find("\nException raised from"); stack != std::string::npos)
    text.resize(stack);
  const bool lost_peer =
      dynamic_cast<const c10::DistBackendError*>(&e) != nullptr ||
      text.find("gloo/") != std::string::npos ||
      text.find("Watchdog caught collective operation timeout") != std::string::npos;
  return lost_peer ? "another rank is gone or can't be reached: " + text : text;
}

namespace {

struct LastWords {
  int rank = 0;
  std::function<void(const std::string&)> last;
};
LastWords* last_words = nullptr;  // for the rest of the process

[[noreturn]] void Terminate() {
  std::string what = "an exception that isn't one";
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::exception& e) {
    what = Message(e);
  } catch (...) {
    // It has no words.
  }
  std::fprintf(stderr, "rank %d failed: %s\n", last_words->rank, what.c_str());
  std::fflush(nullptr);
  if (last_words->last) last_words->last(what);
  ::_exit(1);
}

}  // namespace

void EndByOurWords(int rank, std::function<void(const std::string&)> last) {
  last_words = new LastWords{rank, std::move(last)};
  std::set_terminate(Terminate);
}

}  // namespace muster::trainer
