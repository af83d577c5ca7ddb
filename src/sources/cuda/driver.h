// SPDX-License-Identifier: Apache-2.0
//
// File: driver.h
//
// The one door to the CUDA driver: a table with a function pointer for every call
// that the library makes. The real table is looked up at run time, so the library
// links and runs where no driver is; a test fills a table of its own.
//
//   absl::StatusOr<const Driver*> driver = LoadDriver();
//   if (!driver.ok()) return driver.status();       // says what is missing
//   CUresult result = (*driver)->MemAlloc(&address, bytes);
//
// A new call is one line below, and one function in the tests' fake driver.
#ifndef HBMALLOC_SOURCES_CUDA_DRIVER_H_
#define HBMALLOC_SOURCES_CUDA_DRIVER_H_

#include <cuda.h>

#include <cstddef>

#include "absl/status/statusor.h"

namespace hbm::sources::cuda {

// CALL(Name, version, parameters): driver entry point "cuName" with the signature
// that it has had since CUDA `version` (12000 is 12.0).
#define HBM_CUDA_DRIVER_CALLS(CALL)                                                                \
  CALL(Init, 2000, (unsigned int flags))                                                           \
  CALL(GetErrorName, 6000, (CUresult error, const char** text))                                    \
  CALL(GetErrorString, 6000, (CUresult error, const char** text))                                  \
  CALL(DeviceGet, 2000, (CUdevice * device, int ordinal))                                          \
  CALL(DeviceGetCount, 2000, (int* count))                                                         \
  CALL(DeviceGetName, 2000, (char* name, int bytes, CUdevice device))                              \
  CALL(DeviceGetUuid, 11040, (CUuuid * uuid, CUdevice device))                                     \
  CALL(DeviceGetByPCIBusId, 4010, (CUdevice * device, const char* bus_id))                         \
  CALL(DeviceGetAttribute, 2000, (int* value, CUdevice_attribute attribute, CUdevice device))      \
  CALL(DeviceCanAccessPeer, 4000, (int* can, CUdevice device, CUdevice peer))                      \
  CALL(DevicePrimaryCtxRetain, 7000, (CUcontext * context, CUdevice device))                       \
  CALL(DevicePrimaryCtxRelease, 11000, (CUdevice device))                                          \
  CALL(CtxGetCurrent, 4000, (CUcontext * context))                                                 \
  CALL(CtxSetCurrent, 4000, (CUcontext context))                                                   \
  CALL(CtxPushCurrent, 4000, (CUcontext context))                                                  \
  CALL(CtxPopCurrent, 4000, (CUcontext * context))                                                 \
  CALL(CtxSynchronize, 2000, ())                                                                   \
  CALL(MemGetInfo, 3020, (std::size_t * free, std::size_t * total))                                \
  CALL(MemAlloc, 3020, (CUdeviceptr * address, std::size_t bytes))                                 \
  CALL(MemFree, 3020, (CUdeviceptr address))                                                       \
  CALL(MemAllocManaged, 6000, (CUdeviceptr * address, std::size_t bytes, unsigned int flags))      \
  CALL(MemHostAlloc, 2020, (void** address, std::size_t bytes, unsigned int flags))                \
  CALL(MemFreeHost, 2000, (void* address))                                                         \
  CALL(MemGetAllocationGranularity, 10020,                                                         \
       (std::size_t * bytes, const CUmemAllocationProp* properties,                                \
        CUmemAllocationGranularity_flags option))                                                  \
  CALL(MemAddressReserve, 10020,                                                                   \
       (CUdeviceptr * address, std::size_t bytes, std::size_t alignment, CUdeviceptr hint,         \
        unsigned long long flags))                                                                 \
  CALL(MemAddressFree, 10020, (CUdeviceptr address, std::size_t bytes))                            \
  CALL(MemCreate, 10020,                                                                           \
       (CUmemGenericAllocationHandle * handle, std::size_t bytes,                                  \
        const CUmemAllocationProp* properties, unsigned long long flags))                          \
  CALL(MemRelease, 10020, (CUmemGenericAllocationHandle handle))                                   \
  CALL(MemMap, 10020,                                                                              \
       (CUdeviceptr address, std::size_t bytes, std::size_t offset,                                \
        CUmemGenericAllocationHandle handle, unsigned long long flags))                            \
  CALL(MemUnmap, 10020, (CUdeviceptr address, std::size_t bytes))                                  \
  CALL(MemSetAccess, 10020,                                                                        \
       (CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access, std::size_t count)) \
  CALL(MemsetD8Async, 3020,                                                                        \
       (CUdeviceptr address, unsigned char value, std::size_t count, CUstream stream))             \
  CALL(MemcpyAsync, 4000, (CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream))  \
  CALL(MemPoolCreate, 11020, (CUmemoryPool * pool, const CUmemPoolProps* properties))              \
  CALL(MemPoolDestroy, 11020, (CUmemoryPool pool))                                                 \
  CALL(MemPoolSetAttribute, 11020,                                                                 \
       (CUmemoryPool pool, CUmemPool_attribute attribute, void* value))                            \
  CALL(MemPoolGetAttribute, 11020,                                                                 \
       (CUmemoryPool pool, CUmemPool_attribute attribute, void* value))                            \
  CALL(MemPoolSetAccess, 11020,                                                                    \
       (CUmemoryPool pool, const CUmemAccessDesc* access, std::size_t count))                      \
  CALL(MemPoolTrimTo, 11020, (CUmemoryPool pool, std::size_t keep_bytes))                          \
  CALL(MemAllocFromPoolAsync, 11020,                                                               \
       (CUdeviceptr * address, std::size_t bytes, CUmemoryPool pool, CUstream stream))             \
  CALL(MemFreeAsync, 11020, (CUdeviceptr address, CUstream stream))                                \
  CALL(EventCreate, 2000, (CUevent * event, unsigned int flags))                                   \
  CALL(EventDestroy, 4000, (CUevent event))                                                        \
  CALL(EventRecord, 2000, (CUevent event, CUstream stream))                                        \
  CALL(EventQuery, 2000, (CUevent event))                                                          \
  CALL(EventSynchronize, 2000, (CUevent event))                                                    \
  CALL(StreamWaitEvent, 3020, (CUstream stream, CUevent event, unsigned int flags))                \
  CALL(StreamCreate, 2000, (CUstream * stream, unsigned int flags))                                \
  CALL(StreamDestroy, 4000, (CUstream stream))                                                     \
  CALL(StreamQuery, 2000, (CUstream stream))                                                       \
  CALL(StreamSynchronize, 2000, (CUstream stream))                                                 \
  CALL(StreamGetCtx, 9020, (CUstream stream, CUcontext * context))                                 \
  CALL(StreamGetId, 12000, (CUstream stream, unsigned long long* id))                              \
  CALL(StreamIsCapturing, 10000, (CUstream stream, CUstreamCaptureStatus * status))                \
  CALL(StreamGetCaptureInfo, 11030,                                                                \
       (CUstream stream, CUstreamCaptureStatus * status, cuuint64_t * id, CUgraph * graph,         \
        const CUgraphNode** dependencies, std::size_t* count))                                     \
  CALL(ThreadExchangeStreamCaptureMode, 10010, (CUstreamCaptureMode * mode))

// Thread-safe, as the driver is. Trivially destructible on purpose: static
// destructors of the program may still free memory after ours would have run.
struct Driver {
#define HBM_CUDA_DECLARE(name, version, parameters) CUresult(CUDAAPI* name) parameters = nullptr;
  HBM_CUDA_DRIVER_CALLS(HBM_CUDA_DECLARE)
#undef HBM_CUDA_DECLARE
};

// The oldest driver that has every call above.
inline constexpr int kOldestDriver = 12000;

// The machine's driver, initialised. It is looked for once; the first answer
// stays. Unavailable: there is no driver library, it is too old, or it finds no
// GPU; the message says which.
absl::StatusOr<const Driver*> LoadDriver();

}  // namespace hbm::sources::cuda

#endif  // HBMALLOC_SOURCES_CUDA_DRIVER_H_
