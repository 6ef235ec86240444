// The identity providers of musterd.yaml, asked over HTTPS.
#pragma once

#include <memory>

#include "common/spec/config_files.h"
#include "scheduler/access/users.h"
#include "scheduler/trust/providers.h"

namespace muster {

// Null where the configuration has none. Users and clock must outlive it.
std::unique_ptr<Providers> OpenProviders(const MusterdConfig& config, const Users* users,
                                         Clock* clock);

}  // namespace muster
