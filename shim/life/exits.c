/* The exits of a process that skip destructors: _exit and _Exit, interposed, and quick_exit, whose
 * handlers run in the reverse order of their registration: this library's is registered at load and
 * so comes last. The report is written before the process ends, once, by whichever way it ends.
 *
 * They may be called in a signal handler that interrupted malloc, the loader or this library, and
 * in the child of a vfork, which has the memory of its parent: in the first case the report needs
 * none of these and takes only locks that are free (ca_exit_output with `quick`), in the second
 * nothing is touched. A raw system call, an abort and a fatal signal cannot be seen.
 *
 * leak_exitcode: a status of 0 becomes another one where leaks were found. At exit that is decided
 * last of all, by a handler that was registered before the loader's own, and so runs after every
 * destructor: it calls exit once more, which goes on with the remaining handlers (glibc: "recursive
 * calls to exit"), the standard streams above all. Nothing here flushes a stream, which would wait
 * for a thread that reads it. */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "base/thread_state.h"
#include "config/options.h"
#include "shim/cuda/real_dlsym.h"
#include "shim/life/exit_output.h"
#include "shim/life/handler.h"
#include "shim/life/life.h"

#define CA_END __attribute__((visibility("default"), noreturn))

typedef void end_t(int);

/* The exit status for the process. */
static int status_for(int status)
{
    int leaky = (int)ca_options.leak_exitcode;
    return leaky && (status & 0xff) == 0 && ca_exit_output_leaked() ? leaky : status;
}

/* They are looked up at load: in a handler the loader may be in use. */
static end_t *_Atomic next_exit, *_Atomic next_Exit;

/* The caller may be in any state. */
static void report(bool in_handler)
{
    (void)in_handler;
    ca_exit_output(true);
}

/* Returns the status. */
static int report_for(int status)
{
    if (!ca_life_reports())
        return status;
    int cancel = ca_cancel_hold();
    ca_handler_call(report);
    ca_cancel_resume(cancel);
    return status_for(status);
}

/* For quick_exit, which passes no status to its handlers. */
static void at_quick(void)
{
    report_for(1);
}

static void at_last(int status, void *arg)
{
    (void)arg;
    if (ca_life_reports() && status_for(status) != status)
        exit(status_for(status));
}

/* Another library may have interposed it too. */
static __attribute__((noreturn)) void end_by(end_t *next, int status)
{
    if (next)
        next(status);
    for (;;)
        syscall(SYS_exit_group, status);
}

static __attribute__((noreturn)) void leave(end_t *next, int status)
{
    end_by(next, report_for(status));
}

CA_END void _exit(int status)
{
    leave(atomic_load(&next_exit), status);
}

CA_END void _Exit(int status)
{
    leave(atomic_load(&next_Exit), status);
}

__attribute__((constructor)) static void at_load(void)
{
    atomic_store(&next_exit, (end_t *)ca_dlsym_call(RTLD_NEXT, "_exit"));
    atomic_store(&next_Exit, (end_t *)ca_dlsym_call(RTLD_NEXT, "_Exit"));
    /* Where the handler cannot be registered, quick_exit writes no report. */
    (void)at_quick_exit(at_quick);
    (void)on_exit(at_last, NULL);
}
