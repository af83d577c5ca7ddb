// SPDX-License-Identifier: Apache-2.0
//
// File: hbmalloc.h
//
// Everything at once.
#ifndef HBMALLOC_HBMALLOC_H_
#define HBMALLOC_HBMALLOC_H_

#include "hbmalloc/allocator.h"
#include "hbmalloc/device.h"
#include "hbmalloc/event.h"
#include "hbmalloc/event_history.h"
#include "hbmalloc/export.h"
#include "hbmalloc/log.h"
#include "hbmalloc/memory_source.h"
#include "hbmalloc/out_of_memory.h"
#include "hbmalloc/policy.h"
#include "hbmalloc/region_change.h"
#include "hbmalloc/sharing.h"
#include "hbmalloc/stats.h"
#include "hbmalloc/stream.h"
#include "hbmalloc/stream_ordered_pool.h"
#include "hbmalloc/tag.h"
#include "hbmalloc/version.h"

#endif  // HBMALLOC_HBMALLOC_H_
