// Command lines of the daemons and tools. `muster` itself has subcommands, and reports its own
// errors (cli/main.cc).
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <optional>

namespace muster {

// Nothing if the program may go on; else its exit code: 0 after --help and --version, 2 after a
// mistake, told on stderr with the program's name.
inline std::optional<int> ParseFlags(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return std::nullopt;
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "%s: %s\n  Help: %s --help\n", app.get_name().c_str(), error.what(),
                 app.get_name().c_str());
    return 2;
  }
}

}  // namespace muster
