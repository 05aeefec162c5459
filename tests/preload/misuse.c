/* Wrong uses of memory, one at a time, each in functions with known names. Every wrong call must
 * answer as without the shim.
 *
 *   misuse twice KIND BYTES   frees it a second time: device, pinned or async
 *   misuse hits KIND BYTES    the same, once hits serve it
 *   misuse threads BYTES      two threads free one pointer: one of them succeeds
 *   misuse inside KIND BYTES  frees a pointer 100 bytes inside
 *   misuse kinds              frees pinned memory by cudaFree, device memory by cudaFreeHost
 *   misuse flood N            frees N pointers inside one allocation
 *   misuse loop N             frees two pointers inside, in turn, N times each
 *   misuse behind KIND BYTES  writes one byte too far, then frees
 *   misuse kept KIND BYTES    the same, and never frees
 *   misuse reset KIND BYTES    the same, and resets the device
 *   misuse looked-at          exits, and a thread gives memory back that the look at exit is at
 *   misuse before-its-end KIND BYTES
 *                             writes the last byte that it may, and frees
 *   misuse neighbours KIND BYTES
 *                             writes all of 40 allocations, each of which stays as it was written
 *   misuse look KIND BYTES    prints the first and the last byte of fresh memory, of what it wrote,
 *                             and of the memory after its free
 *   misuse busy KIND          frees while a copy out of the memory is under way; prints what came
 */
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <time.h>
#include "check.h"
#include "shim_stats.h"

static enum { DEVICE, PINNED, ASYNC } kind;
static size_t bytes;
static cudaStream_t stream; /* that async memory comes and goes on */

__attribute__((noipa)) static char *allocates(void)
{
    void *pointer;
    if (kind == DEVICE)
        OK(cudaMalloc(&pointer, bytes));
    else if (kind == PINNED)
        OK(cudaMallocHost(&pointer, bytes));
    else
        OK(cudaMallocAsync(&pointer, bytes, stream));
    return *(char *volatile *)&pointer; /* no jump to what allocates */
}

static cudaError_t free_it(void *pointer)
{
    cudaError_t code = kind == DEVICE   ? cudaFree(pointer)
                       : kind == PINNED ? cudaFreeHost(pointer)
                                        : cudaFreeAsync(pointer, stream);
    (void)cudaGetLastError();
    return *(volatile cudaError_t *)&code;
}

__attribute__((noipa)) static cudaError_t frees_first(void *pointer)
{
    cudaError_t code = free_it(pointer);
    return *(volatile cudaError_t *)&code;
}

__attribute__((noipa)) static cudaError_t frees_again(void *pointer)
{
    cudaError_t code = free_it(pointer);
    return *(volatile cudaError_t *)&code;
}

static void write_byte(char *pointer, int value)
{
    if (kind == PINNED)
        *pointer = (char)value;
    else
        OK(cudaMemset(pointer, value, 1));
}

static unsigned read_byte(const char *pointer)
{
    unsigned char byte;
    OK(cudaMemcpy(&byte, pointer, 1, cudaMemcpyDefault));
    return byte;
}

static void look_at(const char *what, const char *pointer)
{
    printf("%s %02x %02x\n", what, read_byte(pointer), read_byte(pointer + bytes - 1));
}

static void twice(void)
{
    char *pointer = allocates();
    OK(frees_first(pointer));
    ANSWERS(cudaErrorInvalidValue, frees_again(pointer));
}

static void hits(void)
{
    char *pointer = NULL;
    for (int i = 0; i < 300; i++) {
        pointer = allocates();
        OK(frees_first(pointer));
    }
    ANSWERS(cudaErrorInvalidValue, frees_again(pointer));
}

static void *in_thread(void *pointer)
{
    return (void *)(uintptr_t)frees_first(pointer);
}

static void threads(void)
{
    void *first, *second, *pointer = allocates();
    pthread_t a, b;
    CHECK(pthread_create(&a, NULL, in_thread, pointer) == 0);
    CHECK(pthread_create(&b, NULL, in_thread, pointer) == 0);
    CHECK(pthread_join(a, &first) == 0 && pthread_join(b, &second) == 0);
    CHECK((first == NULL) != (second == NULL));
    CHECK((uintptr_t)first + (uintptr_t)second == cudaErrorInvalidValue);
}

static void inside(void)
{
    char *pointer = allocates();
    ANSWERS(cudaErrorInvalidValue, frees_again(pointer + 100));
    OK(frees_first(pointer));
}

static void kinds(void)
{
    char *device, *pinned;
    bytes = 3000;
    device = allocates();
    kind = PINNED;
    pinned = allocates();
    ANSWERS(cudaErrorInvalidValue, frees_again(device));
    kind = DEVICE;
    ANSWERS(cudaErrorInvalidValue, frees_again(pinned));
    OK(frees_first(device));
    kind = PINNED;
    OK(frees_first(pinned));
}

static void flood(size_t count, size_t times)
{
    bytes = count + 1;
    char *pointer = allocates();
    for (size_t k = 0; k < times; k++)
        for (size_t i = 1; i <= count; i++)
            ANSWERS(cudaErrorInvalidValue, frees_again(pointer + i));
    OK(frees_first(pointer));
}

static void neighbours(void)
{
    enum { COUNT = 40 };
    unsigned char *seen = malloc(bytes);
    char *pointers[COUNT];
    CHECK(seen);
    for (int i = 0; i < COUNT; i++) {
        pointers[i] = allocates();
        OK(cudaMemset(pointers[i], i + 1, bytes));
    }
    for (int i = 0; i < COUNT; i++) {
        OK(cudaMemcpy(seen, pointers[i], bytes, cudaMemcpyDefault));
        for (size_t k = 0; k < bytes; k++)
            CHECK(seen[k] == i + 1);
        OK(frees_first(pointers[i]));
    }
    free(seen);
}

static void look(void)
{
    char *pointer = allocates();
    if (kind != PINNED)
        OK(cudaStreamSynchronize(0));
    look_at("fresh", pointer);
    for (int i = 0; i < 2; i++)
        write_byte(pointer + (i ? bytes - 1 : 0), 0x11);
    look_at("written", pointer);
    OK(frees_first(pointer));
    look_at("freed", pointer);
}

/* Work that takes a while. */
static void dawdle(void *nothing)
{
    const struct timespec while_ = {.tv_nsec = 20000000};
    (void)nothing;
    nanosleep(&while_, NULL);
}

static void busy(void)
{
    unsigned char *host;
    size_t wrong = 0;
    bytes = 1 << 20;
    OK(cudaMallocHost((void **)&host, bytes));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    char *memory = allocates();
    if (kind == PINNED)
        memset(memory, 0x11, bytes);
    else
        OK(cudaMemsetAsync(memory, 0x11, bytes, stream));
    OK(cudaLaunchHostFunc(stream, dawdle, NULL));
    OK(cudaMemcpyAsync(host, memory, bytes, cudaMemcpyDefault, stream));
    OK(frees_first(memory));
    OK(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < bytes; i++)
        wrong += host[i] != 0x11;
    printf("wrong %zu\n", wrong);
    OK(cudaStreamDestroy(stream));
    OK(cudaFreeHost(host));
}

/* Whether the library's helper has begun to wait for work: the look at exit is under way. */
static bool looks(void)
{
    char path[300], name[32];
    bool found = false;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *task; !found && (task = readdir(tasks));) {
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
        FILE *comm = fopen(path, "r");
        found = comm && fgets(name, sizeof(name), comm) && strcmp(name, "cachealloc\n") == 0;
        if (comm)
            fclose(comm);
    }
    closedir(tasks);
    return found;
}

static void *gives_back(void *pointer)
{
    cachealloc_stats_t stats;
    while (!looks())
        sched_yield();
    OK(cudaFreeHost(pointer));
    do
        cachealloc_trim();
    while (shim_stats(&stats) && stats.pinned_reserved_bytes != 0);
    puts("given back");
    fflush(stdout);
    return NULL;
}

/* The newer context is looked at first, and that takes as long as the simulator says. */
static void looked_at(void)
{
    pthread_t thread;
    bytes = (size_t)4 << 20;
    kind = PINNED;
    void *pinned = allocates();
    OK(cudaSetDevice(1));
    kind = DEVICE;
    allocates();
    OK(cudaSetDevice(0));
    CHECK(pthread_create(&thread, NULL, gives_back, pinned) == 0);
    CHECK(pthread_detach(thread) == 0); /* ThreadSanitizer wants it so, or waited for */
    exit(0);
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";
    const char *of = argc > 2 ? argv[2] : "";
    kind = strcmp(of, "pinned") == 0 ? PINNED : strcmp(of, "async") == 0 ? ASYNC : DEVICE;
    bytes = number_argument(argc, argv, 3, 1000);
    if (strcmp(what, "twice") == 0) {
        twice();
    } else if (strcmp(what, "hits") == 0) {
        hits();
    } else if (strcmp(what, "threads") == 0) {
        bytes = number_argument(argc, argv, 2, 1000);
        threads();
    } else if (strcmp(what, "inside") == 0) {
        inside();
    } else if (strcmp(what, "kinds") == 0) {
        kinds();
    } else if (strcmp(what, "flood") == 0) {
        flood(number_argument(argc, argv, 2, 100), 1);
    } else if (strcmp(what, "loop") == 0) {
        flood(2, number_argument(argc, argv, 2, 100));
    } else if (strcmp(what, "behind") == 0 || strcmp(what, "kept") == 0 ||
               strcmp(what, "reset") == 0) {
        char *pointer = allocates();
        write_byte(pointer + bytes, 0x11);
        if (what[0] == 'b')
            OK(frees_first(pointer));
        if (what[0] == 'r')
            OK(cudaDeviceReset());
    } else if (strcmp(what, "looked-at") == 0) {
        looked_at();
    } else if (strcmp(what, "before-its-end") == 0) {
        char *pointer = allocates();
        write_byte(pointer + bytes - 1, 0x11);
        OK(frees_first(pointer));
    } else if (strcmp(what, "neighbours") == 0) {
        neighbours();
    } else if (strcmp(what, "look") == 0) {
        look();
    } else if (strcmp(what, "busy") == 0) {
        busy();
    } else {
        FAIL("what?");
    }
    return 0;
}
