/* Device memory of one process, opened by another. */
#include "selftest.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

/* --- the exporter: does what single characters say, and answers with what `answer_t` holds -------
 */
typedef struct answer {
    CUipcMemHandle large, inside, small;
    CUresult own; /* of opening its own */
    unsigned char first, last;
} answer_t;

typedef struct exporter {
    pid_t pid;
    int to, from;
} exporter_t;

static unsigned char byte_at(CUdeviceptr p)
{
    unsigned char byte = 0;
    OK(cuMemcpyDtoH(&byte, p, 1));
    return byte;
}

static void exporter_main(int in, int out)
{
    CUdeviceptr large, below, small, opened;
    answer_t answer;
    char what;
    primary();
    OK(cuMemAlloc(&large, 4 * MIB));
    OK(cuMemAlloc(&below, 1000));
    OK(cuMemAlloc(&small, 1000));
    OK(cuMemsetD8(large, 0x11, 4 * MIB));
    OK(cuMemsetD8(large + 4 * MIB - 1, 0x22, 1));
    OK(cuMemsetD8(below, 0x33, 1000));
    OK(cuMemsetD8(small, 0x44, 1000));
    OK(cuIpcGetMemHandle(&answer.large, large));
    OK(cuIpcGetMemHandle(&answer.inside, large + MIB));
    OK(cuIpcGetMemHandle(&answer.small, small));
    answer.own = cuIpcOpenMemHandle(&opened, answer.large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    while (read(in, &what, 1) == 1) {
        if (what == 'f') { /* the same addresses come back, with other memory */
            OK(cuMemFree(large));
            OK(cuMemAlloc(&large, 4 * MIB));
        }
        answer.first = byte_at(large);
        answer.last = byte_at(large + 4 * MIB - 1);
        CHECK(write(out, &answer, sizeof(answer)) == sizeof(answer));
    }
    exit(failures != 0);
}

/* Before this process uses CUDA: a child of one that does cannot. */
static exporter_t exporter_start(void)
{
    int to[2] = {-1, -1}, from[2] = {-1, -1};
    CHECK(pipe(to) == 0 && pipe(from) == 0);
    exporter_t other = {fork(), to[1], from[0]};
    if (other.pid == 0) {
        close(to[1]);
        close(from[0]);
        exporter_main(to[0], from[1]);
    }
    close(to[0]);
    close(from[1]);
    return other;
}

static answer_t ask(const exporter_t *other, char what)
{
    answer_t answer = {0};
    CHECK(write(other->to, &what, 1) == 1);
    CHECK(read(other->from, &answer, sizeof(answer)) == sizeof(answer));
    return answer;
}

static void exporter_end(const exporter_t *other)
{
    int status = -1;
    close(other->to);
    CHECK(waitpid(other->pid, &status, 0) == other->pid && status == 0);
}

static CUdeviceptr opened(CUipcMemHandle handle)
{
    CUdeviceptr p = 0;
    OK(cuIpcOpenMemHandle(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    return p;
}

static size_t free_bytes(void)
{
    size_t left = 0, total;
    OK(cuMemGetInfo(&left, &total));
    return left;
}

/* --- the importer ----------------------------------------------------------------------------- */

void opened_memory_shows_the_same_bytes(void) /* SIM: shared */
{
    exporter_t other = exporter_start();
    answer_t answer = ask(&other, 'a');
    CUdeviceptr base;
    size_t size;
    primary();
    size_t before = free_bytes();
    CUdeviceptr large = opened(answer.large), small = opened(answer.small);
    CHECK(free_bytes() == before); /* it is the exporter's */
    CHECK(byte_at(large) == 0x11 && byte_at(large + 4 * MIB - 1) == 0x22);
    CHECK(byte_at(small) == 0x44 && byte_at(small + 999) == 0x44);
    OK(cuMemGetAddressRange(&base, &size, small + 10));
    CHECK(base == small && size == 1000);
    OK(cuMemsetD8(large + 4 * MIB - 1, 0x55, 1));
    OK(cuCtxSynchronize());
    answer = ask(&other, 'a');
    CHECK(answer.first == 0x11 && answer.last == 0x55);
    OK(cuIpcCloseMemHandle(large));
    answer = ask(&other, 'f');
    CHECK(answer.first == 0 && answer.last == 0); /* fresh memory is zero in every process */
    OK(cuIpcCloseMemHandle(small));
    exporter_end(&other);
}

void opened_memory_is_counted_and_closed(void) /* SIM: shared */
{
    exporter_t other = exporter_start();
    answer_t answer = ask(&other, 'a');
    CUcontext second;
    CUdeviceptr p;
    CUcontext first = primary();
    CUdeviceptr large = opened(answer.large);
    CHECK(opened(answer.inside) == large); /* of the whole allocation */
    OK(cuCtxCreate(&second, NULL, 0, 0));
    IS(CUDA_ERROR_INVALID_CONTEXT,
       cuIpcOpenMemHandle(&p, answer.large, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    OK(cuCtxSetCurrent(first));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFree(large));
    IS(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(large, NULL));
    OK(cuIpcCloseMemHandle(large));
    CHECK(byte_at(large) == 0x11);
    IS(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(large + 512));
    OK(cuIpcCloseMemHandle(large));
    IS(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(large));
    OK(cuMemAlloc(&p, 8 * MIB)); /* own memory where it was: not the exporter's */
    OK(cuMemsetD8(p, 0x66, 8 * MIB));
    OK(cuCtxSynchronize());
    answer = ask(&other, 'a');
    CHECK(answer.first == 0x11 && answer.last == 0x22);
    exporter_end(&other);
}

void handles_have_their_codes(void) /* SIM: shared */
{
    const unsigned lazy = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
    exporter_t other = exporter_start();
    answer_t answer = ask(&other, 'a');
    CUipcMemHandle handle, garbage = {{1, 2, 3}};
    CUdeviceptr p;
    void *host;
    CHECK(answer.own == CUDA_ERROR_INVALID_CONTEXT);
    OK(cuInit(0));
    IS(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle(&p, answer.large, lazy));
    primary();
    IS(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(&p, answer.large, 0));
    IS(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(NULL, answer.large, lazy));
    IS(CUDA_ERROR_INVALID_HANDLE, cuIpcOpenMemHandle(&p, garbage, lazy));
    IS(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, 0));
    IS(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(0));
    OK(cuMemAllocHost(&host, 4096));
    IS(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, (CUdeviceptr)(uintptr_t)host));
    OK(cuMemAllocAsync(&p, 4096, NULL));
    IS(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, p));
    OK(cuMemAlloc(&p, 4096));
    IS(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(NULL, p));
    OK(cuIpcGetMemHandle(&handle, p));
    OK(cuMemFree(p));
    IS(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, p));
    ask(&other, 'f');
    IS(CUDA_ERROR_INVALID_HANDLE, cuIpcOpenMemHandle(&p, answer.large, lazy));
    exporter_end(&other);
}

void opened_memory_outlives_the_exporter(void) /* SIM: shared */
{
    CUdeviceptr p;
    exporter_t other = exporter_start();
    answer_t answer = ask(&other, 'a');
    primary();
    CUdeviceptr large = opened(answer.large);
    kill(other.pid, SIGKILL);
    CHECK(waitpid(other.pid, NULL, 0) == other.pid);
    CHECK(byte_at(large) == 0x11 && byte_at(large + 4 * MIB - 1) == 0x22);
    OK(cuIpcCloseMemHandle(large));
    IS(CUDA_ERROR_INVALID_HANDLE,
       cuIpcOpenMemHandle(&p, answer.small, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

void opened_memory_goes_with_its_context(void) /* SIM: shared */
{
    CUdeviceptr p;
    exporter_t other = exporter_start();
    answer_t answer = ask(&other, 'a');
    primary();
    CUdeviceptr large = opened(answer.large);
    CHECK(byte_at(large) == 0x11);
    OK(cuDevicePrimaryCtxReset(0));
    primary();
    IS(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(large));
    OK(cuMemAlloc(&p, 4 * MIB));
    OK(cuMemsetD8(p, 0x77, 4 * MIB));
    OK(cuCtxSynchronize());
    answer = ask(&other, 'a');
    CHECK(answer.first == 0x11 && answer.last == 0x22);
    CHECK(byte_at(opened(answer.large)) == 0x11);
    exporter_end(&other);
}

/* --- events ----------------------------------------------------------------------------------- */

/* Records an event behind a gate, hands it over, and opens the gate on request. */
static void recorder_main(int in, int out)
{
    gate_t gate = GATE;
    CUstream s;
    CUevent e, plain;
    CUipcEventHandle handle, none;
    char go;
    primary();
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    OK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    CHECK(cuIpcGetEventHandle(&none, plain) != CUDA_SUCCESS);
    OK(cuIpcGetEventHandle(&handle, e));
    gate_hold(&gate, s);
    OK(cuEventRecord(e, s));
    CHECK(write(out, &handle, sizeof(handle)) == sizeof(handle));
    CHECK(read(in, &go, 1) == 1);
    gate_open(&gate);
    OK(cuStreamSynchronize(s));
    CHECK(write(out, &go, 1) == 1 &&
          read(in, &go, 1) == 0); /* it is there until the other has done */
    exit(failures != 0);
}

void an_event_of_another_process_is_waited_for(void) /* SIM: shared */
{
    int to[2], from[2], status = -1;
    CHECK(pipe(to) == 0 && pipe(from) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(to[1]);
        recorder_main(to[0], from[1]);
    }
    close(to[0]);
    CUipcEventHandle handle;
    CUevent e;
    CUstream s;
    char go = 'g';
    primary();
    CHECK(read(from[0], &handle, sizeof(handle)) == sizeof(handle));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuIpcOpenEventHandle(&e, handle));
    IS(CUDA_ERROR_NOT_READY, cuEventQuery(e));
    OK(cuStreamWaitEvent(s, e, 0));
    IS(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
    CHECK(write(to[1], &go, 1) == 1);
    OK(cuEventSynchronize(e));
    OK(cuEventQuery(e));
    OK(cuStreamSynchronize(s));
    CHECK(read(from[0], &go, 1) == 1);
    OK(cuEventDestroy(e));
    memset(&handle, 7, sizeof(handle));
    IS(CUDA_ERROR_INVALID_HANDLE, cuIpcOpenEventHandle(&e, handle));
    close(to[1]);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
}
