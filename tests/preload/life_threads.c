/* Threads that come and go: life_threads CASE
 *
 *   many        500 threads at once, with little stack; every other one leaks 100 bytes
 *   cached      200 threads, one after the other: each ends with what it freed in the cache
 *   late ROUNDS a thread ends, and works on in its last destructor while another takes its place
 *   cancelled   threads are cancelled amid allocations, 8 at a time; nothing may stay locked
 *   pending     a thread that is to be cancelled makes CUDA calls: none of them is where it ends
 *   first       as `pending`, and its calls are the process's first
 *   reset       one that resets the device while another thread is in the driver (slow, please) */
#include <cuda_runtime_api.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <time.h>
#include "check.h"

#define MANY 500
#define SMALL_STACK ((size_t)256 << 10)
#define CANCELLED 8
#define ROUNDS 20
#define LATE_THREADS 8

static pthread_barrier_t all_there;
static int late_rounds;

static void work(int rounds)
{
    for (int i = 0; i < rounds; i++) {
        void *pointers[4];
        for (int k = 0; k < 4; k++)
            OK(cudaMalloc(&pointers[k], 500 << (i + k) % 8));
        for (int k = 0; k < 4; k++)
            OK(cudaFree(pointers[k]));
    }
}

static void *one_of_many(void *number)
{
    void *kept;
    pthread_barrier_wait(&all_there);
    work(5);
    if ((uintptr_t)number % 2)
        OK(cudaMalloc(&kept, 100));
    return NULL;
}

static void many(void)
{
    static pthread_t threads[MANY];
    pthread_attr_t attributes;
    OK(pthread_attr_init(&attributes));
    OK(pthread_attr_setstacksize(&attributes, SMALL_STACK));
    OK(pthread_barrier_init(&all_there, NULL, MANY));
    for (uintptr_t i = 0; i < MANY; i++)
        OK(pthread_create(&threads[i], &attributes, one_of_many, (void *)i));
    for (int i = 0; i < MANY; i++)
        OK(pthread_join(threads[i], NULL));
}

static void *keep_one(void *is_next)
{
    void *kept;
    if (is_next)
        work(5); /* what the other left is this one's */
    pthread_barrier_wait(&all_there);
    work(late_rounds);
    OK(cudaMalloc(&kept, 100));
    return NULL;
}

/* The shim's own destructors have run by then: its keys are older. */
static void at_thread_end(void *arg)
{
    pthread_t next;
    OK(pthread_create(&next, NULL, keep_one, arg));
    keep_one(NULL);
    OK(pthread_join(next, NULL));
}

static void *end_late(void *key)
{
    work(5);
    OK(pthread_setspecific(*(pthread_key_t *)key, key));
    return NULL;
}

static void late(void)
{
    pthread_key_t key;
    pthread_t thread;
    work(5);
    OK(pthread_barrier_init(&all_there, NULL, 2));
    OK(pthread_key_create(&key, at_thread_end));
    for (int i = 0; i < LATE_THREADS; i++) {
        OK(pthread_create(&thread, NULL, end_late, &key));
        OK(pthread_join(thread, NULL));
    }
}

static void *end_with_cached(void *arg)
{
    void *pointers[16];
    for (int i = 0; i < 16; i++)
        OK(cudaMalloc(&pointers[i], (size_t)1 << 20));
    for (int i = 0; i < 16; i++)
        OK(cudaFree(pointers[i]));
    return arg;
}

static void cached(void)
{
    pthread_t thread;
    for (int i = 0; i < 200; i++) {
        OK(pthread_create(&thread, NULL, end_with_cached, NULL));
        OK(pthread_join(thread, NULL));
    }
}

/* --- cancellation ------------------------------------------------------------------------------*/

typedef struct worker {
    pthread_t thread;
    _Atomic bool at_work;
    void *volatile held; /* what the thread has when it ends */
} worker_t;

static void *until_cancelled(void *arg)
{
    worker_t *self = arg;
    for (unsigned i = 0;; i++) {
        void *pointer = NULL, *pinned;
        OK(cudaMalloc(&pointer, (size_t)500 << i % 12));
        self->held = pointer;
        atomic_store(&self->at_work, true);
        pthread_testcancel();
        self->held = NULL;
        OK(cudaFree(pointer));
        OK(cudaMallocHost(&pinned, 4096 << i % 3));
        OK(cudaFreeHost(pinned));
    }
    return NULL;
}

static void cancelled(void)
{
    static worker_t workers[CANCELLED];
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < CANCELLED; i++) {
            atomic_store(&workers[i].at_work, false);
            OK(pthread_create(&workers[i].thread, NULL, until_cancelled, &workers[i]));
        }
        for (int i = 0; i < CANCELLED; i++) {
            void *result;
            while (!atomic_load(&workers[i].at_work))
                sched_yield();
            OK(pthread_cancel(workers[i].thread));
            OK(pthread_join(workers[i].thread, &result));
            CHECK(result == PTHREAD_CANCELED);
            if (workers[i].held)
                OK(cudaFree(workers[i].held));
        }
        work(20); /* all that can be taken, while nobody else is there */
    }
    OK(cudaDeviceReset());
    work(20);
}

/* Told by the thread's creator: who prints may be cancelled. */
static const char *volatile reached = "nothing";

#define STEP(call)                                                                                 \
    do {                                                                                           \
        reached = #call;                                                                           \
        OK(call);                                                                                  \
    } while (0)

static void *while_pending(void *arg)
{
    void *pointers[64], *pinned, *managed, *ordered;
    cudaStream_t stream;
    size_t free_bytes, total_bytes;
    OK(pthread_cancel(pthread_self()));
    for (int i = 0; i < 64; i++)
        STEP(cudaMalloc(&pointers[i], (size_t)1 << i % 24));
    for (int i = 0; i < 64; i++)
        STEP(cudaFree(pointers[i]));
    for (int i = 0; i < 64; i++)
        STEP(cudaMalloc(&pointers[i], (size_t)1 << i % 24));
    STEP(cudaMallocHost(&pinned, 100000));
    STEP(cudaFreeHost(pinned));
    STEP(cudaMallocManaged(&managed, 1000, cudaMemAttachGlobal));
    STEP(cudaFree(managed));
    STEP(cudaMemGetInfo(&free_bytes, &total_bytes));
    STEP(cudaStreamCreate(&stream));
    STEP(cudaMallocAsync(&ordered, 1000, stream));
    STEP(cudaFreeAsync(ordered, stream));
    for (int i = 0; i < 63; i++)
        STEP(cudaFree(pointers[i]));
    reached = "all of it";
    pthread_testcancel();
    return arg;
}

static void pending(void)
{
    pthread_t thread;
    void *result;
    OK(pthread_create(&thread, NULL, while_pending, NULL));
    OK(pthread_join(thread, &result));
    CHECK(result == PTHREAD_CANCELED);
    printf("cancelled at %s\n", reached);
    work(20);
}

static void pending_later(void)
{
    work(1);
    pending();
}

static _Atomic bool allocating;

static void *allocate_slowly(void *arg)
{
    void *pointer;
    atomic_store(&allocating, true);
    cudaMalloc(&pointer, (size_t)512 << 20); /* the reset may come first */
    return arg;
}

static void *reset_while_pending(void *arg)
{
    while (!atomic_load(&allocating))
        sched_yield();
    nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    OK(pthread_cancel(pthread_self()));
    STEP(cudaDeviceReset());
    reached = "all of it";
    pthread_testcancel();
    return arg;
}

static void allocate_once(void)
{
    void *pointer;
    OK(cudaMalloc(&pointer, 1000));
    OK(cudaFree(pointer));
}

static void reset(void)
{
    pthread_t allocator, resetter;
    OK(cudaFree(NULL));
    OK(pthread_create(&allocator, NULL, allocate_slowly, NULL));
    OK(pthread_create(&resetter, NULL, reset_while_pending, NULL));
    OK(pthread_join(resetter, NULL));
    OK(pthread_join(allocator, NULL));
    printf("cancelled at %s\n", reached);
    OK(cudaDeviceReset());
    allocate_once();
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"many", many},           {"cached", cached},         {"late", late},
                 {"cancelled", cancelled}, {"pending", pending_later}, {"first", pending},
                 {"reset", reset}};
    late_rounds = (int)number_argument(argc, argv, 2, 5000);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        if (argc > 1 && strcmp(argv[1], cases[i].name) == 0) {
            cases[i].run();
            printf("done\n");
            return 4;
        }
    FAIL("life_threads many|cached|late [ROUNDS]|cancelled|pending|first|reset");
}
