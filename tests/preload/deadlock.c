/* Work that never ends of itself is launched after buffers were freed, and memory is allocated
 * before this program lets that work end: so no allocation may wait for it. The plain program
 * finishes, because its frees had nothing to wait for and its allocations never wait.
 *
 * deadlock CASE BYTES COUNT [room]: COUNT buffers of BYTES each (0: mixed sizes) are freed and
 * allocated again; the rest of the device is occupied meanwhile, unless there is to be `room`.
 *
 *   own      the same thread does everything
 *   used     as own, and earlier work on two streams had used the buffers
 *   threads  another thread allocates, and must have done so before the work is let go
 *   idle     as own; the device was idle in between, so that the freed memory is known to be free
 *   regroup  half as many buffers of twice the size are allocated
 *   grow     as many buffers of twice the size, after the device was idle: more than ever before
 *   again    as own, ten times, with new work each time
 *   devices  as own, ten times, while work on the last device never ends
 *   peers    the same, and that device has allocated
 *   access   the same, and the two are let in as peers, so that fences cover it */
#include "gate.h"

#define BUFFERS_MOST 4096
#define HOGS_MOST 65536
#define MIB ((size_t)1 << 20)
#define STEP ((size_t)64 << 10)
#define TOUCHED ((size_t)256)

static void *buffers[BUFFERS_MOST], *hogs[HOGS_MOST];
static size_t bytes, count, hog_count;
static cudaStream_t work, other;

static size_t bytes_of(size_t i)
{
    static const size_t mixed[] = {1000, 64 << 10, 8 * MIB, 300 << 10, 3 * MIB, 2000};
    return bytes ? bytes : mixed[i % (sizeof(mixed) / sizeof(mixed[0]))];
}

/* Some of each step of it and its end are written: all of a device that is kept full, over and
 * over, would be most of what this takes. */
static void use(char *at, size_t size, int value, cudaStream_t stream)
{
    size_t end = size < TOUCHED ? size : TOUCHED;
    if (size >= STEP)
        OK(cudaMemset2DAsync(at, STEP, value, TOUCHED, size / STEP, stream));
    else
        OK(cudaMemsetAsync(at, value, size, stream));
    OK(cudaMemsetAsync(at + size - end, value, end, stream));
}

/* Allocates and uses on a stream that waits for nobody: what is handed out must be usable. */
static void allocate(size_t n, size_t times)
{
    for (size_t i = 0; i < n; i++) {
        OK(cudaMalloc(&buffers[i], times * bytes_of(i)));
        use(buffers[i], times * bytes_of(i), (int)i, other);
    }
    OK(cudaStreamSynchronize(other));
}

static void release(size_t n)
{
    for (size_t i = 0; i < n; i++)
        OK(cudaFree(buffers[i]));
}

/* Leaves no room for one buffer more. */
static void occupy(void)
{
    size_t available, total, least = bytes ? bytes : 2 * MIB; /* the driver's page */
    OK(cudaMemGetInfo(&available, &total));
    for (size_t size = available; size > least;) {
        size = size / 2 > least ? size / 2 : least;
        while (hog_count < HOGS_MOST && cudaMalloc(&hogs[hog_count], size) == cudaSuccess)
            hog_count++;
    }
    CHECK(hog_count < HOGS_MOST);
    ANSWERS(cudaErrorMemoryAllocation, cudaGetLastError());
}

static void check_held(cudaStream_t stream)
{
    ANSWERS(cudaErrorNotReady, cudaStreamQuery(stream));
    ANSWERS(cudaSuccess, cudaGetLastError()); /* it is no error to be remembered */
}

static void *allocate_all(void *unused)
{
    allocate(count, 1);
    return unused;
}

static void in_thread(void *(*body)(void *))
{
    pthread_t thread;
    OK(pthread_create(&thread, NULL, body, NULL));
    OK(pthread_join(thread, NULL));
}

static void once(const char *name)
{
    gate_t gate = GATE_CLOSED;
    size_t n = count, times = 1;
    if (strcmp(name, "used") == 0)
        for (size_t i = 0; i < n; i++)
            use(buffers[i], bytes_of(i), 1, i % 2 ? work : other);
    release(n);
    if (strcmp(name, "idle") == 0 || strcmp(name, "grow") == 0)
        OK(cudaDeviceSynchronize());
    gate_hold(&gate, work);
    if (strcmp(name, "regroup") == 0)
        n = count / 2;
    if (n != count || strcmp(name, "grow") == 0)
        times = 2;
    if (strcmp(name, "threads") == 0)
        in_thread(allocate_all);
    else
        allocate(n, times);
    check_held(work);
    gate_open(&gate);
    OK(cudaStreamSynchronize(work));
    count = n;
}

int main(int argc, char **argv)
{
    static gate_t elsewhere = GATE_CLOSED;
    const char *name = argc > 1 ? argv[1] : "own";
    bool again = strcmp(name, "again") == 0, access = strcmp(name, "access") == 0;
    bool peers = access || strcmp(name, "peers") == 0;
    bool devices = peers || strcmp(name, "devices") == 0;
    cudaStream_t held = NULL;
    void *spare = NULL, *its_own = NULL;
    int last = 0;
    bytes = number_argument(argc, argv, 2, 16 * MIB);
    count = number_argument(argc, argv, 3, 4);
    CHECK(count <= BUFFERS_MOST);
    if (devices) {
        OK(cudaGetDeviceCount(&last));
        CHECK(--last > 0);
        OK(cudaSetDevice(last));
        OK(cudaStreamCreateWithFlags(&held, cudaStreamNonBlocking));
        if (peers)
            OK(cudaMalloc(&its_own, 256));
        if (access)
            OK(cudaDeviceEnablePeerAccess(0, 0));
        OK(cudaSetDevice(0));
    }
    OK(cudaStreamCreateWithFlags(&work, cudaStreamNonBlocking));
    OK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
    allocate(count, 1);
    if (!bytes) /* mixed sizes do not fill the same room in any order */
        OK(cudaMalloc(&spare, 32 * MIB));
    if (argc <= 4 || strcmp(argv[4], "room") != 0)
        occupy();
    OK(cudaFree(spare));
    if (devices) {
        OK(cudaSetDevice(last));
        gate_hold(&elsewhere, held);
        OK(cudaSetDevice(0));
    }
    for (int round = again || devices ? 10 : 1; round > 0; round--)
        once(name);
    release(count);
    while (hog_count > 0)
        OK(cudaFree(hogs[--hog_count]));
    if (devices) {
        OK(cudaSetDevice(last));
        check_held(held);
        gate_open(&elsewhere);
        OK(cudaDeviceSynchronize());
        OK(cudaFree(its_own));
    }
    ANSWERS(cudaSuccess, cudaGetLastError());
    return 0;
}
