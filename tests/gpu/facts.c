/*
 * The fact script: prints, as JSON, what only hardware can tell (design.md 12).
 *
 *   facts                all facts            facts --list         their names
 *   facts --fact NAME    one fact or group    facts --label TEXT   what answered, into the result
 *   facts --limit S      seconds for all, 450 where not said
 *
 * The parent asks the driver nothing but whether it is there; every fact runs in a child made by
 * exec (CUDA does not survive fork) with a time limit. Progress goes to stderr. Exit status 77
 * where no driver answers, else 0: a fact that crashes or overruns is an answer, not a failure.
 *
 * Elsewhere: cc -o facts tests/gpu/facts*.c -I$CUDA/include -L$CUDA/lib64 -lcudart -lcuda
 *            -lpthread -ldl
 */
#include "facts.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define TOTAL_LIMIT_S 450
#define FIRST(name)                                                                                \
    {                                                                                              \
        "first_call/" name, fact_first_call, name, 20, "the first CUDA call of a process"          \
    }
#define GONE(name)                                                                                 \
    {                                                                                              \
        "record_gone/" name, fact_record_gone, name, 20,                                           \
            "whether a record covers, and cudaFree waits for, work of streams that are gone"       \
    }
#define ASLEEP(name)                                                                               \
    {                                                                                              \
        "order_asleep/" name, fact_order_asleep, name, 60,                                         \
            "which calls return, and run, while another thread sleeps behind a kernel"             \
    }
#define SEEN(name)                                                                                 \
    {                                                                                              \
        "order_seen/" name, fact_order_seen, name, 40,                                             \
            "launches that the library's wrappers see against launches that are made"              \
    }
#define BUSY(name)                                                                                 \
    {                                                                                              \
        "vmm_busy/" name, fact_vmm_busy, name, 20,                                                 \
            "which calls of virtual memory wait for a kernel, and what becomes of it"              \
    }
#define PEERS(name)                                                                                \
    {                                                                                              \
        "vmm_peers/" name, fact_vmm_peers, name, 20,                                               \
            "whether another device reaches mapped memory"                                         \
    }

static const fact_t facts[] = {
    {"platform", fact_platform, "", 30, "versions and devices"},
    {"call_cost", fact_call_cost, "", 120,
     "cost of the calls on our fast path against streams, idle and with work in flight"},
    {"alloc_cost", fact_alloc_cost, "", 60, "cost of allocation pairs by size"},
    {"record_covers", fact_record_covers, "", 40,
     "whether cuCtxRecordEvent covers work on every kind of stream, and whether it blocks"},
    {"record_rules", fact_record_rules, "", 30, "what else holds for cuCtxRecordEvent"},
    GONE("streams"),
    GONE("thread"),
    GONE("green"),
    GONE("green-default"),
    GONE("green-both"),
    GONE("green-context"),
    {"free_waits", fact_free_waits, "", 60, "what the real cudaFree waits for, by size"},
    {"others_wait", fact_others_wait, "", 90, "which other memory calls wait for work in flight"},
    {"stream_order", fact_stream_order, "", 40,
     "who waits for whom among the legacy stream and blocking ones"},
    {"capture", fact_capture, "", 40,
     "which calls are allowed during capture, and whether the capture survives"},
    {"entry_points", fact_entry_points, "", 20, "addresses from cuGetProcAddress against dlsym"},
    {"layout", fact_layout, "", 40, "alignment, distance and granularity of allocations"},
    {"address_range", fact_address_range, "", 20,
     "address ranges and buffer ids, live, interior and freed"},
    {"green", fact_green, "", 20, "what is accepted with a green context current"},
    {"ipc/handles", fact_ipc, "handles", 30, "what a handle for another process names"},
    {"ipc/open", fact_ipc, "open", 20, "the other process of ipc/handles"},
    {"pinned_flags", fact_pinned_flags, "", 20, "which flags kinds of pinned memory have"},
    {"codes_runtime/arguments", fact_codes_runtime, "arguments", 20,
     "codes of bad calls through the runtime"},
    {"codes_runtime/frees", fact_codes_runtime, "frees", 20,
     "codes of bad calls through the runtime"},
    {"codes_driver/arguments", fact_codes_driver, "arguments", 20,
     "codes of bad calls through the driver"},
    {"codes_driver/frees", fact_codes_driver, "frees", 20, "codes of bad calls through the driver"},
    {"codes_context", fact_codes_context, "", 20,
     "codes without a context, from another context, from another thread"},
    FIRST("cudaFree-NULL"),
    FIRST("cudaFree-garbage"),
    FIRST("cudaMalloc"),
    FIRST("cudaMalloc-0"),
    FIRST("cudaMalloc-NULL"),
    FIRST("cudaMallocHost"),
    FIRST("cudaFreeHost-NULL"),
    FIRST("cudaMallocAsync"),
    FIRST("cudaFreeAsync-garbage"),
    FIRST("cudaGetLastError"),
    FIRST("cuMemAlloc"),
    FIRST("cuMemAlloc-0"),
    FIRST("cuMemAlloc-NULL"),
    FIRST("cuMemAllocAsync"),
    FIRST("cuMemFree"),
    FIRST("cuMemFree-0"),
    FIRST("cuMemAllocHost"),
    FIRST("cuMemFreeHost-NULL"),
    FIRST("cuCtxGetCurrent"),
    FIRST("cuEventQuery"),
    {"after_reset/same-thread", fact_after_reset, "same-thread", 20, "codes after a device reset"},
    {"after_reset/other-thread", fact_after_reset, "other-thread", 20,
     "codes after a device reset"},
    {"after_reset/other-thread-set", fact_after_reset, "other-thread-set", 20,
     "codes after a device reset"},
    {"after_reset/other-thread-used", fact_after_reset, "other-thread-used", 20,
     "codes after a device reset"},
    {"after_reset/other-thread-driver", fact_after_reset, "other-thread-driver", 20,
     "codes after a device reset"},
    {"sticky/kernel", fact_sticky, "kernel", 20, "codes after a sticky error"},
    {"sticky/copy", fact_sticky, "copy", 20, "codes after a sticky error"},
    {"handles", fact_handles, "", 30, "whether handles come again and ids differ"},
    {"set_device", fact_set_device, "", 20, "which context cudaSetDevice makes current"},
    {"teardown/plain", fact_teardown, "plain", 30, "which calls answer at the end of the process"},
    {"teardown/preloaded", fact_teardown, "preloaded", 30,
     "which calls answer at the end of the process"},
    ASLEEP("nobody"),
    ASLEEP("cudaFree"),
    ASLEEP("cudaFreeHost"),
    ASLEEP("cudaDeviceSynchronize"),
    {"order_copies", fact_order_copies, "", 30,
     "whether a small copy behind a wait is the last write, where the old owner writes late"},
    {"order_waits", fact_order_waits, "", 20,
     "whether cuStreamWaitEvent waits for all that an event of cuCtxRecordEvent covers"},
    {"order_programmatic", fact_order_programmatic, "", 20,
     "what between two kernels ends the overlap of a programmatic launch"},
    {"order_handles", fact_order_handles, "", 20,
     "whether the handle of a stream that was destroyed at work comes again"},
    SEEN("driver"),
    SEEN("runtime"),
    SEEN("cublas"),
    SEEN("cufft"),
    SEEN("cudnn"),
    SEEN("nccl"),
    {"vmm_device", fact_vmm_device, "", 20, "what the device has of virtual memory management"},
    {"vmm_ranges", fact_vmm_ranges, "", 20, "which ranges mapping, access and unmapping take"},
    {"vmm_pointers", fact_vmm_pointers, "", 20, "what a pointer to mapped memory tells"},
    {"vmm_copies", fact_vmm_copies, "", 20, "copies and sets over two handles"},
    {"vmm_alias", fact_vmm_alias, "", 30,
     "whether what is written by one address is read by another of the same memory"},
    BUSY("unmap"),
    BUSY("unmap-alias"),
    BUSY("map"),
    BUSY("map-open"),
    BUSY("open"),
    BUSY("close"),
    BUSY("release"),
    BUSY("create"),
    {"vmm_capture", fact_vmm_capture, "", 20, "which calls of virtual memory captures allow"},
    {"vmm_gone/reset", fact_vmm_gone, "reset", 20, "what is left of mappings when a context ends"},
    {"vmm_gone/destroyed", fact_vmm_gone, "destroyed", 20,
     "what is left of mappings when a context ends"},
    PEERS("copy"),
    PEERS("enabled"),
    PEERS("given"),
    {"vmm_cost", fact_vmm_cost, "", 60, "what calls of virtual memory cost, idle and at work"},
    {"vmm_again", fact_vmm_again, "", 20, "what 1 GiB costs that was dropped before"},
    {"vmm_many", fact_vmm_many, "", 60, "how many mappings there can be"},
};

enum { FACTS = sizeof facts / sizeof *facts };

/* --- one fact in a child
 * -------------------------------------------------------------------------- */

static pid_t start(const fact_t *f, int *from)
{
    int ends[2];
    pid_t pid;

    if (pipe(ends) != 0)
        return -1;
    pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        close(ends[1]);
        execl("/proc/self/exe", "facts", "--child", f->name, (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    *from = ends[0];
    return pid;
}

/* A complete line is a row, or what something else wrote to stdout and goes to stderr. */
static void take_line(char *line, int *rows)
{
    if (strncmp(line, "ROW ", 4) == 0)
        printf("%s\n      %s", (*rows)++ ? "," : "", line + 4);
    else
        fprintf(stderr, "  %s\n", line);
}

/* Reads until the child closes its end or the time is up; false when it was up. */
static bool collect(int from, uint64_t end, int *rows)
{
    static char text[1 << 16];
    size_t have = 0;

    for (;;) {
        struct pollfd p = {from, POLLIN, 0};
        uint64_t now = now_ns();
        if (now >= end)
            return false;
        int ready = poll(&p, 1, (int)((end - now) / 1000000u) + 1);
        if (ready < 0 && errno == EINTR)
            continue;
        ssize_t n = ready > 0 ? read(from, text + have, sizeof text - 1 - have) : 0;
        if (ready > 0 && n <= 0)
            return true;
        have += (size_t)n;
        text[have] = 0;
        char *line = text;
        for (char *nl; (nl = strchr(line, '\n')); line = nl + 1) {
            *nl = 0;
            take_line(line, rows);
        }
        have -= (size_t)(line - text);
        memmove(text, line, have);
        if (have == sizeof text - 1)
            have = 0;
    }
}

static void status_of(char *out, size_t bytes, bool in_time, int status, int limit_s)
{
    if (!in_time)
        snprintf(out, bytes, "stopped after its limit of %d s", limit_s);
    else if (WIFSIGNALED(status))
        snprintf(out, bytes, "crashed: signal %d", WTERMSIG(status));
    else if (WEXITSTATUS(status) != 0)
        snprintf(out, bytes, "ended with status %d", WEXITSTATUS(status));
    else
        snprintf(out, bytes, "ok");
}

static void run_fact(const fact_t *f, bool first, uint64_t deadline)
{
    char name[200], answers[400], status[80];
    uint64_t begin = now_ns(), end = begin + (uint64_t)f->limit_s * 1000000000u;
    int from = -1, rows = 0, state = 0;
    pid_t pid;

    if (begin >= deadline) {
        fprintf(stderr, "%s: no time left\n", f->name);
        return;
    }
    json_string(name, sizeof name, f->name);
    json_string(answers, sizeof answers, f->answers);
    printf("%s\n    {\"name\": %s, \"answers\": %s, \"rows\": [", first ? "" : ",", name, answers);
    fflush(stdout);
    pid = start(f, &from);
    bool in_time = pid > 0 && collect(from, end < deadline ? end : deadline, &rows);
    if (pid > 0) {
        if (!in_time)
            kill(pid, SIGKILL);
        waitpid(pid, &state, 0);
        close(from);
    }
    status_of(status, sizeof status, in_time, state, f->limit_s);
    printf("],\n     \"status\": \"%s\", \"seconds\": %.1f}", status,
           (double)(now_ns() - begin) / 1e9);
    fflush(stdout);
    fprintf(stderr, "%-28s %4d rows  %s\n", f->name, rows, status);
}

/* --- the program
 * ---------------------------------------------------------------------------------- */

static bool wanted(const fact_t *f, const char *name)
{
    size_t n = name ? strlen(name) : 0;

    return !name || !strcmp(f->name, name) || (!strncmp(f->name, name, n) && f->name[n] == '/');
}

static int child(const char *name)
{
    for (int i = 0; i < FACTS; i++)
        if (!strcmp(facts[i].name, name)) {
            facts[i].run(facts[i].arg);
            return 0;
        }
    return 2;
}

static int list(void)
{
    for (int i = 0; i < FACTS; i++)
        printf("%-28s %s\n", facts[i].name, facts[i].answers);
    return 0;
}

static int parent(const char *name, const char *label, int limit_s)
{
    uint64_t deadline = now_ns() + (uint64_t)limit_s * 1000000000u;
    char quoted[200];
    int known = 0, devices = 0;
    CUresult r = cuInit(0);

    for (int i = 0; i < FACTS; i++)
        known += wanted(&facts[i], name);
    if (!known) {
        fprintf(stderr, "facts: no fact is called %s; see --list\n", name);
        return 2;
    }
    if (r != CUDA_SUCCESS || cuDeviceGetCount(&devices) != CUDA_SUCCESS || devices == 0) {
        fprintf(stderr, "facts: no driver with a device answers (cuInit: %d)\n", (int)r);
        return 77;
    }
    json_string(quoted, sizeof quoted, label);
    printf("{\"schema\": 1, \"answered by\": %s, \"facts\": [", quoted);
    for (int i = 0, first = 1; i < FACTS; i++)
        if (wanted(&facts[i], name)) {
            run_fact(&facts[i], first, deadline);
            first = 0;
        }
    printf("\n]}\n");
    return 0;
}

int main(int argc, char **argv)
{
    const char *name = NULL, *label = "a CUDA driver (not labelled)";
    int limit_s = TOTAL_LIMIT_S;

    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (!strcmp(argv[i], "--list"))
            return list();
        else if (!strcmp(argv[i], "--child") && more)
            return child(argv[i + 1]);
        else if (!strcmp(argv[i], "--fact") && more)
            name = argv[++i];
        else if (!strcmp(argv[i], "--label") && more)
            label = argv[++i];
        else if (!strcmp(argv[i], "--limit") && more && atoi(argv[i + 1]) > 0)
            limit_s = atoi(argv[++i]);
        else {
            fprintf(stderr, "usage: facts [--list] [--fact NAME] [--label TEXT] [--limit S]\n");
            return 2;
        }
    }
    return parent(name, label, limit_s);
}
