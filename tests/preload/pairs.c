/* Pairs of allocation and free, for counting what they cost in calls to the driver.
 *
 * pairs live PAIRS [LAG]  a random one of 100 buffers of 256 B to 1 MiB is replaced
 * pairs many PAIRS [LAG]  one of 1,000; without LAG the device has nothing to do
 * pairs hot PAIRS [LAG]   one buffer after the other, sizes as above
 * pairs big PAIRS [LAG]   one buffer of 64 MiB
 * pairs rest PAIRS        the same, and the device has nothing to do
 *
 * With LAG the work submitted before a free ends LAG allocations later: this program's own progress
 * lets it go. How soon the device then notices is up to its thread, unless the last argument is
 * `exact`: every pair waits until it has (LAG up to 64). Prints the most bytes that the pool
 * held, where there is one. */
#include <stdatomic.h>
#include "gate.h"
#include "shim_stats.h"

#define LIVE 100
#define MANY 1000
#define BIG ((size_t)64 << 20)
#define MARKS 64
#define STEP 20 /* pairs for each piece of lagging work: one a pair would be all switching */

static void *slots[MANY];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t advanced = PTHREAD_COND_INITIALIZER;
static _Atomic uint64_t progress, awaited = UINT64_MAX;

/* On the stream: waits until the program has come to this allocation. */
static void lag(void *goal)
{
    pthread_mutex_lock(&lock);
    atomic_store(&awaited, (uint64_t)(uintptr_t)goal);
    while (atomic_load(&progress) < (uint64_t)(uintptr_t)goal)
        pthread_cond_wait(&advanced, &lock);
    atomic_store(&awaited, UINT64_MAX);
    pthread_mutex_unlock(&lock);
}

static void advance(uint64_t to)
{
    atomic_store(&progress, to);
    if (to >= atomic_load(&awaited)) {
        pthread_mutex_lock(&lock);
        pthread_cond_signal(&advanced);
        pthread_mutex_unlock(&lock);
    }
}

/* Waits until the device has come to where it was `pairs` pairs ago. */
static void catch_up(cudaStream_t stream, uint64_t pair, uint64_t pairs)
{
    static cudaEvent_t marks[MARKS];
    cudaEvent_t *mark = &marks[pair % MARKS];

    CHECK(pairs < MARKS);
    if (!*mark)
        OK(cudaEventCreateWithFlags(mark, cudaEventDisableTiming));
    OK(cudaEventRecord(*mark, stream));
    if (pair >= pairs)
        OK(cudaEventSynchronize(marks[(pair - pairs) % MARKS]));
}

/* 256 B to 1 MiB, log-uniform */
static size_t random_bytes(uint64_t *random)
{
    size_t power = (size_t)256 << (next_random(random) % 12);
    return power + next_random(random) % power;
}

int main(int argc, char **argv)
{
    CHECK(argc > 2);
    bool many = strcmp(argv[1], "many") == 0, rest = many || strcmp(argv[1], "rest") == 0;
    bool exact = argc > 3 && strcmp(argv[argc - 1], "exact") == 0;
    bool big = strcmp(argv[1], "rest") == 0 || strcmp(argv[1], "big") == 0;
    size_t live = many ? MANY : strcmp(argv[1], "live") == 0 ? LIVE : 1;
    uint64_t pairs = number_argument(argc, argv, 2, 1000), random = 11, reserved = 0;
    uint64_t lagging = number_argument(argc - exact, argv, 3, 0), step = lagging < STEP ? 1 : STEP;
    cachealloc_stats_t stats;
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    for (uint64_t i = 0; i < pairs; i++) {
        void **slot = &slots[next_random(&random) % live];
        if (lagging && i % step == 0)
            OK(cudaLaunchHostFunc(stream, lag, (void *)(uintptr_t)(i + lagging)));
        if (*slot)
            OK(cudaFree(*slot));
        OK(cudaMalloc(slot, big ? BIG : random_bytes(&random)));
        if (!lagging && !rest)
            OK(cudaMemsetAsync(*slot, (int)i, 64, stream));
        advance(i + 1);
        if (exact)
            catch_up(stream, i, lagging ? lagging - 1 : 0);
    }
    advance(UINT64_MAX);
    OK(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < MANY; i++)
        OK(cudaFree(slots[i]));
    if (shim_stats(&stats))
        reserved = stats.reserved_peak_bytes;
    printf("%llu\n", (unsigned long long)reserved);
    return 0;
}
