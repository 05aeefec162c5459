/* Out of memory: oom WAY, on a device of 64 MiB. 40 MiB are held first by hold(), in two blocks.
 *
 *   device, pinned, async, pitched, managed, array    50 MiB of that are asked for by ask()
 *   twice                                             so two times
 *   others                                            by a child that holds as much itself
 *   graphs                                            what is held, graphs hold
 *   small                                             in a thread with a small stack
 *   huge                                              more than there is in all
 *   pieces                                            every second block of 1 MiB is freed, then 20
 *                                                     MiB
 *   loader KEPT WORKING TENTHS                        KiB: see load(); then 6/10 of the device
 *   frees, async-frees, pinned-frees                  a function of its own frees what is held: 1
 *   keeps, refuses                                    frees nothing: 1, frees it all: 0
 *   recursive                                         asks for more itself
 *   removed                                           is there no more
 *
 * Prints what the last call answered, how often the function was called, and with what. */
#include <cuda_runtime_api.h>
#include <limits.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
#include "shim_stats.h"

#define NOINLINE __attribute__((noinline))
#define MIB ((size_t)1 << 20)
#define PIECES 56
#define LOADED 1000

static void *held[PIECES];
static int called, last_pinned;
static size_t last_bytes;
static const char *way = "";

static NOINLINE void hold(void)
{
    for (int i = 0; i < 2; i++)
        OK(cudaMalloc(&held[i], 20 * MIB));
}

/* The graphs are launched and never destroyed. */
static void hold_in_graphs(void)
{
    for (int i = 0; i < 2; i++) {
        cudaStream_t stream;
        cudaGraph_t graph;
        cudaGraphExec_t made;
        OK(cudaStreamCreate(&stream));
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
        OK(cudaMallocAsync(&held[i], 20 * MIB, stream));
        OK(cudaStreamEndCapture(stream, &graph));
        OK(cudaGraphInstantiate(&made, graph, 0));
        OK(cudaGraphLaunch(made, stream));
        OK(cudaStreamSynchronize(stream));
    }
}

static void hold_pieces(void)
{
    for (int i = 0; i < PIECES; i++)
        OK(cudaMalloc(&held[i], MIB));
    for (int i = 0; i < PIECES; i += 2)
        OK(cudaFree(held[i]));
}

static size_t all;

/* A working buffer and one that stays, by turns, until so much of the device is taken; the working
 * ones go then. */
static void load(size_t kept, size_t working, size_t tenths)
{
    static void *stays[LOADED], *goes[LOADED];
    size_t available, count = 0;
    OK(cudaMemGetInfo(&available, &all));
    for (; count < LOADED && (count + 1) * (kept + working) < all / 10 * tenths; count++) {
        OK(cudaMalloc(&goes[count], working));
        OK(cudaMalloc(&stays[count], kept));
    }
    for (size_t i = 0; i < count; i++)
        OK(cudaFree(goes[i]));
}

static NOINLINE int ask_device(size_t bytes)
{
    void *pointer = NULL;
    return (int)cudaMalloc(&pointer, bytes);
}

static NOINLINE int ask(void)
{
    void *pointer = NULL;
    size_t pitch;
    cudaArray_t array = NULL;
    struct cudaChannelFormatDesc format = {32, 0, 0, 0, cudaChannelFormatKindFloat};
    if (strncmp(way, "pinned", 6) == 0)
        return (int)cudaMallocHost(&pointer, 50 * MIB);
    if (strncmp(way, "async", 5) == 0)
        return (int)cudaMallocAsync(&pointer, 50 * MIB, NULL);
    if (strcmp(way, "pitched") == 0)
        return (int)cudaMallocPitch(&pointer, &pitch, 1 << 10, 50 << 10);
    if (strcmp(way, "managed") == 0)
        return (int)cudaMallocManaged(&pointer, 50 * MIB, cudaMemAttachGlobal);
    if (strcmp(way, "array") == 0)
        return (int)cudaMallocArray(&array, &format, 1 << 10, 50 << 8, 0);
    return ask_device(strcmp(way, "loader") == 0   ? all / 10 * 6
                      : strcmp(way, "pieces") == 0 ? 20 * MIB
                      : strcmp(way, "huge") == 0   ? 5000 * MIB
                                                   : 50 * MIB);
}

/* --- a function of its own -------------------------------------------------------------------- */

static int help(size_t bytes, int device, int pinned, void *arg)
{
    CHECK(device == 0 && arg == &called);
    called++;
    last_bytes = bytes;
    last_pinned = pinned;
    if (strcmp(way, "recursive") == 0)
        CHECK(ask_device(60 * MIB) == cudaErrorMemoryAllocation);
    else if (strcmp(way, "keeps") != 0)
        for (int i = 0; i < 2; i++)
            OK(strncmp(way, "pinned", 6) == 0 ? cudaFreeHost(held[i]) : cudaFree(held[i]));
    return strcmp(way, "refuses") != 0;
}

static int has_function(void)
{
    return strstr(way, "frees") || strcmp(way, "keeps") == 0 || strcmp(way, "refuses") == 0 ||
           strcmp(way, "recursive") == 0 || strcmp(way, "removed") == 0;
}

static void *ask_there(void *answer)
{
    *(int *)answer = ask();
    return NULL;
}

static int ask_on_small_stack(void)
{
    int answer = -1;
    pthread_t thread;
    pthread_attr_t attributes;
    OK(pthread_attr_init(&attributes));
    OK(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN));
    OK(pthread_create(&thread, &attributes, ask_there, &answer));
    OK(pthread_join(thread, NULL));
    return answer;
}

/* A process of its own on the same device. */
static int run_child(const char *program)
{
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        execl(program, program, "device", NULL);
        _exit(127);
    }
    CHECK(waitpid(child, &status, 0) == child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(int argc, char **argv)
{
    way = argc > 1 ? argv[1] : "device";
    if (strcmp(way, "pieces") == 0) {
        hold_pieces();
    } else if (strcmp(way, "loader") == 0) {
        load(number_argument(argc, argv, 2, 512) << 10, number_argument(argc, argv, 3, 9216) << 10,
             number_argument(argc, argv, 4, 9));
    } else if (strcmp(way, "graphs") == 0) {
        hold_in_graphs();
    } else if (strcmp(way, "pinned-frees") == 0) {
        for (int i = 0; i < 2; i++)
            OK(cudaMallocHost(&held[i], 20 * MIB));
    } else {
        hold();
    }
    if (strcmp(way, "others") == 0)
        return run_child(argv[0]);
    if (has_function())
        OK(cachealloc_on_oom(help, &called));
    if (strcmp(way, "removed") == 0)
        OK(cachealloc_on_oom(NULL, NULL));
    int answer = strcmp(way, "small") == 0 ? ask_on_small_stack() : ask();
    if (strcmp(way, "twice") == 0)
        answer = ask();
    printf("answer %d, called %d", answer, called);
    if (called)
        printf(" with %zu, %d", last_bytes, last_pinned);
    puts("");
    fflush(stdout);
    return 0;
}
