/* See dump_signal.h.
 *
 * The handler only posts a semaphore, which needs no descriptor that the program may close and open
 * as something else; the helper does what no handler may. A handler that the program has installed
 * before its first context stays, and one that it installs later replaces ours.
 *
 * A signal that is there to end the process, and would have ended it, ends it: once the report is
 * written the helper restores what was there before us and raises the signal, so that a parent that
 * waits for the process sees what it would see without us. Until then the program's threads
 * run on. One whose call the signal interrupted may call exit: it waits for the helper, since
 * without us it would have ended. A report may take its time, or be stuck; the second signal,
 * unless it comes at the heels of the first, as where a terminal and a launcher both send it, does
 * not wait.
 *
 * A process whose other threads have all ended by pthread_exit is kept alive by the helper, as by
 * the driver's own threads. */
#include "shim/life/dump_signal.h"
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/lock.h"
#include "base/clock.h"
#include "base/log.h"
#include "config/options.h"
#include "config/signals.h"
#include "shim/life/dump.h"
#include "shim/life/exit_output.h"
#include "shim/upstream/helper.h"
#include "shim/life/life.h"

#define EXIT_WAIT_MS 60000            /* as for any other thread's report */
#define STACK_BYTES ((size_t)1 << 20) /* libdw wants some */
#define AGAIN_NS UINT64_C(1000000000) /* later than that a second signal is one of its own */

static _Atomic bool started;
static _Atomic bool installed;
static struct sigaction before; /* what was there: the default, or to ignore it */
static bool ends_process;       /* the process, by what was there */
static _Atomic uint64_t ending; /* since when it does, or 0 */
static sem_t asked;

/* The signal does what it would have done without us. */
static void raise_again(int number)
{
    sigset_t it;
    sigaction(number, &before, NULL);
    sigemptyset(&it);
    sigaddset(&it, number);
    raise(number);
    pthread_sigmask(SIG_UNBLOCK, &it, NULL);
}

/* A child that shares or copies our memory has no helper. */
static void ask(int number)
{
    int saved = errno;
    uint64_t now = ca_clock_ns(), since = 0;
    if (!ca_life_reports())
        raise_again(number);
    else if (!ends_process || atomic_compare_exchange_strong(&ending, &since, now))
        sem_post(&asked);
    else if (now - since > ca_bound(AGAIN_NS))
        raise_again(number);
    errno = saved;
}

static void answer(void)
{
    int error = ca_dump("signal", NULL);
    if (error)
        ca_warn("dump_signal: no report: %s", strerror(-error));
}

static void *run(void *arg)
{
    pthread_setname_np(pthread_self(), "cachealloc");
    for (;;) {
        if (sem_wait(&asked) != 0)
            continue;
        while (sem_trywait(&asked) == 0) { /* asked for once more before it was begun */
        }
        if (atomic_load(&ending)) {
            ca_exit_output_of_signal();
            raise_again(ca_options.dump_signal);
        }
        answer();
    }
    return arg;
}

void ca_dump_signal_end(unsigned wait_ms)
{
    if (!atomic_load(&ending))
        return;
    for (wait_ms = ca_bound_ms(wait_ms); wait_ms > 0; wait_ms--)
        ca_sleep(1000000);
    raise_again(ca_options.dump_signal);
}

static bool is_programs(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) ||
           (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN);
}

/* The kernel lets no signal end the first process of a container by default. */
static bool would_end(int number)
{
    return ca_signal_ends(number) && before.sa_handler == SIG_DFL && getpid() != 1;
}

/* False where the program has one. */
static bool install(int number)
{
    struct sigaction ours = {.sa_handler = ask, .sa_flags = SA_RESTART | SA_ONSTACK}, replaced;
    sigemptyset(&ours.sa_mask);
    if (sigaction(number, NULL, &before) != 0 || is_programs(&before))
        return false;
    ends_process = would_end(number);
    if (sigaction(number, &ours, &replaced) != 0) /* from now on others read the two above */
        return false;
    if (is_programs(&replaced)) { /* of another thread, in between */
        sigaction(number, &replaced, NULL);
        return false;
    }
    atomic_store(&installed, true);
    return true;
}

/* Before what the runtime and the driver have registered: once theirs has run, calls of other
 * threads fail. */
static void at_exit(void)
{
    if (ca_life_reports())
        ca_dump_signal_end(EXIT_WAIT_MS);
}

void ca_dump_signal_start(void)
{
    char name[16] = "";
    ca_text_t text;
    if (ca_options.dump_signal == 0 || atomic_exchange(&started, true))
        return;
    ca_text_init(&text, name, sizeof name);
    ca_signal_print(ca_options.dump_signal, &text);
    if (sem_init(&asked, 0, 0) != 0 || ca_helper_start(run, NULL, STACK_BYTES) != 0)
        ca_warn("dump_signal: no thread could be made; there are no reports by signal");
    else if (!install(ca_options.dump_signal))
        ca_warn("dump_signal: the program has a handler of its own for %s, which stays; there are "
                "no reports by signal",
                name);
    else
        (void)atexit(at_exit);
}

void ca_dump_signal_reset_after_fork(void)
{
    struct sigaction now;
    int number = ca_options.dump_signal;
    if (atomic_exchange(&installed, false) && sigaction(number, NULL, &now) == 0 &&
        now.sa_handler == ask)
        sigaction(number, &before, NULL);
    atomic_store(&started, false);
    atomic_store(&ending, 0);
}
