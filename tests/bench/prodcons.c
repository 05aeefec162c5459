/* One thread allocates, another frees. The queue between them is the same for every allocator: each
 * side keeps its own copy of the other's position, and looks again only when that is used up. */
#include <sched.h>
#include <stdatomic.h>
#include "cases.h"

#define QUEUE 1024

static struct {
    _Atomic uint64_t put __attribute__((aligned(128)));
    _Atomic uint64_t taken __attribute__((aligned(128)));
    void *blocks[QUEUE] __attribute__((aligned(128)));
} queue;

/* Until the other side's position is past `least`. Two threads may have one core between them. */
static uint64_t await(_Atomic uint64_t *position, uint64_t least)
{
    uint64_t seen;
    for (unsigned spins = 1; (seen = atomic_load_explicit(position, memory_order_acquire)) <= least;
         spins++) {
        if (spins % 256 == 0)
            sched_yield();
    }
    return seen;
}

static void produce(size_t bytes, uint64_t first, uint64_t last)
{
    uint64_t taken = first;
    for (uint64_t i = first; i < last; i++) {
        if (i - taken >= QUEUE)
            taken = await(&queue.taken, i - QUEUE);
        queue.blocks[i % QUEUE] = must(peer_alloc(bytes));
        atomic_store_explicit(&queue.put, i + 1, memory_order_release);
    }
}

static void consume(size_t bytes, uint64_t first, uint64_t last)
{
    uint64_t put = first;
    for (uint64_t i = first; i < last; i++) {
        if (put <= i)
            put = await(&queue.put, i);
        peer_free(queue.blocks[i % QUEUE], bytes);
        atomic_store_explicit(&queue.taken, i + 1, memory_order_release);
    }
}

/* The queue is empty between runs, and both threads have the same count of what went before. */
void prodcons_run(worker_t *worker, uint64_t pairs)
{
    uint64_t first = worker->next, last = first + pairs;
    worker->next = last;
    if (worker->index == 0)
        produce(worker->what->bytes, first, last);
    else
        consume(worker->what->bytes, first, last);
}
