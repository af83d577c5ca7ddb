// SPDX-License-Identifier: Apache-2.0
//
// File: environment.h
//
// What the command is told of its grant, in the words that frameworks understand.
#ifndef HBMALLOC_TOOLS_RUN_ENVIRONMENT_H_
#define HBMALLOC_TOOLS_RUN_ENVIRONMENT_H_

#include <string>
#include <vector>

#include "tools/run/probe.h"

namespace hbm::run {

// Changes this process's environment. `fraction` is of the device's total memory.
void SetEnvironment(const Probe& device, double fraction, const std::vector<std::string>& command);

}  // namespace hbm::run

#endif  // HBMALLOC_TOOLS_RUN_ENVIRONMENT_H_
