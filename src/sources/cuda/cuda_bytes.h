// SPDX-License-Identifier: Apache-2.0
//
// File: cuda_bytes.h
//
// Fills and reads memory of a GPU on a stream, for the debug checks.
//
//   CudaBytes bytes(&context);
//   bytes.Fill(block, 0xFF, 4096, stream);
#ifndef HBMALLOC_SOURCES_CUDA_CUDA_BYTES_H_
#define HBMALLOC_SOURCES_CUDA_CUDA_BYTES_H_

#include <cstddef>

#include "absl/status/status.h"
#include "hbmalloc/memory_source.h"
#include "hbmalloc/stream.h"
#include "sources/cuda/context.h"

namespace hbm::sources::cuda {

// Thread-safe. See sources/memory_bytes.h for what the functions promise.
class CudaBytes {
 public:
  // Both outlive this object.
  CudaBytes(PrimaryContext* context, Timeline* timeline)
      : context_(*context), driver_(context->driver()), timeline_(*timeline) {}
  absl::Status Fill(void* address, unsigned char value, std::size_t bytes, StreamRef after);
  absl::Status Read(const void* address, void* to, std::size_t bytes, StreamRef after);

 private:
  // The stream to work on; before it, all work is waited for if `after` is no handle.
  absl::StatusOr<CUstream> Begin(StreamRef after);
  absl::Status End(CUstream stream);

  PrimaryContext& context_;
  const Driver& driver_;
  Timeline& timeline_;
};

}  // namespace hbm::sources::cuda

#endif  // HBMALLOC_SOURCES_CUDA_CUDA_BYTES_H_
