#include "shim/cuda/stream_id.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "pool/fence/order.h"

#define OWN (UINT64_C(1) << 63) /* no handle has it: they are addresses of the host */

_Thread_local uint64_t ca_stream_own = CA_STREAM_NOT_ASKED;

static _Atomic uint64_t numbers;
static pthread_key_t at_thread_exit;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool have_key;

/* Its destructor may come before others that submit: they get another number. */
static void leave(void *unused)
{
    uint64_t own = ca_stream_own;
    (void)unused;
    ca_stream_own = CA_STREAM_NOT_ASKED;
    if (own != CA_STREAM_NOT_ASKED)
        ca_order_stream_ends(own);
}

static void make_key(void)
{
    have_key = pthread_key_create(&at_thread_exit, leave) == 0;
}

__attribute__((noinline, cold)) uint64_t ca_stream_make_own(void)
{
    ca_stream_own = OWN + atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed);
    pthread_once(&once, make_key);
    if (!have_key || pthread_setspecific(at_thread_exit, &numbers) != 0) /* any value but NULL */
        ca_order_end("nobody would tell of the end of a thread, whose stream ends with it");
    return ca_stream_own;
}

void ca_stream_id_ends(CUstream stream)
{
    if (stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD)
        ca_order_stream_ends(ca_stream_id(stream, 0));
}
