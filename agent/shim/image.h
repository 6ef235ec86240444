// A container image as what a job's program takes for the file system
// (docs/decisions/107-images-are-entered-by-the-shim.md). Part of the shim: no dependencies beyond
// the standard library.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster::shim {

// Where a program in an image finds the files of the GPUs' driver.
inline constexpr char kDriverDirectory[] = "/.muster/driver";

struct Image {
  std::string path;  // a directory, as the host sees it; empty: there is no image
  // Directories of the host that are seen at the same path. What isn't there is left out.
  std::vector<std::string> shown;
  std::vector<std::string> driver;  // files of the host, in kDriverDirectory by their last name
  std::string workdir;              // where its program starts, as seen from within
};

std::string FormatImage(const Image& image);
bool ParseImage(std::string_view content, Image* image, std::string* error);

// Whether the host's directory `/name` shows in images that have none, or an empty one, of that
// name: it isn't one that makes a system what it is.
bool IsShownWhereMissing(std::string_view name);
// `passwd` or `group` of an image, with a line for `id` where it has none.
std::string WithName(std::string_view file, long id, const std::string& line);

// Makes the image the root of the calling process, which has one thread, for good: in namespaces
// of users and mounts of its own, so that it takes no rights, and gives none. It can be read, not
// written; /dev, /proc, /sys, /tmp and /var/tmp are as they were. 0, or an errno with the step.
// `*refused`: namespaces or mounts failed, not the paths that the job names.
int EnterImage(const Image& image, std::string* step, bool* refused = nullptr);

// muster-shim --can-enter [nobody]: tries it with a directory that every system has, as nobody
// where that is said. Says on standard error what is in the way. The exit status.
int RunCanEnter(bool as_nobody);

// muster-shim --enter STATUS IMAGE WORD…: enters the image (FormatImage) and becomes the program;
// failures go to the descriptor STATUS, as for any program (exec_status.h). The exit status.
int RunEnter(int argc, char** argv);

}  // namespace muster::shim
