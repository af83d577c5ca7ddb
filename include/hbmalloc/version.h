// SPDX-License-Identifier: Apache-2.0
//
// File: version.h
//
// The library's version, at compile time.
#ifndef HBMALLOC_VERSION_H_
#define HBMALLOC_VERSION_H_

#define HBMALLOC_VERSION_MAJOR 0
#define HBMALLOC_VERSION_MINOR 1
#define HBMALLOC_VERSION_PATCH 0
#define HBMALLOC_VERSION "0.1.0"

#endif  // HBMALLOC_VERSION_H_
