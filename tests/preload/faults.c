/* A fixed program of 1,000 operations, run over and over in one process; in every round one driver
 * call fails, another one each time. The program takes any legal code for an answer and goes on: it
 * must find its contents, get rid of its memory, and leave nothing behind but the one buffer that
 * it keeps on device 1.
 *
 * "faults count" says how often each function of shim/hooks/hooks.def is called, in the first and
 * in later rounds. "faults each NAME [N]" fails every call of NAME in turn, from the Nth on; it
 * says "again N" when the Nth did not come to pass in this process and may do so in a fresh one.
 * "faults first NAME N E" fails the Nth call of NAME in the first round of the process with error
 * E.
 *
 * CA_FAULTS=all fails every call; otherwise the first 300 and about 100 later ones
 * (CA_FAULTS=FIRST/LATER for other figures). */
#include <inttypes.h>
#include "faults_special.h"
#include "shim_stats.h"

#define OPERATIONS 1000
#define EVERY 50 /* operations between two of the special ones */
#define SLOTS 40
#define KEPT_BYTES 12345

static buffer_t slots[SLOTS];
static char *kept;
static size_t kept_reserved, device_free;

/* --- a round ---------------------------------------------------------------------------------- */
static void check_kept(void)
{
    unsigned char ends[2] = {0, 0};
    OK(cudaSetDevice(1));
    OK(cudaMemcpy(&ends[0], kept, 1, cudaMemcpyDeviceToHost));
    OK(cudaMemcpy(&ends[1], kept + KEPT_BYTES - 1, 1, cudaMemcpyDeviceToHost));
    HOLDS(ends[0] == 0x5A && ends[1] == 0x5A);
    OK(cudaSetDevice(0));
}

static void operations(void)
{
    uint64_t random = 12345;
    for (size_t i = 0; i < STREAMS; i++)
        if (!RETRIED(cudaStreamCreate(&streams[i])))
            BROKEN("no stream");
    for (unsigned i = 1; i <= OPERATIONS; i++) {
        buffer_t *b = &slots[next_random(&random) % SLOTS];
        uint64_t choice = next_random(&random); /* drawn in any case: the same ones every round */
        if (b->pointer)
            death(b, choice);
        else
            birth(b, choice);
        if (i % EVERY == 0)
            special(i / EVERY);
    }
    for (size_t i = 0; i < SLOTS; i++)
        if (slots[i].pointer)
            death(&slots[i], i);
    for (size_t i = 0; i < STREAMS; i++)
        (void)RETRIED(cudaStreamDestroy(streams[i]));
    if (cachealloc_trim)
        cachealloc_trim();
}

/* Before the reset, so that no context's end hides a loss. */
static void check_nothing_is_left(void)
{
    cachealloc_stats_t stats;
    size_t free, total;
    for (int device = 1; device >= 0; device--) { /* a fence covers every context */
        OK(cudaSetDevice(device));
        OK(cudaDeviceSynchronize());
    }
    if (cachealloc_trim)
        cachealloc_trim();
    if (shim_stats(&stats)) {
        if (stats.live_bytes != KEPT_BYTES)
            BROKEN("%llu bytes live, not %d", (unsigned long long)stats.live_bytes, KEPT_BYTES);
        if (stats.reserved_bytes != kept_reserved)
            BROKEN("%llu bytes reserved, not %zu", (unsigned long long)stats.reserved_bytes,
                   kept_reserved);
    }
    OK(cudaMemGetInfo(&free, &total));
    if (free != device_free)
        BROKEN("%zu bytes free on the device, not %zu", free, device_free);
    ANSWERS(cudaSuccess, cudaGetLastError());
}

static void check_after_reset(void)
{
    cachealloc_stats_t stats;
    size_t free, total;
    OK(cudaMemGetInfo(&free, &total));
    if (free != device_free)
        BROKEN("%zu bytes free after the reset, not %zu", free, device_free);
    if (shim_stats(&stats)) {
        HOLDS(stats.live_bytes == KEPT_BYTES);
        HOLDS(stats.reserved_bytes == kept_reserved);
    }
    check_kept();
}

/* Returns how often the victim was called. */
static uint64_t run_round(const struct function *function, uint64_t number, int code)
{
    victim = function;
    nth = number;
    error = code;
    sticky = code == CUDA_ERROR_ILLEGAL_ADDRESS;
    calls_before = 0;
    failures = 0;
    snprintf(label, sizeof(label), "call %llu of %s fails with %d", (unsigned long long)nth,
             victim ? victim->name : "nothing", error);
    alarm(20);
    arm();
    operations();
    pause_fault();
    if (!sticky)
        check_nothing_is_left();
    arm();
    (void)RETRIED(cudaDeviceReset());
    (void)RETRIED(drv.cuDevicePrimaryCtxReset(2)); /* the old form, of a device at rest */
    pause_fault();
    alarm(20);
    check_after_reset();
    return calls_before;
}

/* --- what is asked for ------------------------------------------------------------------------ */
static const struct function *find(const char *name)
{
    for (size_t i = 0; i < FUNCTIONS; i++)
        if (strcmp(functions[i].name, name) == 0)
            return &functions[i];
    FAIL("%s is not in shim/hooks/hooks.def", name);
}

static void count(void)
{
    static uint64_t first[FUNCTIONS];
    for (size_t i = 0; i < FUNCTIONS; i++) {
        victim = &functions[i];
        ask(0);
    }
    run_round(NULL, 0, 0);
    for (size_t i = 0; i < FUNCTIONS; i++) {
        first[i] = drv.simcuda_calls(functions[i].name);
        victim = &functions[i];
        ask(0);
    }
    run_round(NULL, 0, 0);
    for (size_t i = 0; i < FUNCTIONS; i++)
        printf("%s %llu %llu\n", functions[i].name, (unsigned long long)first[i],
               (unsigned long long)drv.simcuda_calls(functions[i].name));
}

static void each(const struct function *function, uint64_t from)
{
    static const int errors[] = {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN,
                                 CUDA_ERROR_INVALID_VALUE};
    const char *wish = getenv("CA_FAULTS");
    run_round(NULL, 0, 0);
    uint64_t calls = run_round(function, 0, 0), tried = 0, missed = 0;
    uint64_t close = 300, later = 100;
    if (wish && strcmp(wish, "all") == 0)
        later = calls;
    else if (wish)
        CHECK(sscanf(wish, "%" SCNu64 "/%" SCNu64, &close, &later) == 2 && later > 0);
    uint64_t stride = 1 + calls / (later + 1);
    for (uint64_t n = from; n <= calls; n += n < close ? 1 : stride) {
        run_round(function, n, errors[n % 3]);
        tried++;
        if (happened())
            continue;
        missed++;
        if (n > from) { /* an earlier fault changed what this process does */
            printf("again %llu\n", (unsigned long long)n);
            break;
        }
    }
    run_round(NULL, 0, 0);
    printf("%llu calls, %llu tried, %llu missed\n", (unsigned long long)calls,
           (unsigned long long)tried, (unsigned long long)missed);
}

static void prepare(void)
{
    cachealloc_stats_t stats;
    size_t total;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(library);
#define X(name) CHECK((drv.name = (__typeof__(drv.name))dlsym(library, #name)));
    DRIVER_FUNCTIONS(X)
    X(simcuda_fail)
    X(simcuda_calls)
#undef X
    void *async_free = NULL;
    no_async_free =
        drv.cuGetProcAddress_v2("cuMemFreeAsync", &async_free, 13000, 0, NULL) || !async_free;
    signal(SIGALRM, on_signal);
    signal(SIGSEGV, on_signal);
    signal(SIGABRT, on_signal);
    OK(cudaSetDevice(1));
    OK(cudaMalloc((void **)&kept, KEPT_BYTES));
    OK(cudaMemset(kept, 0x5A, KEPT_BYTES));
    if (shim_stats(&stats))
        kept_reserved = stats.reserved_bytes;
    OK(cudaSetDevice(0));
    OK(cudaMemGetInfo(&device_free, &total));
}

int main(int argc, char **argv)
{
    prepare();
    if (argc < 3)
        count();
    else if (strcmp(argv[1], "each") == 0)
        each(find(argv[2]), number_argument(argc, argv, 3, 1));
    else {
        run_round(find(argv[2]), number_argument(argc, argv, 3, 1),
                  (int)number_argument(argc, argv, 4, CUDA_ERROR_UNKNOWN));
        run_round(NULL, 0, 0);
    }
    strcpy(label, "at exit");
    alarm(20);
    return 0;
}
