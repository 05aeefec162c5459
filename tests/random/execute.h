/* What the parts of the executor share: the handles, by the program's numbers, and how a run ends
 * when something is wrong. */
#ifndef CA_TESTS_RANDOM_EXECUTE_H
#define CA_TESTS_RANDOM_EXECUTE_H

#include "random.h"
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

typedef struct driver_context {
    CUcontext handle;
    CUdeviceptr buffer[CTX_BUFFERS];
    size_t bytes[CTX_BUFFERS];
    unsigned char value[CTX_BUFFERS];
} driver_context_t;

/* One host thread of the program. */
typedef struct worker {
    pthread_t thread;
    int number, device; /* the current device, or NOBODY */
    const step_t *step; /* being done */
    pthread_mutex_t lock;
    pthread_cond_t changed; /* something was posted to this thread */
} worker_t;

/* Each handle is written by one thread and reaches others through a hand-over. */
typedef struct run {
    program_t *p;
    const settings_t *settings;
    void **buffers;
    cudaStream_t *streams;
    cudaEvent_t *events;
    driver_context_t *contexts;
    size_t *pitch; /* by buffer: of pitched memory */
    void **owner;  /* by buffer: the name that it is known by, NULL: its address */
    void **alias;  /* by buffer: its second name, NULL where it has none */
    cudaGraphExec_t *graphs;
    _Atomic bool *posted; /* by token */
    _Atomic bool *open;   /* by the operation that holds */
    worker_t workers[MAX_THREADS];
    pthread_barrier_t barrier;
} run_t;

extern run_t the_run;

/* Ends the process with status 1 and says which step it was; a second failure stays silent. */
void fail_at(const step_t *s, const char *format, ...)
    __attribute__((noreturn, format(printf, 2, 3)));

#define MUST(s, call)                                                                              \
    do {                                                                                           \
        int code_ = (int)(call);                                                                   \
        if (code_ != 0)                                                                            \
            fail_at(s, "%s answered %d", #call, code_);                                            \
    } while (0)

/* device.c: memory that is taken and freed, the library's interface, graphs */
void memory_step(const step_t *s);
void interface_step(const step_t *s);
void graph_step(const step_t *s);
/* calls.c: host functions on streams, and what they share with the host */
void look_at(step_t *s);
void call_on_stream(step_t *s);
/* kernels.c: before the first step on a device, and after all of its work is done */
void start_kernels(int device);
void end_kernels(const step_t *s, int device);
/* A set (from: NULL) or copy of device memory; false: the runtime has to do it. */
bool done_by_kernel(const step_t *s, void *to, const void *from);
/* contexts.c */
void context_step(step_t *s);
void reset_step(const step_t *s);
void start_devices(void);

#endif
