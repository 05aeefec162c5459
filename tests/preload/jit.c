/* Code that was made at run time, as JIT compilers do, allocates: jit WAY [_exit]. It writes
 * /tmp/perf-PID.map, which stays, with
 *
 *   named      its name, between those of its neighbours
 *   again      two names, of which the second is right
 *   malformed  the same as named amid lines that are none
 *   beside     names of the code right before and right behind it alone
 *   link       a symbolic link to such a file
 *   pipe       that is a pipe
 *   large      more than is read
 *   old        that was written before the process began
 *   other      of another user; only root can do that
 *
 * and forgets 7000 bytes. With _exit it ends by that. Prints its process id. */
#include <cuda_runtime_api.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "check.h"

#define CODE_BYTES 64

/* Calls its argument. */
static const unsigned char code[] = {
#if defined(__aarch64__)
    0xfd, 0x7b, 0xbf, 0xa9, 0xfd, 0x03, 0x00, 0x91, /* stp x29,x30,[sp,-16]!; mov x29,sp */
    0x00, 0x00, 0x3f, 0xd6,                         /* blr x0 */
    0xfd, 0x7b, 0xc1, 0xa8, 0xc0, 0x03, 0x5f, 0xd6, /* ldp x29,x30,[sp],16; ret */
#else
    0x55, 0x48, 0x89, 0xe5, /* push %rbp; mov %rsp,%rbp */
    0xff, 0xd7,             /* call *%rdi */
    0x5d, 0xc3,             /* pop %rbp; ret */
#endif
};

static __attribute__((noinline)) void forget(void)
{
    void *pointer;
    OK(cudaMalloc(&pointer, 7000));
}

static void write_names(FILE *file, const char *way, unsigned long at)
{
    bool beside = strcmp(way, "beside") == 0;
    fprintf(file, "%lx 40 before\n", at - CODE_BYTES);
    if (strcmp(way, "again") == 0)
        fprintf(file, "%lx 80 old name\n%lx 20 older name\n", at - CODE_BYTES, at + 1);
    if (strcmp(way, "malformed") == 0)
        fprintf(file,
                "\n%lx\n%lx 40\n%lx 40 \n%lx 0 empty\nx%lx 40 x\n%lx -1 negative\n"
                "%lx fffffffffffffffff long\n%lx ffffffffffffffff over\n \n0 0 0\n",
                at, at, at, at, at, at, at, at);
    if (!beside)
        fprintf(file, "0x%lx %x py::solve<1>:/opt/a b.py\n", at, CODE_BYTES);
    fprintf(file, "%lx 40 behind\n", at + CODE_BYTES);
    if (strcmp(way, "malformed") == 0)
        fprintf(file, "%lx 40 not whole", at);
}

static void write_map(const char *way, unsigned long at)
{
    char path[64], real[80];
    snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());
    snprintf(real, sizeof real, "%s%s", path, strcmp(way, "link") == 0 ? ".real" : "");
    if (strcmp(way, "pipe") == 0) {
        CHECK(mkfifo(path, 0600) == 0);
        return;
    }
    FILE *file = fopen(real, "w");
    CHECK(file);
    write_names(file, way, at);
    CHECK(fclose(file) == 0);
    if (strcmp(way, "link") == 0)
        CHECK(symlink(real, path) == 0);
    if (strcmp(way, "large") == 0)
        CHECK(truncate(path, (64 << 20) + 1) == 0);
    const struct timespec hour_ago[2] = {{.tv_sec = time(NULL) - 3600},
                                         {.tv_sec = time(NULL) - 3600}};
    if (strcmp(way, "old") == 0)
        CHECK(utimensat(AT_FDCWD, path, hour_ago, 0) == 0);
    if (strcmp(way, "other") == 0 && chown(path, 65534, 65534) != 0) {
        puts("only root gives files away");
        exit(77);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc >= 2);
    printf("%d\n", (int)getpid());
    fflush(stdout);
    char *made = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(made != MAP_FAILED);
    char *at = made + 1024;
    memcpy(at, code, sizeof code);
    CHECK(mprotect(made, 4096, PROT_READ | PROT_EXEC) == 0);
    __builtin___clear_cache(at, at + sizeof code);
    write_map(argv[1], (unsigned long)(uintptr_t)at);
    void (*run)(void (*)(void)) = (void (*)(void (*)(void)))(uintptr_t)at;
    run(forget);
    if (argc > 2)
        _exit(0);
    return 0;
}
