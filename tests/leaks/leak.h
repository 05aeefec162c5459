/* What the leaking programs share. How a program says which report it expects is told in
 * tests/test_leak_corpus.py. */
#ifndef CA_TESTS_LEAKS_LEAK_H
#define CA_TESTS_LEAKS_LEAK_H

#include <cuda_runtime_api.h>
#include "tests/preload/check.h"

/* A function with a frame and a name of its own, whatever the optimiser would make of it. */
#if __has_attribute(noipa)
#define FRAME __attribute__((noipa))
#else
#define FRAME __attribute__((noinline))
#endif

/* One that has no frame of its own, at every level. */
#define INLINED __attribute__((always_inline)) inline

/* One that other modules see: the rest is hidden. */
#define SEEN __attribute__((visibility("default")))

#endif
