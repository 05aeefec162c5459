/* Starts processes that replay one trace: see worker.h.
 *
 * Such a process is this program again, with the shim and the simulated CUDA that lie beside it in
 * its environment, unless they are there already. Its figures come back through its standard
 * output, as they are in memory. */
#include "tests/replay/worker.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SELF "/proc/self/exe"
#define WORKER "--worker"
#define WORKER_ARGUMENTS 8
#define KERNEL_NS "100000"

/* The directory of this program. */
static int find_directory(char *directory, size_t bytes)
{
    ssize_t length = readlink(SELF, directory, bytes - 1);
    if (length < 0)
        return -1;
    directory[length] = '\0';
    char *slash = strrchr(directory, '/');
    if (slash)
        *slash = '\0';
    return 0;
}

/* `added` and `separator` before what `name` is set to. */
static void put_before(const char *name, const char *added, char separator)
{
    char text[2 * PATH_MAX];
    const char *now = getenv(name);
    if (!now || !*now) {
        setenv(name, added, 1);
    } else if (!strstr(now, added)) {
        snprintf(text, sizeof text, "%s%c%s", added, separator, now);
        setenv(name, text, 1);
    }
}

/* The last of several values counts. */
static void put_behind(const char *name, const char *added)
{
    char text[PATH_MAX];
    const char *now = getenv(name);
    snprintf(text, sizeof text, "%s%s%s", now ? now : "", now && *now ? "," : "", added);
    setenv(name, text, 1);
}

static void set_environment(const char *directory, policy_t policy, const how_t *how)
{
    char text[PATH_MAX + 64];
    snprintf(text, sizeof text, "%s/simcuda", directory);
    put_before("LD_LIBRARY_PATH", text, ':');
    const char *preloaded = getenv("LD_PRELOAD");
    if (policy == POLICY_CACHEALLOC && !(preloaded && strstr(preloaded, "libcachealloc"))) {
        snprintf(text, sizeof text, "%s/libcachealloc.so", directory);
        put_before("LD_PRELOAD", text, ' ');
    }
    if (!getenv("SIMCUDA"))
        setenv("SIMCUDA", "memory:256G", 1);
    if (how->memory) {
        snprintf(text, sizeof text, "memory:%zu", how->memory);
        put_behind("SIMCUDA", text);
    }
    if (how->busy)
        put_behind("SIMCUDA", "kernel_ns:" KERNEL_NS);
}

static _Noreturn void become_worker(const char *path, policy_t policy, const how_t *how, bool quiet,
                                    int out)
{
    char directory[PATH_MAX], numbers[5][16];
    if (quiet) {
        int null = open("/dev/null", O_WRONLY);
        if (null >= 0)
            dup2(null, STDERR_FILENO);
    }
    if (find_directory(directory, sizeof directory) == 0 && dup2(out, STDOUT_FILENO) >= 0) {
        set_environment(directory, policy, how);
        snprintf(numbers[0], 16, "%u", how->passes);
        snprintf(numbers[1], 16, "%u", how->threads);
        snprintf(numbers[2], 16, "%u", how->streams);
        snprintf(numbers[3], 16, "%d", how->busy);
        snprintf(numbers[4], 16, "%u", how->live);
        execl(SELF, "replay", WORKER, numbers[0], numbers[1], numbers[2], numbers[3], numbers[4],
              path, (char *)NULL);
    }
    fprintf(stderr, "replay: cannot start: %s\n", strerror(errno));
    _exit(1);
}

/* Whether all of it came. */
static bool read_all(int fd, void *memory, size_t bytes)
{
    char *at = memory;
    while (bytes > 0) {
        ssize_t got = read(fd, at, bytes);
        if (got <= 0 && !(got < 0 && errno == EINTR))
            return false;
        if (got > 0) {
            at += got;
            bytes -= (size_t)got;
        }
    }
    return true;
}

static int run_apart(const char *path, policy_t policy, const how_t *how, bool quiet,
                     figures_t *figures)
{
    int ends[2], state = 0;
    pid_t child = pipe2(ends, O_CLOEXEC) == 0 ? fork() : -1;
    if (child < 0) {
        fprintf(stderr, "replay: cannot start: %s\n", strerror(errno));
        return -1;
    }
    if (child == 0)
        become_worker(path, policy, how, quiet, ends[1]);
    close(ends[1]);
    bool all = read_all(ends[0], figures, sizeof(*figures));
    close(ends[0]);
    while (waitpid(child, &state, 0) < 0 && errno == EINTR)
        ;
    if (WIFSIGNALED(state) && !quiet)
        fprintf(stderr, "replay: %s: ended by signal %d\n", path, WTERMSIG(state));
    return all && WIFEXITED(state) && WEXITSTATUS(state) == 0 ? 0 : -1;
}

static int run_here(const char *path, policy_t policy, const how_t *how, figures_t *figures)
{
    trace_t trace;
    *figures = (figures_t){.passes = how->passes};
    int status = trace_read(&trace, path);
    if (status == 0 && how->live)
        trace_scale(&trace, (size_t)how->live << 10);
    figures->operations = trace.count;
    figures->allocations = trace.slots;
    if (status == 0)
        status = policy == POLICY_PYTORCH ? replay_pytorch(&trace, how, figures)
                                          : replay_cuda(&trace, how, figures);
    trace_end(&trace);
    return status;
}

int worker_run(const char *path, policy_t policy, const how_t *how, bool quiet, figures_t *figures)
{
    if (policy != POLICY_PYTORCH)
        return run_apart(path, policy, how, quiet, figures);
    trace_quiet = quiet;
    int status = run_here(path, policy, how, figures);
    trace_quiet = false;
    return status;
}

static unsigned number(const char *text)
{
    return (unsigned)strtoul(text, NULL, 10);
}

void worker_main(int argc, char **argv)
{
    static figures_t figures;
    if (argc != WORKER_ARGUMENTS || strcmp(argv[1], WORKER) != 0)
        return;
    how_t how = {.passes = number(argv[2]),
                 .threads = number(argv[3]),
                 .streams = number(argv[4]),
                 .busy = number(argv[5]) != 0,
                 .live = number(argv[6])};
    if (run_here(argv[7], POLICY_DRIVER, &how, &figures) != 0)
        exit(1);
    exit(fwrite(&figures, sizeof figures, 1, stdout) == 1 ? 0 : 1);
}
