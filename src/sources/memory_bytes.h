// SPDX-License-Identifier: Apache-2.0
//
// File: memory_bytes.h
//
// The bytes of memory that the host cannot reach by itself: filled and read on the
// device. What the debug checks stand on; a memory source that can do it is a
// MemoryBytes too:
//
//   auto* bytes = dynamic_cast<MemoryBytes*>(source.get());   // null: it cannot
//   bytes->Fill(block, 0xFF, 4096, stream);
#ifndef HBMALLOC_SOURCES_MEMORY_BYTES_H_
#define HBMALLOC_SOURCES_MEMORY_BYTES_H_

#include <cstddef>

#include "absl/status/status.h"
#include "hbmalloc/stream.h"

namespace hbm::sources {

// Thread-safe. Both come after the work queued so far on `after` (of all streams, if
// it is no handle) and block until they are done. FailedPrecondition, and nothing is
// done, while a graph is being captured on the stream.
class MemoryBytes {
 public:
  virtual ~MemoryBytes() = default;
  virtual absl::Status Fill(void* address, unsigned char value, std::size_t bytes,
                            StreamRef after) = 0;
  virtual absl::Status Read(const void* address, void* to, std::size_t bytes, StreamRef after) = 0;
};

}  // namespace hbm::sources

#endif  // HBMALLOC_SOURCES_MEMORY_BYTES_H_
