// SPDX-License-Identifier: Apache-2.0
//
// File: c_api.h
//
// The library for C and for everything that calls C. This alone is stable: what is
// declared here keeps its meaning in later versions. C99; made for dlopen too.
//
//   hbm_allocator* allocator = NULL;
//   void* block = NULL;
//   if (hbm_allocator_create("elastic:slack=0.1", "cuda:0", &allocator) != HBM_OK ||
//       hbm_allocate(allocator, 1 << 20, 0, stream, &block) != HBM_OK) {
//     fprintf(stderr, "%s\n", hbm_last_error());
//   }
//   hbm_deallocate(allocator, block, NULL);
//   hbm_allocator_destroy(allocator);
//
// Every function is thread-safe and returns a status unless it says otherwise. A null
// pointer where none is allowed, and an allocator that was destroyed, are
// HBM_INVALID_ARGUMENT. No exception leaves a function. On failure what `out` points to
// is null or unchanged. Sizes are bytes, times nanoseconds.
//
// Structs begin with struct_size, which the caller sets to sizeof the struct that it was
// compiled with; HBM_INIT does. Later versions add fields at the end alone.
#ifndef HBMALLOC_C_API_H_
#define HBMALLOC_C_API_H_

#include <stddef.h>
#include <stdint.h>

#include "hbmalloc/visibility.h"

#ifdef __cplusplus
template <typename Struct>
inline Struct hbm_init() {
  Struct zero = Struct();
  zero.struct_size = sizeof(Struct);
  return zero;
}
extern "C" {
#endif

// absl's codes.
typedef int32_t hbm_status;
enum {
  HBM_OK = 0,
  HBM_CANCELLED = 1,
  HBM_UNKNOWN = 2,
  HBM_INVALID_ARGUMENT = 3,
  HBM_DEADLINE_EXCEEDED = 4,
  HBM_NOT_FOUND = 5,
  HBM_ALREADY_EXISTS = 6,
  HBM_PERMISSION_DENIED = 7,
  HBM_RESOURCE_EXHAUSTED = 8,  // out of memory: hbm_last_oom_cause says why
  HBM_FAILED_PRECONDITION = 9,
  HBM_ABORTED = 10,
  HBM_OUT_OF_RANGE = 11,
  HBM_UNIMPLEMENTED = 12,
  HBM_INTERNAL = 13,
  HBM_UNAVAILABLE = 14,
  HBM_DATA_LOSS = 15
};

// Why a request found no memory: OomCause of out_of_memory.h.
typedef int32_t hbm_oom_cause;
enum {
  HBM_OOM_NONE = 0,
  HBM_OOM_LIMIT = 1,
  HBM_OOM_FRAGMENTATION = 2,
  HBM_OOM_PENDING = 3,
  HBM_OOM_OTHER_PROCESS = 4,
  HBM_OOM_DEVICE = 5
};

// A cudaStream_t or CUstream. Null is the legacy default stream when allocating, and
// the stream that the block was allocated on when freeing.
typedef void* hbm_stream;
#ifdef __cplusplus
#define HBM_STREAM_(number) reinterpret_cast<hbm_stream>(static_cast<uintptr_t>(number))
#else
#define HBM_STREAM_(number) ((hbm_stream)(uintptr_t)(number))
#endif
#define HBM_STREAM_LEGACY HBM_STREAM_(1)
#define HBM_STREAM_PER_THREAD HBM_STREAM_(2)
// The caller vouches that no work on the block is in flight.
#define HBM_STREAM_SYNCHRONIZED HBM_STREAM_(UINTPTR_MAX - 1)

typedef struct hbm_allocator hbm_allocator;

// What a struct starts as: all zero but its size.
//   hbm_stats stats = HBM_INIT(hbm_stats);
#ifdef __cplusplus
#define HBM_INIT(type) hbm_init<type>()
#else
#define HBM_INIT(type) \
  { .struct_size = sizeof(type) }
#endif

// ---- The library ------------------------------------------------------------------

// 10000 * major + 100 * minor + patch, and "major.minor.patch". Do not fail.
HBM_PUBLIC uint32_t hbm_version(void);
HBM_PUBLIC const char* hbm_version_string(void);
// "invalid argument", for any number. Does not fail.
HBM_PUBLIC const char* hbm_status_name(hbm_status status);
// What the calling thread's last failure was: text until its next failure, "" before
// the first. Does not fail.
HBM_PUBLIC const char* hbm_last_error(void);
// The same failure's cause; HBM_OOM_NONE if it was another one.
HBM_PUBLIC hbm_oom_cause hbm_last_oom_cause(void);

// Where warnings go: severity 0 is information, 1 a warning. A null function silences
// them. Called by several threads at once; must neither throw nor jump.
typedef void (*hbm_log_function)(int severity, const char* message, void* context);
HBM_PUBLIC hbm_status hbm_set_log_callback(hbm_log_function function, void* context);

// A device's memory now. Calls the driver.
HBM_PUBLIC hbm_status hbm_device_memory(const char* device, size_t* total, size_t* free);

// The number of a name for blocks. 0 is none, and given for a null name.
HBM_PUBLIC uint32_t hbm_register_tag(const char* name);

// ---- Allocators -------------------------------------------------------------------

// `policy` as ParsePolicy takes it; null: the environment's (HBMALLOC_POLICY, then XLA's
// variables). `device` as OpenDevice takes it; null: "cuda:0".
HBM_PUBLIC hbm_status hbm_allocator_create(const char* policy, const char* device,
                                           hbm_allocator** out);
// Gives all memory back; live blocks are warned about. Null is HBM_OK. No other call on
// the allocator may be under way.
HBM_PUBLIC hbm_status hbm_allocator_destroy(hbm_allocator* allocator);
// The effective policy as text, as long as the allocator lives; "" for no allocator.
HBM_PUBLIC const char* hbm_policy(const hbm_allocator* allocator);

// ---- Blocks -----------------------------------------------------------------------

// Alignment: a power of two up to 2 MiB; 0 is 256. Zero bytes give null and HBM_OK.
HBM_PUBLIC hbm_status hbm_allocate(hbm_allocator* allocator, size_t bytes, size_t alignment,
                                   hbm_stream stream, void** out);

enum {
  HBM_ALLOCATE_CONTIGUOUS = 1  // one physical piece that never moves (NCCL, RDMA, IPC)
};
// Values of max_wait_ns besides a number of nanoseconds.
#define HBM_WAIT_POLICY 0  // what the policy's max_wait says
#define HBM_WAIT_NEVER (-1)
#define HBM_WAIT_FOREVER INT64_MAX

typedef struct hbm_allocate_options {
  size_t struct_size;
  size_t bytes;
  size_t alignment;
  hbm_stream stream;
  int64_t max_wait_ns;
  uint32_t tag;    // of hbm_register_tag
  uint32_t flags;  // HBM_ALLOCATE_...
} hbm_allocate_options;
HBM_PUBLIC hbm_status hbm_allocate_ex(hbm_allocator* allocator, const hbm_allocate_options* options,
                                      void** out);

// Frees once the work queued so far on the stream is done. A null block is HBM_OK.
// HBM_INVALID_ARGUMENT, and nothing changes: not the base of a live block.
HBM_PUBLIC hbm_status hbm_deallocate(hbm_allocator* allocator, void* block, hbm_stream stream);

// The block is used on this stream too: kept after its free until that work is done.
HBM_PUBLIC hbm_status hbm_record_use(hbm_allocator* allocator, void* block, hbm_stream stream);

typedef struct hbm_block_info {
  size_t struct_size;
  void* address;  // the block's base
  size_t requested_bytes;
  size_t chunk_bytes;
  hbm_stream stream;  // HBM_STREAM_SYNCHRONIZED: none
  void* region_address;
  size_t region_bytes;
  uint32_t tag;
  uint32_t reserved;
} hbm_block_info;
// The live block around an address; HBM_NOT_FOUND: none.
HBM_PUBLIC hbm_status hbm_describe(hbm_allocator* allocator, const void* address,
                                   hbm_block_info* out);

// Memory for CUDA graphs: see BeginCapturePool of allocator.h. *pool is 0 for a new one.
HBM_PUBLIC hbm_status hbm_begin_capture_pool(hbm_allocator* allocator, hbm_stream stream,
                                             uint64_t* pool);
HBM_PUBLIC hbm_status hbm_end_capture_pool(hbm_allocator* allocator, uint64_t pool);
HBM_PUBLIC hbm_status hbm_release_capture_pool(hbm_allocator* allocator, uint64_t pool,
                                               hbm_stream stream);

// ---- Memory as a whole ------------------------------------------------------------

typedef struct hbm_trim_options {
  size_t struct_size;
  size_t keep_pool_bytes;
  int64_t max_wait_ns;  // for work on freed memory to end; HBM_WAIT_FOREVER is allowed
} hbm_trim_options;
typedef struct hbm_trim_result {
  size_t struct_size;
  size_t released;
  size_t pending;  // free, but work on it is in flight
  size_t pinned;   // free, but in one piece with memory in use
} hbm_trim_result;
// Gives idle memory back to the device. Null options are zeroes; a null result is
// allowed.
HBM_PUBLIC hbm_status hbm_trim(hbm_allocator* allocator, const hbm_trim_options* options,
                               hbm_trim_result* out);
HBM_PUBLIC hbm_status hbm_set_memory_limit(hbm_allocator* allocator, size_t bytes);

// ---- Figures ----------------------------------------------------------------------

// As in stats.h, in bytes, counts and nanoseconds.
typedef struct hbm_stats {
  size_t struct_size;
  int64_t num_allocs;
  int64_t bytes_in_use;
  int64_t peak_bytes_in_use;
  int64_t largest_alloc_size;
  int64_t bytes_limit;
  int64_t bytes_reserved;
  int64_t peak_bytes_reserved;
  int64_t largest_free_block_bytes;
  int64_t pool_bytes;
  int64_t peak_pool_bytes;
  int64_t peak_allocated_bytes;
  int64_t requested_bytes;
  int64_t peak_requested_bytes;
  int64_t num_frees;
  int64_t num_failures;
  int64_t num_regions;
  int64_t highest_used_bytes;
  int64_t pending_bytes;
  int64_t num_waits;
  int64_t wait_nanoseconds;
  int64_t driver_calls;
  int64_t driver_nanoseconds;
} hbm_stats;
HBM_PUBLIC hbm_status hbm_get_stats(hbm_allocator* allocator, hbm_stats* out);
HBM_PUBLIC hbm_status hbm_reset_peak_stats(hbm_allocator* allocator);

typedef struct hbm_fragmentation {
  size_t struct_size;
  int64_t free_bytes;
  int64_t largest_free_bytes;
  double external;
  double rounding_waste;
  double utilization;
  double peak_utilization;
  double height_over_load;
  double mean_pool_over_live;  // 0: the policy's means=true is not set, or nothing was live
} hbm_fragmentation;
HBM_PUBLIC hbm_status hbm_get_fragmentation(hbm_allocator* allocator, hbm_fragmentation* out);

enum {
  HBM_SNAPSHOT_JSON = 0,            // docs/snapshot.schema.json
  HBM_SNAPSHOT_PYTORCH_PICKLE = 1,  // for PyTorch's memory viewer
  HBM_SNAPSHOT_PROMETHEUS = 2       // figures alone
};
// Writes the allocator's state to a file. A format that is none of these is
// HBM_INVALID_ARGUMENT; a file that cannot be written is HBM_UNAVAILABLE.
HBM_PUBLIC hbm_status hbm_write_snapshot(hbm_allocator* allocator, const char* path,
                                         int32_t format);

// ---- Callbacks --------------------------------------------------------------------
// Must neither throw nor jump. A null function is none.

typedef struct hbm_low_memory {
  size_t struct_size;
  size_t bytes;
  size_t alignment;
  hbm_stream stream;
  uint32_t tag;
  hbm_oom_cause cause;
  int32_t attempt;
  int32_t reserved;
} hbm_low_memory;
// Called when a request finds no memory; whether to try again (not 0).
typedef int (*hbm_low_memory_function)(const hbm_low_memory* low, void* context);
HBM_PUBLIC hbm_status hbm_set_low_memory_callback(hbm_allocator* allocator,
                                                  hbm_low_memory_function function, void* context);

enum {
  HBM_EVENT_ALLOCATE = 0,
  HBM_EVENT_ALLOCATE_FAILURE = 1,
  HBM_EVENT_FREE = 2,
  HBM_EVENT_TRIM = 3,
  HBM_EVENT_SET_MEMORY_LIMIT = 4
};
typedef struct hbm_event {
  size_t struct_size;
  int32_t kind;
  hbm_oom_cause cause;
  int64_t time_ns;
  int64_t duration_ns;
  void* address;
  size_t bytes;
  size_t alignment;
  hbm_stream stream;
  uint32_t tag;
  uint32_t reserved;
  int64_t driver_calls;
  int64_t driver_ns;
  int64_t requested_bytes;  // live, just after
  int64_t bytes_in_use;
  int64_t pool_bytes;
} hbm_event;
typedef void (*hbm_event_function)(const hbm_event* event, void* context);
// Called after every event, at several times the cost of an allocation.
HBM_PUBLIC hbm_status hbm_set_event_callback(hbm_allocator* allocator, hbm_event_function function,
                                             void* context);

#ifdef __cplusplus
}
#endif

#endif  // HBMALLOC_C_API_H_
