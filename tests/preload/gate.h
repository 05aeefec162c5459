/* Holds a stream until the host opens the gate, with a host function: work behind it is submitted
 * but cannot have run. */
#ifndef CA_TESTS_PRELOAD_GATE_H
#define CA_TESTS_PRELOAD_GATE_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include "check.h"

typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
} gate_t;

#define GATE_CLOSED                                                                                \
    {                                                                                              \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false                                 \
    }

static void gate_pass(void *argument)
{
    gate_t *gate = argument;
    pthread_mutex_lock(&gate->lock);
    while (!gate->open)
        pthread_cond_wait(&gate->changed, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
}

static inline void gate_hold(gate_t *gate, cudaStream_t stream)
{
    OK(cudaLaunchHostFunc(stream, gate_pass, gate));
}

static inline void gate_open(gate_t *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->open = true;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

#endif
