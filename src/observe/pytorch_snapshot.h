// SPDX-License-Identifier: Apache-2.0
//
// File: pytorch_snapshot.h
//
// The memory snapshots that PyTorch writes with
// torch.cuda.memory._dump_snapshot("snapshot.pickle"), as traces.
//
// A snapshot's history is a ring buffer, so it starts in the middle of a run: the
// blocks that were live before are found from the history (frees of blocks that it
// did not allocate) and from the state at the end, and are allocated first, at the
// time of the first event and in the order of their addresses. Blocks are freed when
// PyTorch's free was complete (`free_completed`), sizes are the requested ones,
// `oom` entries are counted as requests that failed when recorded, and everything
// about segments is left out: it is another allocator's doing.
#ifndef HBMALLOC_OBSERVE_PYTORCH_SNAPSHOT_H_
#define HBMALLOC_OBSERVE_PYTORCH_SNAPSHOT_H_

#include <string_view>

#include "absl/status/statusor.h"
#include "observe/trace.h"

namespace hbm::observe {

// Whether the data is a pickle, which is what these snapshots are.
bool LooksLikePyTorchSnapshot(std::string_view data);

// InvalidArgument, with `file` and the place: no plain pickle, no snapshot, or a
// history that contradicts itself. Of several devices the one with the longest
// history is read, and a note says so. Safe for any bytes.
absl::StatusOr<Trace> ParsePyTorchSnapshot(std::string_view data, std::string_view file);

}  // namespace hbm::observe

#endif  // HBMALLOC_OBSERVE_PYTORCH_SNAPSHOT_H_
