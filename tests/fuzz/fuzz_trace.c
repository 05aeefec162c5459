/* Traces: any file is read or told as wrong, and what is read is whole: each free is of what lives.
 */
#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include "tests/replay/trace.h"

static void check(const trace_t *trace)
{
    bool *lives = calloc(trace->slots + 1u, sizeof *lives);
    size_t live = 0, peak = 0;
    CLAIM(lives);
    for (size_t i = 0; i < trace->count; i++) {
        const step_t *step = &trace->steps[i];
        CLAIM(step->slot < trace->slots && lives[step->slot] != step->allocates);
        lives[step->slot] = step->allocates;
        live += step->allocates ? step->bytes : -step->bytes;
        peak = live > peak ? live : peak;
    }
    CLAIM(live == trace->live && peak == trace->live_peak);
    free(lives);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int file = -1;
    static char name[64];
    trace_t trace;
    if (file < 0) {
        CLAIM((file = memfd_create("trace", MFD_CLOEXEC)) >= 0);
        snprintf(name, sizeof name, "/proc/self/fd/%d", file);
        trace_quiet = true;
    }
    CLAIM(ftruncate(file, 0) == 0 && pwrite(file, data, size, 0) == (ssize_t)size);
    if (trace_read(&trace, name) == 0)
        check(&trace);
    trace_end(&trace);
    return 0;
}
