/* soak [--seconds S | --rounds N] [--seed N] [--operations N]
 *
 * Round after round threads come, do what roles.c has, and go; then everything is freed, and the
 * shim must say that nothing lives and, once what is idle has gone back, that it holds nothing.
 * In the second half of the time its own memory, and the process's, may hardly grow any more.
 *
 * The last line is "soak: ..." with what was done and what the memory was. Any failure ends the
 * program with a message. Without a shim the program runs as well, and checks contents and codes.
 */
#include "soak.h"

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define THREADS_MOST 6
#define JUDGED_MS 60000 /* a shorter run says nothing about growth */
#define GIVING_MS 5000
#define MORE_RSS ((size_t)4 << 20)
#define MORE_OWN ((size_t)1 << 20)
#define CONTEXT_RSS ((size_t)2 << 10)  /* late calls of other threads may still look there */
#define CONTEXT_OWN ((size_t)20 << 10) /* most of it given back to the kernel */

static uint64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000u + (uint64_t)now.tv_nsec / 1000000u;
}

static size_t resident_bytes(void)
{
    unsigned long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK(file && fscanf(file, "%lu %lu", &pages, &resident) == 2);
    fclose(file);
    return resident * (size_t)sysconf(_SC_PAGESIZE);
}

static void *thread_body(void *argument)
{
    worker_t *worker = argument;
    worker->work(worker);
    return NULL;
}

/* One that may be had in this kind of round, in the background or not. */
static const role_t *pick_role(const round_t *round, bool background, uint64_t *random)
{
    for (;;) {
        const role_t *role = &roles[next_random(random) % role_count];
        if (role->background == background && role->kinds & 1u << round->kind)
            return role;
    }
}

static void run_threads(round_t *round, uint64_t *random)
{
    size_t front = 1 + next_random(random) % (THREADS_MOST - 1), back = next_random(random) % 2 + 1;
    pthread_t threads[THREADS_MOST + 2];
    worker_t workers[THREADS_MOST + 2];
    for (size_t i = 0; i < front + back; i++) {
        workers[i] = (worker_t){.round = round,
                                .random = next_random(random) | 1,
                                .work = pick_role(round, i >= front, random)->work};
        OK(pthread_create(&threads[i], NULL, thread_body, &workers[i]));
    }
    for (size_t i = 0; i < front + back; i++) {
        if (i == front)
            atomic_store(&round->over, true);
        OK(pthread_join(threads[i], NULL));
    }
}

static void for_each_device(const round_t *round, cudaError_t (*call)(void))
{
    for (int device = 0; device < round->devices; device++) {
        OK(cudaSetDevice(device));
        OK(call());
    }
    OK(cudaSetDevice(0));
}

/* A child that only leaves must change nothing here. */
static void fork_once(void)
{
    int status = 0;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        _exit(7);
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

static bool holds(const cachealloc_stats_t *stats)
{
    return stats->reserved_bytes || stats->pinned_reserved_bytes || stats->pending_bytes ||
           stats->blocks || stats->incomplete;
}

static void *end_round(void *argument)
{
    const round_t *round = argument;
    cachealloc_stats_t stats;
    static uint64_t wrong_frees;
    faults_off();
    exchange_empty(round);
    if (round->kind != ROUND_PLAIN) {
        for_each_device(round, cudaDeviceReset);
        atomic_fetch_add(&contexts, (unsigned)round->devices);
    }
    for_each_device(round, cudaDeviceSynchronize);
    (void)cudaGetLastError();
    if (!shim_stats(&stats))
        return NULL;
    if (stats.live_allocations || stats.live_bytes || stats.block_bytes)
        FAIL("%llu allocations of %llu bytes live, %llu bytes in blocks",
             (unsigned long long)stats.live_allocations, (unsigned long long)stats.live_bytes,
             (unsigned long long)stats.block_bytes);
    /* A pointer from before a reset may have been freed twice: it was another thread's by then. */
    CHECK(stats.wrong_frees == wrong_frees || round->kind == ROUND_RESETS);
    wrong_frees = stats.wrong_frees;
    /* What another thread of the shim's is giving back right now is still counted. */
    uint64_t until = now_ms() + GIVING_MS;
    do {
        cachealloc_trim();
        CHECK(shim_stats(&stats));
    } while (holds(&stats) && now_ms() < until);
    if (holds(&stats))
        FAIL("after a trim %llu bytes reserved, %llu pinned, %llu pending, %llu blocks",
             (unsigned long long)stats.reserved_bytes,
             (unsigned long long)stats.pinned_reserved_bytes,
             (unsigned long long)stats.pending_bytes, (unsigned long long)stats.blocks);
    return NULL;
}

/* In a thread of its own: it has no context current that was destroyed. */
static void in_thread(void *(*body)(void *), void *argument)
{
    pthread_t thread;
    OK(pthread_create(&thread, NULL, body, argument));
    OK(pthread_join(thread, NULL));
}

/* In bytes, the most at the end of any round. */
typedef struct memory {
    size_t resident, own; /* of the process; of the shim's own */
    uint64_t contexts;
} memory_t;

static void note_memory(memory_t *most)
{
    cachealloc_stats_t stats;
    size_t resident = resident_bytes();
    if (resident > most->resident)
        most->resident = resident;
    if (shim_stats(&stats) && stats.host_bytes > most->own)
        most->own = stats.host_bytes;
    most->contexts = atomic_load(&contexts);
}

static void tell(const memory_t *memory, uint64_t percent)
{
    printf("%3llu%%: at most %zu KiB resident, %zu KiB of the shim's own, %llu contexts so far\n",
           (unsigned long long)percent, memory->resident >> 10, memory->own >> 10,
           (unsigned long long)memory->contexts);
}

/* What is kept of each context for ever is allowed for; nothing else may grow. */
static void judge(const memory_t *early, const memory_t *late)
{
    uint64_t ended = late->contexts - early->contexts;
    if (late->resident > early->resident + MORE_RSS + ended * CONTEXT_RSS)
        FAIL("resident memory grew from %zu to %zu KiB", early->resident >> 10,
             late->resident >> 10);
    if (late->own > early->own + MORE_OWN + ended * CONTEXT_OWN)
        FAIL("the shim's own memory grew from %zu to %zu KiB", early->own >> 10, late->own >> 10);
}

int main(int argc, char **argv)
{
    uint64_t seconds = 0, rounds = 0, seed = 1, each = 1000;
    for (int i = 1; i + 1 < argc; i += 2) {
        uint64_t *option = strcmp(argv[i], "--seconds") == 0      ? &seconds
                           : strcmp(argv[i], "--rounds") == 0     ? &rounds
                           : strcmp(argv[i], "--operations") == 0 ? &each
                           : strcmp(argv[i], "--seed") == 0       ? &seed
                                                                  : NULL;
        CHECK(option);
        *option = strtoull(argv[i + 1], NULL, 0);
    }
    CHECK(argc % 2 == 1 && seed && (seconds != 0) != (rounds != 0));
    setvbuf(stdout, NULL, _IOLBF, 0);
    uint64_t random = seed, begin = now_ms(), done = 0, percent = 0;
    memory_t early = {0}, late = {0};
    int devices;
    OK(cudaGetDeviceCount(&devices));
    CHECK(devices > 1);
    while (percent < 100) {
        round_t round = {.kind = (round_kind_t)(next_random(&random) % 3),
                         .devices = devices,
                         .operations = 1 + next_random(&random) % (2 * each)};
        run_threads(&round, &random);
        in_thread(end_round, &round);
        if (next_random(&random) % 4 == 0)
            fork_once();
        done++;
        uint64_t before = percent;
        percent = seconds ? (now_ms() - begin) / (seconds * 10) : done * 100 / rounds;
        note_memory(percent < 50 ? &early : &late);
        if (percent / 10 != before / 10)
            tell(percent < 50 ? &early : &late, percent);
    }
    printf("soak: %llu rounds, %llu operations, %llu contexts in %llu s\n",
           (unsigned long long)done, (unsigned long long)atomic_load(&operations),
           (unsigned long long)late.contexts, (unsigned long long)((now_ms() - begin) / 1000));
    if (now_ms() - begin >= JUDGED_MS)
        judge(&early, &late);
    return 0;
}
