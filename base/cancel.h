/* Thread cancellation, held off while state of ours is half changed or a lock is held around a call
 * that is a cancellation point: a thread that vanishes there would leave all others waiting. Makes
 * no system call. */
#ifndef CA_BASE_CANCEL_H
#define CA_BASE_CANCEL_H

#include <pthread.h>
#include "base/thread_state.h"

/* Returns what the matching call is to be given. They nest, and the outermost pair alone asks the C
 * library: in an order that a signal handler may interrupt. */
static inline int ca_cancel_hold(void)
{
    int before = PTHREAD_CANCEL_DISABLE;
    if (ca_thread.holds == 0)
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    ca_thread.holds++;
    return before;
}

static inline void ca_cancel_resume(int before)
{
    if (--ca_thread.holds == 0)
        pthread_setcancelstate(before, NULL);
}

#endif
