// SPDX-License-Identifier: Apache-2.0
//
// File: compiler.h
//
// What the hot paths tell the compiler.
//
//   if (HBM_UNLIKELY(block == nullptr)) return AllocateSlow(request);
#ifndef HBMALLOC_CORE_COMPILER_H_
#define HBMALLOC_CORE_COMPILER_H_

#if defined(__GNUC__)
#define HBM_LIKELY(condition) (__builtin_expect(static_cast<bool>(condition), 1))
#define HBM_UNLIKELY(condition) (__builtin_expect(static_cast<bool>(condition), 0))
#define HBM_ALWAYS_INLINE inline __attribute__((always_inline))
#define HBM_NOINLINE __attribute__((noinline))
#else
#define HBM_LIKELY(condition) (condition)
#define HBM_UNLIKELY(condition) (condition)
#define HBM_ALWAYS_INLINE inline
#define HBM_NOINLINE
#endif

#endif  // HBMALLOC_CORE_COMPILER_H_
