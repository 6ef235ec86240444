// Unpacks a directory that came along with a job (common/pack/format.h), as whoever calls: its
// owner. The archive is whatever the owner sent, and other programs of the owner's may change what
// lies there meanwhile: each name is taken below the directory before it, no link is followed, and
// nothing that is there is written to. Part of the shim: no dependencies beyond the standard
// library.
#pragma once

#include <cstdint>
#include <string>

namespace muster::shim {

struct Unpacked {
  enum class Kind {
    kDone,        // it is there, whole and durable
    kWanted,      // it isn't, and there is no archive
    kBadArchive,  // `what` is wrong with it
    kStorage,     // `error`, of `what`
  } kind = Kind::kDone;
  std::string what;
  int error = 0;
};

// Makes the directory `name` in the directory `below` out of the archive, unless it is there.
// Several hosts may do so at once: it appears whole. `archive` < 0: there is none.
Unpacked Unpack(int below, const std::string& name, int archive, uint32_t umask);

}  // namespace muster::shim
