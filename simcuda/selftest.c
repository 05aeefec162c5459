/* The simulated driver against its own rules: one process per test (the program runs itself), each
 * with its own SIMCUDA and a time limit. Plain driver API: what is not marked SIM must hold on
 * hardware as well (run with CACHEALLOC_GPU=1 there: SIM tests are left out). */
#include "selftest.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int failures;

#define STATS "/tmp/simcuda-selftest-stats.%d"
#define SHARED "/tmp/simcuda-selftest-shared.%d"

static void check_stats(void)
{
    char path[64], text[4096] = {0};
    snprintf(path, sizeof(path), STATS, (int)getpid());
    FILE *f = fopen(path, "r");
    CHECK(f != NULL);
    if (f) {
        CHECK(fread(text, 1, sizeof(text) - 1, f) > 0);
        fclose(f);
        unlink(path);
    }
    CHECK(strstr(text, "{\"calls\":{") == text);
    CHECK(strstr(text, "\"cuMemAlloc_v2\":7,"));
    CHECK(strstr(text, "\"cuMemFree_v2\":1}") || strstr(text, "\"cuMemFree_v2\":1,"));
    CHECK(strstr(text, "\"peak_bytes\":29360128,\"live_bytes\":27262976"));
    CHECK(strstr(text, "\"vmm\":{\"handles\":1,\"mappings\":1,\"peak_mappings\":2,"
                       "\"bytes\":2097152,\"mapped_bytes\":2097152,\"reservations\":1,"
                       "\"reserved_bytes\":4194304}"));
}

static const struct {
    const char *name, *simcuda; /* simcuda NULL: holds on hardware too */
    void (*fn)(void);
} tests[] = {
#define ON_BOTH(name) {#name, NULL, name},
#define SIM_ONLY(name, keys) {#name, keys, name},
#include "selftest.def"
#undef ON_BOTH
#undef SIM_ONLY
};

enum { COUNT = sizeof(tests) / sizeof(tests[0]), LIMIT_S = 60 };

static int run(const char *self, int i)
{
    int status = -1;
    char keys[512], shared[64];
    snprintf(keys, sizeof(keys), "%s", tests[i].simcuda ? tests[i].simcuda : "");
    if (strcmp(keys, "stats") == 0) {
        snprintf(keys, sizeof(keys), "stats:" STATS, (int)getpid());
    }
    snprintf(shared, sizeof(shared), SHARED, (int)getpid());
    char *wish = strstr(keys, ",shared");
    if (wish) {
        snprintf(wish, sizeof(keys) - (size_t)(wish - keys), ",shared:%s", shared);
    }
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        setenv("SIMCUDA", keys, 1);
        alarm(LIMIT_S);
        execl(self, self, tests[i].name, (char *)NULL);
        _exit(127);
    }
    waitpid(pid, &status, 0);
    if (wish) {
        unlink(shared);
    }
    failures = status != 0;
    if (status == 0 && strcmp(tests[i].name, "counts_for_the_statistics") == 0) {
        check_stats();
    }
    return failures;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        for (int i = 0; i < COUNT; i++) {
            if (strcmp(tests[i].name, argv[1]) == 0) {
                tests[i].fn();
                return failures ? 1 : 0;
            }
        }
        fprintf(stderr, "no test %s\n", argv[1]);
        return 2;
    }
    int bad = 0, skipped = 0;
    for (int i = 0; i < COUNT; i++) {
        if (tests[i].simcuda && getenv("CACHEALLOC_GPU")) {
            skipped++;
            continue;
        }
        int failed = run("/proc/self/exe", i);
        printf("%s %s\n", failed ? "FAIL" : "ok  ", tests[i].name);
        bad += failed;
    }
    printf("%d tests, %d failed, %d skipped\n", COUNT - skipped, bad, skipped);
    return bad != 0;
}
