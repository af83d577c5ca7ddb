// SPDX-License-Identifier: Apache-2.0
//
// File: visibility.h
//
// Marks a function that C programs may call, however the library is built. What the
// shared library shows in all is listed in src/interop/exports.map. C99 and C++.
//
//   HBM_PUBLIC int hbm_function(void);
#ifndef HBMALLOC_VISIBILITY_H_
#define HBMALLOC_VISIBILITY_H_

#if defined(__cplusplus)
#define HBM_PUBLIC [[gnu::visibility("default")]]
#elif defined(__GNUC__)
#define HBM_PUBLIC __attribute__((visibility("default")))
#else
#define HBM_PUBLIC
#endif

#endif  // HBMALLOC_VISIBILITY_H_
