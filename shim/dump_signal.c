/* See dump_signal.h.
 *
 * The handler only posts a semaphore, which needs no descriptor that the program may close and open
 * as something else; the helper does what no handler may. A handler that the program has installed
 * before its first context stays, and one that it installs later replaces ours.
 *
 * A process whose other threads have all ended by pthread_exit is kept alive by the helper, as by
 * the driver's own threads. */
#include "shim/dump_signal.h"
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include "config/log.h"
#include "config/options.h"
#include "config/signals.h"
#include "shim/dump.h"
#include "shim/helper.h"
#include "shim/life.h"

#define STACK_BYTES ((size_t)1 << 20) /* libdw wants some */

static _Atomic bool started;
static _Atomic bool installed;
static struct sigaction before; /* what was there: the default, or to ignore it */
static sem_t asked;

/* In whatever child shares or copies our memory it does nothing. */
static void ask(int number)
{
    int saved = errno;
    (void)number;
    if (ca_life_reports())
        sem_post(&asked);
    errno = saved;
}

static void *run(void *arg)
{
    pthread_setname_np(pthread_self(), "cachealloc");
    for (;;) {
        if (sem_wait(&asked) != 0)
            continue;
        while (sem_trywait(&asked) == 0) { /* asked for once more before it was begun */
        }
        int error = ca_dump("signal", NULL);
        if (error)
            ca_warn("dump_signal: no report: %s", strerror(-error));
    }
    return arg;
}

static bool is_programs(const struct sigaction *action)
{
    return (action->sa_flags & SA_SIGINFO) ||
           (action->sa_handler != SIG_DFL && action->sa_handler != SIG_IGN);
}

/* False where the program has one. */
static bool install(int number)
{
    struct sigaction ours = {.sa_handler = ask, .sa_flags = SA_RESTART | SA_ONSTACK};
    sigemptyset(&ours.sa_mask);
    if (sigaction(number, NULL, &before) != 0 || is_programs(&before) ||
        sigaction(number, &ours, &before) != 0)
        return false;
    if (is_programs(&before)) { /* of another thread, in between */
        sigaction(number, &before, NULL);
        return false;
    }
    atomic_store(&installed, true);
    return true;
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
}

void ca_dump_signal_reset_after_fork(void)
{
    struct sigaction now;
    int number = ca_options.dump_signal;
    if (atomic_exchange(&installed, false) && sigaction(number, NULL, &now) == 0 &&
        now.sa_handler == ask)
        sigaction(number, &before, NULL);
    atomic_store(&started, false);
}
