/* What a process tells of itself while it runs (metrics, stats_page), for a test that has it in
 * hand: published, then commands on stdin, a line each, answered on stdout.
 *
 *   alloc N BYTES, pinned N BYTES, managed N BYTES   allocate, and keep
 *   free N        the N allocated last, of the first sort
 *   dump PATH     the leak report of now
 *   mark NAME     cachealloc_mark
 *   stats         the fields of cachealloc_stats, `name value` on a line
 *   threads       how many threads called cachealloc there are
 *   chdir PATH, close   what programs do: leave their folder, close what they do not know
 *   fork HOW      a child that ends by exit or _exit, or is killed
 *   exec          becomes `published` anew, with the same process id
 *   end HOW       exit, _exit, quick_exit or abort
 */
#include <cuda_runtime_api.h>
#include <dirent.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "check.h"
#include "shim_stats.h"

#define MOST 10000

static void *kept[MOST];
static unsigned count;

static void allocate(const char *how, unsigned number, size_t bytes)
{
    for (unsigned i = 0; i < number; i++) {
        void *pointer;
        if (strcmp(how, "alloc") == 0) {
            CHECK(count < MOST);
            OK(cudaMalloc(&kept[count++], bytes));
        } else if (strcmp(how, "pinned") == 0) {
            OK(cudaMallocHost(&pointer, bytes));
        } else {
            OK(cudaMallocManaged(&pointer, bytes, cudaMemAttachGlobal));
        }
    }
}

static void show_stats(void)
{
    cachealloc_stats_t now;
    CHECK(shim_stats(&now));
#define SHOW(name) printf(#name " %llu\n", (unsigned long long)now.name)
    SHOW(alloc_calls), SHOW(free_calls), SHOW(hits), SHOW(misses), SHOW(upstream_allocs);
    SHOW(live_bytes), SHOW(live_allocations), SHOW(live_peak_bytes), SHOW(reserved_bytes);
    SHOW(reserved_peak_bytes), SHOW(block_bytes), SHOW(pending_bytes), SHOW(ready_bytes);
    SHOW(idle_bytes), SHOW(segments), SHOW(blocks), SHOW(contexts), SHOW(wrong_frees);
    SHOW(out_of_memory), SHOW(fence_records), SHOW(pinned_reserved_bytes), SHOW(stacks);
}

static unsigned helpers(void)
{
    unsigned found = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks);
    for (struct dirent *entry; (entry = readdir(tasks));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", entry->d_name);
        FILE *file = entry->d_name[0] != '.' ? fopen(path, "r") : NULL;
        if (file) {
            found += fgets(name, sizeof name, file) && strcmp(name, "cachealloc\n") == 0;
            fclose(file);
        }
    }
    closedir(tasks);
    return found;
}

static void end(const char *how)
{
    if (strcmp(how, "exit") == 0)
        exit(3);
    if (strcmp(how, "_exit") == 0)
        _exit(3);
    if (strcmp(how, "quick_exit") == 0)
        quick_exit(3);
    if (strcmp(how, "abort") == 0)
        abort();
    raise(SIGKILL);
}

static void fork_one(const char *how)
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0)
        end(how);
    CHECK(waitpid(child, &status, 0) == child);
    printf("%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

static void obey(const char *command, const char *word, unsigned number, size_t bytes)
{
    if (strcmp(command, "free") == 0)
        for (unsigned i = 0; i < number; i++)
            OK(cudaFree(kept[--count]));
    else if (strcmp(command, "dump") == 0)
        CHECK(cachealloc_dump && cachealloc_dump(word) == 0);
    else if (strcmp(command, "mark") == 0)
        cachealloc_mark(word);
    else if (strcmp(command, "stats") == 0)
        show_stats();
    else if (strcmp(command, "threads") == 0)
        printf("%u\n", helpers());
    else if (strcmp(command, "chdir") == 0)
        CHECK(chdir(word) == 0);
    else if (strcmp(command, "close") == 0)
        for (int fd = 3; fd < 1024; fd++)
            close(fd);
    else if (strcmp(command, "fork") == 0)
        fork_one(word);
    else if (strcmp(command, "exec") == 0)
        CHECK(execl("/proc/self/exe", "published", (char *)NULL) == 0);
    else if (strcmp(command, "end") == 0)
        end(word);
    else
        allocate(command, number, bytes);
}

int main(void)
{
    char line[512];
    setvbuf(stdin, NULL, _IONBF, 0); /* what exec and children would lose, or take */
    while (fgets(line, sizeof line, stdin)) {
        char command[16] = "", word[480] = "";
        unsigned number = 0;
        unsigned long long bytes = 0;
        if (sscanf(line, "%15s %u %llu", command, &number, &bytes) < 2)
            sscanf(line, "%15s %479s", command, word);
        obey(command, word, number, (size_t)bytes);
        puts("ok");
        fflush(stdout);
    }
    return 0;
}
