/* A program that is idle: what the shim caches goes back to the driver meanwhile (decay).
 *
 * decay idle     memory that was freed; prints how it ended: "given back" or "kept"
 * decay pinned   the same of pinned memory
 * decay pending  a small buffer is freed while a stream is at work, and no call follows
 * decay capture  nothing goes while a stream is captured, and the capture is not spoiled
 * decay busy     nothing goes while a stream is at work, where the driver's free waits for it
 * decay threads  prints the threads of the process that are called cachealloc, with the signals
 *                that they block
 * decay exit     ends while memory is being given back, with one leak
 *
 * The loops give up after a while: GIVE_UP_NS, for those that are to end otherwise. */
#include <dirent.h>
#include <time.h>
#include "gate.h"
#include "shim_stats.h"

#define MIB ((size_t)1 << 20)
#define BUFFERS 8
#define GIVE_UP_NS UINT64_C(10000000000)
#define LOOK_NS UINT64_C(300000000) /* many times the decay time of the tests */

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static cachealloc_stats_t stats(void)
{
    cachealloc_stats_t now;
    CHECK(shim_stats(&now));
    return now;
}

/* Whether nothing is reserved any more, before the time is up. */
static bool gone_within(uint64_t nanoseconds)
{
    struct timespec step = {.tv_nsec = 1000000};
    for (uint64_t begin = now_ns(); now_ns() - begin < nanoseconds; nanosleep(&step, NULL))
        if (stats().reserved_bytes + stats().pinned_reserved_bytes == 0)
            return true;
    return false;
}

/* Once more where this thread had no core for so long that the memory went before it looked. */
static void make_idle(void)
{
    void *buffers[BUFFERS];
    uint64_t begin = now_ns();
    do {
        CHECK(now_ns() - begin < GIVE_UP_NS);
        for (int i = 0; i < BUFFERS; i++)
            OK(cudaMalloc(&buffers[i], 16 * MIB));
        for (int i = 0; i < BUFFERS; i++)
            OK(cudaFree(buffers[i]));
    } while (stats().reserved_bytes == 0);
}

static cudaStream_t make_stream(void)
{
    cudaStream_t stream;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static void idle(uint64_t nanoseconds)
{
    make_idle();
    puts(gone_within(nanoseconds) ? "given back" : "kept");
}

static void pinned(uint64_t nanoseconds)
{
    void *host;
    uint64_t begin = now_ns();
    do { /* as make_idle */
        CHECK(now_ns() - begin < GIVE_UP_NS);
        OK(cudaHostAlloc(&host, 16 * MIB, cudaHostAllocPortable));
        OK(cudaFreeHost(host));
    } while (stats().pinned_reserved_bytes == 0);
    puts(gone_within(nanoseconds) ? "given back" : "kept");
}

static void pending(void)
{
    static gate_t gate = GATE_CLOSED;
    cudaStream_t stream = make_stream();
    void *small;
    OK(cudaMalloc(&small, 100));
    OK(cudaMemsetAsync(small, 1, 100, stream));
    gate_hold(&gate, stream);
    OK(cudaMemsetAsync(small, 2, 100, stream));
    OK(cudaFree(small));
    CHECK(!gone_within(LOOK_NS));
    gate_open(&gate);
    CHECK(gone_within(GIVE_UP_NS));
}

static void capture(void)
{
    cudaStream_t stream = make_stream();
    cudaGraph_t graph;
    void *buffer;
    make_idle();
    CHECK(gone_within(GIVE_UP_NS)); /* by now it is known how to give memory back */
    uint64_t begin = now_ns();
    for (bool gone = true; gone;) { /* before the capture had begun */
        CHECK(now_ns() - begin < GIVE_UP_NS);
        OK(cudaMalloc(&buffer, 64 * MIB));
        OK(cudaFree(buffer));
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        gone = stats().reserved_bytes == 0;
        CHECK(gone || !gone_within(LOOK_NS));
        OK(cudaStreamEndCapture(stream, &graph));
        OK(cudaGraphDestroy(graph));
    }
    CHECK(gone_within(GIVE_UP_NS));
    for (int i = 0; i < 300; i++) { /* captures that begin at any moment of a round */
        OK(cudaMalloc(&buffer, 16 * MIB));
        OK(cudaFree(buffer));
        struct timespec step = {.tv_nsec = 100000 * (i % 10)};
        nanosleep(&step, NULL);
        OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        OK(cudaStreamEndCapture(stream, &graph));
        OK(cudaGraphDestroy(graph));
    }
}

static void busy(void)
{
    static gate_t gate = GATE_CLOSED;
    cudaStream_t stream = make_stream();
    cachealloc_stats_t idle, now;
    uint64_t begin = now_ns();
    for (;;) {
        make_idle();
        OK(cudaDeviceSynchronize());
        idle = stats();
        gate_hold(&gate, stream);
        now = stats();
        if (now.upstream_frees == idle.upstream_frees && now.reserved_bytes > 0)
            break;
        gate_open(&gate); /* the memory went before the stream was at work */
        OK(cudaStreamSynchronize(stream));
        gate.open = false;
        CHECK(now_ns() - begin < GIVE_UP_NS);
    }
    uint64_t frees = idle.upstream_frees;
    CHECK(!gone_within(LOOK_NS));
    CHECK(stats().upstream_frees == frees); /* nor does a free that has begun wait */
    gate_open(&gate);
    CHECK(gone_within(GIVE_UP_NS));
}

static void print_line_of(const char *path, const char *beginning)
{
    char line[256];
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof(line), file))
        if (strncmp(line, beginning, strlen(beginning)) == 0)
            fputs(line, stdout);
    if (file)
        fclose(file);
}

static void threads(void)
{
    make_idle();
    (void)gone_within(LOOK_NS); /* long enough for a thread to have started */
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *task; (task = readdir(tasks));) {
        char path[300], name[64] = "";
        snprintf(path, sizeof(path), "/proc/self/task/%s/comm", task->d_name);
        FILE *comm = fopen(path, "r");
        if (comm && fgets(name, sizeof(name), comm) && strcmp(name, "cachealloc\n") == 0) {
            fputs(name, stdout);
            snprintf(path, sizeof(path), "/proc/self/task/%s/status", task->d_name);
            print_line_of(path, "SigBlk:");
        }
        if (comm)
            fclose(comm);
    }
    closedir(tasks);
}

static void leave(void)
{
    void *leaked;
    OK(cudaMalloc(&leaked, 5555));
    make_idle();
    struct timespec step = {.tv_nsec = 1000000};
    for (uint64_t begin = now_ns(); stats().upstream_frees == 0; nanosleep(&step, NULL))
        CHECK(now_ns() - begin < GIVE_UP_NS);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "idle") == 0)
        idle(argc > 2 ? LOOK_NS : GIVE_UP_NS);
    else if (strcmp(mode, "pinned") == 0)
        pinned(argc > 2 ? LOOK_NS : GIVE_UP_NS);
    else if (strcmp(mode, "pending") == 0)
        pending();
    else if (strcmp(mode, "capture") == 0)
        capture();
    else if (strcmp(mode, "busy") == 0)
        busy();
    else if (strcmp(mode, "threads") == 0)
        threads();
    else if (strcmp(mode, "exit") == 0)
        leave();
    else
        FAIL("decay idle|pinned|pending|capture|busy|threads|exit");
    return 0;
}
