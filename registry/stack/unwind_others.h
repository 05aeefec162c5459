/* Unwinders that others wrote, for processors that our own is not for: libunwind.so.8's, where it
 * is installed, else glibc's backtrace. Both are called through pointers: nothing here is linked,
 * and libunwind stays RTLD_LOCAL. They trust what they read. */
#ifndef CA_REGISTRY_STACK_UNWIND_OTHERS_H
#define CA_REGISTRY_STACK_UNWIND_OTHERS_H

#include <stddef.h>

/* Once. May call malloc and take the loader's lock, so with none of our locks held. */
void ca_others_start(void);

/* At most `max` return addresses of this thread, some of ours first. While a thread is opening an
 * unwinder just now, it is waited for, 100 ms at most and once. */
size_t ca_others_frames(void **frames, size_t max);

/* "libunwind", "backtrace" or "none". */
const char *ca_others_name(void);

#endif
