/* fit PROGRAM SEED [MIB]: takes and frees device memory, at most MIB (1024) of it at a time, for
 * the question how small a device it fits: see fits.py. Prints the peak of what it asked for; ends
 * with 3 where it was refused memory. A seed makes the same calls each time; those of robson's
 * programs depend on the addresses that come back too.
 *
 * layers        a loader: a working buffer comes and goes, a smaller one stays; of the same sizes
 * shards        the same, each time of other sizes
 * loader        steps take a working buffer and a small one that stays; then the working buffers
 *               go, and all that they had is asked for in one piece
 * growing       buffers that are copied into larger ones, small results between
 * training      weights stay, activations live from the forward to the backward pass; the batch
 *               grows
 * phases        blocks come and go in disorder, around another size in each phase; some survive
 * churn         sizes of up to a twelfth of all, in disorder
 * creep         equal buffers are replaced one by one, in each round by slightly larger ones
 * queue         first in, first out, sizes of all kinds
 * tails         small blocks stay behind large ones, which go and come back larger
 * robson        against whatever moves nothing: of what is live, what spoils the most places for
 *               blocks of twice the size stays, and such blocks are asked for (J. M. Robson, "An
 *               estimate of the store size necessary for dynamic storage allocation", JACM 18,
 *               1971; "Worst case fragmentation of first fit and best fit storage allocation
 *               strategies", The Computer Journal 20, 1977). From about 2 MiB on: the driver maps
 *               pages from anywhere, so that it needs what is live
 * robson_small  the same from 16 KiB on: within its pages the driver moves nothing either
 * slivers       against best fit: each block is replaced by a slightly smaller one, and the rests
 *               are asked for at last
 * threads       four threads in turns, each with sizes of its own; each frees others' too */
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdbool.h>
#include "tests/preload/check.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define PAGE (2 * MIB) /* the driver's */
#define REFUSED 3
#define LAYERS_MOST 32
#define BUFFERS 16
#define THREADS 4

typedef struct held {
    void *at;
    size_t bytes;
} held_t;

typedef struct list {
    held_t *held;
    size_t count, room;
} list_t;

static uint64_t random_state;
static size_t whole; /* what may be live */
static size_t live, live_peak;

/* --- sizes ------------------------------------------------------------------------------------ */

static size_t between(size_t least, size_t most)
{
    return least + next_random(&random_state) % (most - least + 1);
}

static bool one_in(size_t count)
{
    return next_random(&random_state) % count == 0;
}

/* Each order of magnitude as often as the others. */
static size_t spread(size_t least, size_t most)
{
    size_t doublings = 0;
    while (least << (doublings + 1) <= most)
        doublings++;
    size_t from = least << between(0, doublings);
    return between(from, 2 * from < most ? 2 * from : most);
}

/* --- memory ----------------------------------------------------------------------------------- */

static _Noreturn void finish(int status)
{
    printf("peak live %zu bytes\n", live_peak);
    fflush(stdout);
    _Exit(status); /* what stays is no leak */
}

static held_t take(size_t bytes)
{
    held_t held = {.bytes = bytes};
    cudaError_t code = cudaMalloc(&held.at, bytes);
    if (code == cudaErrorMemoryAllocation)
        finish(REFUSED);
    OK(code);
    live += bytes;
    live_peak = live > live_peak ? live : live_peak;
    return held;
}

static void drop(held_t held)
{
    OK(cudaFree(held.at));
    live -= held.bytes;
}

static bool fits(size_t bytes)
{
    return live + bytes <= whole;
}

static void add(list_t *list, size_t bytes)
{
    if (list->count == list->room) {
        list->room = list->room ? 2 * list->room : 64;
        list->held = realloc(list->held, list->room * sizeof *list->held);
        CHECK(list->held);
    }
    list->held[list->count++] = take(bytes);
}

/* The last one comes into its place. */
static void drop_at(list_t *list, size_t which)
{
    drop(list->held[which]);
    list->held[which] = list->held[--list->count];
}

static void drop_any(list_t *list)
{
    drop_at(list, between(0, list->count - 1));
}

static void drop_all(list_t *list)
{
    while (list->count > 0)
        drop_at(list, list->count - 1);
}

static void replace_at(list_t *list, size_t which, size_t bytes)
{
    drop(list->held[which]);
    list->held[which] = take(bytes);
}

/* All but `survivors` of 1,000, which stay for good. */
static void drop_most(list_t *list, size_t survivors)
{
    for (size_t i = list->count; i-- > 0;)
        if (between(1, 1000) > survivors)
            drop_at(list, i);
    list->count = 0;
}

/* --- programs --------------------------------------------------------------------------------- */

static void load(bool same)
{
    size_t most = whole / between(8, 64), working = 0, kept = 0;
    for (;;) {
        if (!same || !working) {
            kept = between(most / 8, most);
            working = kept + between(1, 2 * kept);
        }
        if (!fits(working))
            return;
        drop(take(working));
        take(kept);
    }
}

static void layers(void)
{
    load(true);
}

static void shards(void)
{
    load(false);
}

static void loader(void)
{
    list_t working = {0};
    size_t most_working = spread(MIB, 16 * MIB), most_kept = spread(64 * KIB, MIB);
    while (fits(most_working + most_kept)) {
        add(&working, between(most_working / 2, most_working));
        take(between(most_kept / 2, most_kept));
    }
    drop_all(&working);
    take(whole - live);
}

static void growing(void)
{
    held_t buffers[BUFFERS];
    size_t result = spread(16 * KIB, 2 * MIB);
    for (unsigned i = 0; i < BUFFERS; i++)
        buffers[i] = take(between(MIB, 4 * MIB));
    for (;;) {
        held_t *old = &buffers[between(0, BUFFERS - 1)];
        size_t bytes = old->bytes + old->bytes / between(2, 8);
        if (!fits(bytes))
            return;
        held_t larger = take(bytes);
        drop(*old);
        *old = larger;
        if (one_in(4) && fits(result))
            take(between(result / 2, result));
    }
}

typedef struct network {
    size_t layers, weights, item; /* the last two in bytes, of all layers */
    size_t weight[LAYERS_MOST], activation[LAYERS_MOST], scratch[LAYERS_MOST];
} network_t;

static void draw_network(network_t *net)
{
    net->layers = between(8, LAYERS_MOST);
    size_t share = whole / 32 / net->layers;
    for (size_t i = 0; i < net->layers; i++) {
        net->weight[i] = between(share / 2, 2 * share);
        net->activation[i] = between(share / 16, share / 4); /* of one item of a batch */
        net->scratch[i] = between(share / 4, 2 * share);
        net->weights += net->weight[i];
        net->item += net->activation[i];
    }
}

static void train(const network_t *net, size_t batch)
{
    list_t kept = {0}, gradients = {0};
    for (size_t i = 0; i < net->layers; i++) {
        add(&kept, net->activation[i] * batch);
        drop(take(net->scratch[i]));
    }
    for (size_t i = net->layers; i-- > 0;) {
        held_t flow = take(net->activation[i] * batch / 2);
        add(&gradients, net->weight[i]);
        drop(take(net->scratch[i]));
        drop_at(&kept, kept.count - 1);
        drop(flow);
    }
    drop_all(&gradients);
    free(kept.held);
    free(gradients.held);
}

static void training(void)
{
    network_t net = {0};
    draw_network(&net);
    for (size_t i = 0; i < net.layers; i++)
        take(net.weight[i]);
    /* Gradients and moments, and the activation that flows back. */
    size_t most = (whole - 5 * net.weights) / (net.item + net.item / 4);
    for (size_t batch = most / 3 + 1, step = 0; batch <= most; step++) {
        train(&net, batch);
        for (size_t i = 0; step == 0 && i < 2 * net.layers; i++)
            take(net.weight[i / 2]);
        batch += between(0, most / 16 + 1);
    }
}

static void disorder(list_t *list, size_t least, size_t most, size_t operations)
{
    for (; operations > 0; operations--) {
        size_t bytes = spread(least, most);
        if (fits(bytes) && !(list->count > 0 && one_in(4)))
            add(list, bytes);
        else if (list->count > 0)
            drop_any(list);
    }
}

static void phases(void)
{
    list_t list = {0};
    for (unsigned phase = 0; phase < 8; phase++) {
        size_t middle = spread(64 * KIB, whole / 64);
        size_t blocks = whole / middle;
        disorder(&list, middle / 4, middle, 8 * (blocks < 1000 ? blocks : 1000));
        drop_most(&list, 20);
    }
    take(whole - live);
}

static void churn(void)
{
    list_t list = {0};
    for (unsigned i = 0; i < 1500; i++) {
        size_t bytes = between(1, whole / 12);
        if (fits(bytes) && !(list.count > 0 && one_in(4)))
            add(&list, bytes);
        else if (list.count > 0)
            drop_any(&list);
    }
}

static void creep(void)
{
    list_t list = {0};
    size_t count = between(6, 60), bytes = whole / (count + 1) / 2;
    size_t more = bytes / between(16, 200);
    for (size_t i = 0; i < count; i++)
        add(&list, bytes);
    for (size_t at = 0; fits(bytes + more); at = (at + 1) % count) {
        if (at == 0)
            bytes += more;
        replace_at(&list, at, bytes);
    }
}

static void queue(void)
{
    list_t list = {0};
    size_t first = 0, most = spread(4 * MIB, whole / 16);
    for (unsigned i = 0; i < 4000; i++) {
        size_t bytes = spread(64 * KIB, most);
        while (!fits(bytes))
            drop(list.held[first++]);
        add(&list, bytes);
    }
}

static void tails(void)
{
    list_t large = {0};
    size_t bytes = between(PAGE, whole / 64), small = spread(KIB, 256 * KIB);
    for (unsigned round = 0; round < 6; round++) {
        while (fits(bytes + small)) {
            add(&large, bytes - between(0, MIB));
            take(between(small / 2, small));
        }
        drop_most(&large, 0);
        bytes += bytes / between(3, 10);
    }
}

static uintptr_t robsons_origin;

/* Whether it lies over an address that is `offset` beyond a multiple of `period`, counted from some
 * other one that is the same block's in each run. */
static bool covers(held_t held, size_t offset, size_t period)
{
    size_t at = (uintptr_t)held.at - robsons_origin;
    return (offset + period - at % period) % period < held.bytes;
}

static size_t spoilt(const list_t *list, size_t offset, size_t period)
{
    size_t bytes = 0;
    for (size_t i = 0; i < list->count; i++)
        if (covers(list->held[i], offset, period))
            bytes += period - list->held[i].bytes;
    return bytes;
}

static void robsons(size_t bytes, size_t most)
{
    list_t list = {0};
    size_t offset = 0;
    add(&list, bytes);
    /* Far below, so that no distance is negative. */
    robsons_origin = (uintptr_t)list.held[0].at - (bytes << 24);
    while (fits(bytes))
        add(&list, bytes);
    while ((bytes *= 2) <= most) {
        size_t other = offset + bytes / 2;
        if (spoilt(&list, other, bytes) > spoilt(&list, offset, bytes))
            offset = other;
        for (size_t i = list.count; i-- > 0;)
            if (!covers(list.held[i], offset, bytes))
                drop_at(&list, i);
        while (fits(bytes))
            add(&list, bytes);
    }
}

static void robson(void)
{
    /* A program whose requests are whole pages gets each in a segment of its own. */
    robsons(PAGE - 4 * KIB * between(1, 16), whole / between(8, 32));
}

static void robson_small(void)
{
    robsons(16 * KIB << between(0, 2), whole / between(8, 32));
}

static void slivers(void)
{
    list_t list = {0};
    size_t bytes = spread(4 * MIB, whole / 16), less = bytes / between(16, 64), rests = 0;
    while (fits(bytes))
        add(&list, bytes);
    for (unsigned round = 0; round < 8; round++) {
        bytes -= less;
        for (size_t i = 0; i < list.count; i++)
            replace_at(&list, i, bytes);
        rests += less;
    }
    while (fits(rests))
        add(&list, rests);
}

/* --- threads ---------------------------------------------------------------------------------- */

typedef struct worker {
    pthread_t thread;
    sem_t begin, end;
    list_t own;
    list_t *list; /* of whom it takes or drops */
    size_t bytes; /* 0: drops one */
} worker_t;

static void *work(void *argument)
{
    worker_t *worker = argument;
    for (;;) {
        OK(sem_wait(&worker->begin));
        if (worker->bytes)
            add(worker->list, worker->bytes);
        else
            drop_any(worker->list);
        OK(sem_post(&worker->end));
    }
    return NULL;
}

static void threads(void)
{
    static worker_t workers[THREADS];
    for (unsigned i = 0; i < THREADS; i++) {
        OK(sem_init(&workers[i].begin, 0, 0));
        OK(sem_init(&workers[i].end, 0, 0));
        OK(pthread_create(&workers[i].thread, NULL, work, &workers[i]));
    }
    for (unsigned i = 0; i < 6000; i++) {
        size_t which = between(0, THREADS - 1), most = whole / 32 >> 3 * which;
        worker_t *worker = &workers[which];
        worker->list = &worker->own;
        worker->bytes = between(most / 8, most);
        if (!fits(worker->bytes) || one_in(4)) {
            worker->bytes = 0;
            for (which = between(0, THREADS - 1); !workers[which].own.count && live > 0;)
                which = (which + 1) % THREADS;
            worker->list = &workers[which].own;
        }
        if (!worker->bytes && !worker->list->count)
            continue;
        OK(sem_post(&worker->begin));
        OK(sem_wait(&worker->end));
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} programs[] = {{"layers", layers},   {"shards", shards},     {"loader", loader},
                {"growing", growing}, {"training", training}, {"phases", phases},
                {"churn", churn},     {"creep", creep},       {"queue", queue},
                {"tails", tails},     {"robson", robson},     {"robson_small", robson_small},
                {"slivers", slivers}, {"threads", threads}};

int main(int argc, char **argv)
{
    uint64_t seed = number_argument(argc, argv, 2, 1);
    whole = number_argument(argc, argv, 3, 1024) * MIB;
    CHECK(argc > 1 && whole >= 64 * MIB);
    random_state = (seed + 1) * UINT64_C(0x9E3779B97F4A7C15);
    for (unsigned i = 0; i < 8; i++)
        (void)next_random(&random_state);
    for (size_t i = 0; i < sizeof programs / sizeof *programs; i++)
        if (strcmp(argv[1], programs[i].name) == 0) {
            programs[i].run();
            finish(0);
        }
    FAIL("%s is no program", argv[1]);
}
