/* SPDX-License-Identifier: Apache-2.0
 *
 * A C99 program against the shared library: linked, or with an argument, opened by
 * dlopen from that file. It prints "ok" and returns 0.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "hbmalloc/c_api.h"

typedef hbm_status (*create_function)(const char*, const char*, hbm_allocator**);
typedef hbm_status (*allocate_function)(hbm_allocator*, size_t, size_t, hbm_stream, void**);
typedef hbm_status (*deallocate_function)(hbm_allocator*, void*, hbm_stream);
typedef hbm_status (*stats_function)(hbm_allocator*, hbm_stats*);
typedef hbm_status (*destroy_function)(hbm_allocator*);
typedef const char* (*error_function)(void);

static create_function create;
static allocate_function allocate;
static deallocate_function deallocate;
static stats_function get_stats;
static destroy_function destroy;
static error_function last_error;

#ifdef HBM_TEST_LINKED
static int find_functions(const char* file) {
  (void)file;
  create = hbm_allocator_create;
  allocate = hbm_allocate;
  deallocate = hbm_deallocate;
  get_stats = hbm_get_stats;
  destroy = hbm_allocator_destroy;
  last_error = hbm_last_error;
  return 1;
}
#else
/* ISO C has no cast from an object's address to a function's. */
static int find(void* library, const char* name, void* function) {
  void* const address = dlsym(library, name);
  memcpy(function, &address, sizeof(address));
  return address != NULL;
}

static int find_functions(const char* file) {
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 0;
  }
  return find(library, "hbm_allocator_create", &create) &&
         find(library, "hbm_allocate", &allocate) && find(library, "hbm_deallocate", &deallocate) &&
         find(library, "hbm_get_stats", &get_stats) &&
         find(library, "hbm_allocator_destroy", &destroy) &&
         find(library, "hbm_last_error", &last_error);
}
#endif

int main(int argc, char** argv) {
  hbm_allocator* allocator = NULL;
  hbm_stats stats = HBM_INIT(hbm_stats);
  void* block = NULL;
  if (!find_functions(argc > 1 ? argv[1] : "libhbmalloc.so")) return 1;
  if (create("elastic:slack=0.1", "host:64MiB", &allocator) != HBM_OK ||
      allocate(allocator, 1 << 20, 4096, NULL, &block) != HBM_OK) {
    fprintf(stderr, "%s\n", last_error());
    return 1;
  }
  memset(block, 7, 1 << 20);
  if (get_stats(allocator, &stats) != HBM_OK || stats.requested_bytes != 1 << 20) return 1;
  if (deallocate(allocator, block, NULL) != HBM_OK) return 1;
  if (allocate(allocator, (size_t)1 << 40, 0, NULL, &block) != HBM_RESOURCE_EXHAUSTED) return 1;
  if (block != NULL || strstr(last_error(), "memory") == NULL) return 1;
  if (destroy(allocator) != HBM_OK || destroy(allocator) != HBM_INVALID_ARGUMENT) return 1;
  puts("ok");
  return 0;
}
