#ifndef CA_TESTS_LEAKS_LATE_LIBRARY_H
#define CA_TESTS_LEAKS_LATE_LIBRARY_H

#include <stddef.h>

/* Allocates as many bytes, which are freed when the library is unloaded. Answers 1. */
int late_take(size_t bytes);

#endif
