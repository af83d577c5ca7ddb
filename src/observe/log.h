// SPDX-License-Identifier: Apache-2.0
//
// File: log.h
//
// How the library says something to people: through the sink that they set.
// Never call these under a lock: a sink may call back into the library.
#ifndef HBMALLOC_OBSERVE_LOG_H_
#define HBMALLOC_OBSERVE_LOG_H_

#include <string_view>

#include "hbmalloc/log.h"

namespace hbm::observe {

void Log(LogSeverity severity, std::string_view message);
inline void LogWarning(std::string_view message) { Log(LogSeverity::kWarning, message); }
inline void LogInfo(std::string_view message) { Log(LogSeverity::kInfo, message); }

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_LOG_H_
