#include "shim/upstream/helper.h"
#include <pthread.h>
#include <signal.h>
#include "base/lock.h"

static int create(void *(*run)(void *), void *arg, size_t stack_bytes)
{
    pthread_t thread;
    pthread_attr_t attributes;
    int code = pthread_attr_init(&attributes);
    if (code != 0)
        return code;
    if (stack_bytes)
        code = pthread_attr_setstacksize(&attributes, stack_bytes);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    if (code == 0)
        code = pthread_create(&thread, &attributes, run, arg);
    pthread_attr_destroy(&attributes);
    return code;
}

int ca_helper_start(void *(*run)(void *), void *arg, size_t stack_bytes)
{
    sigset_t every, before;
    ca_lock_assert_none("thread");
    sigfillset(&every);
    int code = pthread_sigmask(SIG_SETMASK, &every, &before);
    if (code != 0)
        return code;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    stack_bytes = 0;
#endif
    code = create(run, arg, stack_bytes);
    if (code != 0 && stack_bytes)
        code = create(run, arg, 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}
