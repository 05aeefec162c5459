#include "registry/stack/readable.h"

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE ((uintptr_t)4096)

/* Whether 8 bytes can be read there. The kernel reads a set of signals, if it is given one, before
 * it finds that it is not to do anything with it. */
static bool is_readable(uintptr_t address)
{
    return address != 0 &&
           (syscall(SYS_rt_sigprocmask, -1, address, NULL, 8) == 0 || errno != EFAULT);
}

uintptr_t ca_readable_end(uintptr_t address, uintptr_t bytes)
{
    uintptr_t end = address;
    while (end < address + bytes && is_readable(end))
        end = (end / PAGE + 1) * PAGE;
    return end;
}
