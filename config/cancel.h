/* Thread cancellation, held off while state of ours is half changed or a lock is held around a call
 * that is a cancellation point: a thread that vanishes there would leave all others waiting. Makes
 * no system call. */
#ifndef CA_CONFIG_CANCEL_H
#define CA_CONFIG_CANCEL_H

#include <pthread.h>

static inline int ca_cancel_hold(void)
{
    int before;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void ca_cancel_resume(int before)
{
    pthread_setcancelstate(before, NULL);
}

#endif
