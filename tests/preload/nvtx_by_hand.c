/* A program with NVTX that includes none of it: it asks the environment for the tool's library,
 * opens it and calls what NVTX would, with what NVTX never would: nvtx_by_hand WHAT.
 *
 *   odd       no messages, no names, handles and ids of nobody, levels without a begin
 *   many      more open ranges, domains and strings than are kept
 *   threads   ranges of many threads that begin and end, and of threads that leave theirs open
 *   fork      ranges in the child of a process that uses CUDA
 *   answers   the tool is given tables that lack this or that, and answers; without CUDA
 *
 * Prints `no tool` where the environment names none. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>
#include <wchar.h>
#include "check.h"

#define CORE 16
#define DOMAINS 16
#define THREADS 8
#define ROUNDS 300

typedef void (*function_t)(void);

typedef struct attributes {
    uint16_t version, size;
    uint32_t category;
    int32_t color_type;
    uint32_t color;
    int32_t payload_type, reserved;
    uint64_t payload;
    int32_t message_type;
    const void *message;
} attributes_t;

static function_t core[CORE], domains[DOMAINS];
static function_t *core_places[CORE], *domain_places[DOMAINS];
static unsigned core_count = CORE, domain_count = DOMAINS, version_of_tool;
static bool no_modules;

#define CALL(table, number, type) ((type)(table)[number])
#define MARK_A CALL(core, 2, void (*)(const char *))
#define MARK_W CALL(core, 3, void (*)(const wchar_t *))
#define MARK_EX CALL(core, 1, void (*)(const void *))
#define START_A CALL(core, 5, uint64_t (*)(const char *))
#define START_EX CALL(core, 4, uint64_t (*)(const void *))
#define END CALL(core, 7, void (*)(uint64_t))
#define PUSH_EX CALL(core, 8, int (*)(const void *))
#define PUSH_A CALL(core, 9, int (*)(const char *))
#define PUSH_W CALL(core, 10, int (*)(const wchar_t *))
#define POP CALL(core, 11, int (*)(void))
#define DOMAIN_MARK CALL(domains, 1, void (*)(const void *, const void *))
#define DOMAIN_END CALL(domains, 3, void (*)(const void *, uint64_t))
#define DOMAIN_PUSH CALL(domains, 4, int (*)(const void *, const void *))
#define DOMAIN_POP CALL(domains, 5, int (*)(const void *))
#define REGISTER_A CALL(domains, 10, const void *(*)(const void *, const char *))
#define CREATE_A CALL(domains, 12, const void *(*)(const char *))
#define CREATE_W CALL(domains, 13, const void *(*)(const wchar_t *))

static int get_module(int module, function_t ***places, unsigned *count)
{
    if (no_modules || (module != 1 && module != 5))
        return 0;
    *places = module == 1 ? core_places : domain_places;
    *count = module == 1 ? core_count : domain_count;
    return 1;
}

static void set_version(uint32_t version)
{
    version_of_tool = version;
}

static struct {
    size_t size;
    int (*get)(int, function_t ***, unsigned *);
} callbacks = {sizeof callbacks, get_module};
static const struct {
    size_t size;
    uint32_t version, reserved;
    void (*set)(uint32_t);
} version = {sizeof version, 3, 0, set_version};
static bool no_callbacks, no_version;

static const void *get_table(uint32_t number)
{
    return number == 1 && !no_callbacks ? (const void *)&callbacks
           : number == 3 && !no_version ? (const void *)&version
                                        : NULL;
}

static int (*find_tool(void))(const void *(*)(uint32_t))
{
    const char *path = getenv("NVTX_INJECTION64_PATH");
    void *library = path ? dlopen(path, RTLD_LAZY) : NULL;
    for (unsigned i = 1; i < CORE; i++) /* the first place of each is nobody's */
        core_places[i] = &core[i];
    for (unsigned i = 1; i < DOMAINS; i++)
        domain_places[i] = &domains[i];
    void *entry = library ? dlsym(library, "InitializeInjectionNvtx2") : NULL;
    if (!entry) {
        puts("no tool");
        exit(0);
    }
    return (int (*)(const void *(*)(uint32_t)))entry;
}

static void attach(void)
{
    CHECK(find_tool()(get_table) == 1);
    CHECK(version_of_tool == 3);
    CHECK(!core[12] && !domains[6] && !domains[15]); /* what nobody listens to */
}

static void *take(size_t bytes)
{
    void *memory;
    OK(cudaMalloc(&memory, bytes));
    return memory;
}

static attributes_t event(int32_t type, const void *message)
{
    return (attributes_t){
        .version = 3, .size = sizeof(attributes_t), .message_type = type, .message = message};
}

static void odd(void)
{
    static const uintptr_t NOBODY[] = {
        1, 7, 63, 64, 65, 1024, 1 << 16, UINTPTR_MAX / 2, UINTPTR_MAX - 1, UINTPTR_MAX};
    static const wchar_t WRONG[] = {L'a', 0xd800, 0x110000, (wchar_t)-1, 0x80, L'z', 0};
    (void)take(1000);
    CHECK(POP() == -1);
    MARK_A(NULL);
    MARK_W(NULL);
    MARK_EX(NULL);
    MARK_A("a\xff\x1b\n\"b");
    MARK_W(WRONG);
    CHECK(PUSH_A(NULL) == 0 && PUSH_W(NULL) == 1 && PUSH_EX(NULL) == 2);
    CHECK(POP() == 2 && POP() == 1 && POP() == 0 && POP() == -1);
    for (int32_t type = -2; type < 9; type++) {
        attributes_t none = event(type, NULL), small = event(type, (const void *)1);
        small.size = 40; /* its message is not part of it */
        MARK_EX(&none);
        MARK_EX(&small);
        END(START_EX(&none));
    }
    END(0);
    END(UINT64_MAX);
    uint64_t range = START_A("once");
    END(range + 256);
    END(range);
    END(range);
    CHECK(CREATE_A(NULL) && CREATE_W(NULL));
    for (size_t i = 0; i < sizeof NOBODY / sizeof *NOBODY; i++) {
        const void *handle = (const void *)NOBODY[i];
        attributes_t registered = event(3, handle);
        MARK_EX(&registered);
        DOMAIN_MARK(handle, &registered);
        DOMAIN_END(handle, NOBODY[i]);
        CHECK(DOMAIN_POP(handle) < 0 && DOMAIN_PUSH(handle, NULL) <= 0);
        CHECK(REGISTER_A(handle, NULL));
    }
    MARK_A("end");
}

static void many(void)
{
    char name[32];
    (void)take(1000);
    for (int i = 0; i < 40; i++) {
        snprintf(name, sizeof name, "level %d", i);
        CHECK(PUSH_A(name) == i);
    }
    for (int i = 40; i-- > 0;)
        CHECK(POP() == i);
    uint64_t ranges[300];
    for (int i = 0; i < 300; i++)
        ranges[i] = START_A("range");
    CHECK(ranges[255] && !ranges[256]);
    for (int i = 300; i-- > 0;)
        END(ranges[i]);
    CHECK(START_A("again"));
    const void *last = NULL, *registered = NULL;
    for (int i = 0; i < 100; i++) {
        snprintf(name, sizeof name, "domain %d", i);
        last = CREATE_A(name);
        CHECK(last);
    }
    CHECK(DOMAIN_PUSH(last, NULL) == -2 && DOMAIN_POP(last) == -2);
    for (int i = 0; i < 70000; i++) {
        snprintf(name, sizeof name, "string %d", i);
        const void *handle = REGISTER_A(NULL, name);
        CHECK(handle);
        if (i == 65535)
            registered = handle;
    }
    attributes_t attributes = event(3, registered);
    MARK_EX(&attributes);
    attributes = event(3, REGISTER_A(NULL, "one more"));
    MARK_EX(&attributes);
}

static void *of_thread(void *number)
{
    char name[32];
    int thread = (int)(intptr_t)number;
    snprintf(name, sizeof name, "of %d", thread);
    attributes_t registered = event(3, REGISTER_A(NULL, name));
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(PUSH_A(name) == 0 && PUSH_EX(&registered) == 1);
        uint64_t range = START_A(name);
        void *memory = take(512);
        CHECK(POP() == 1);
        END(range);
        OK(cudaFree(memory));
        CHECK(POP() == 0);
    }
    PUSH_A("left open");
    return NULL;
}

static void threads(void)
{
    pthread_t threads[THREADS];
    (void)take(1000);
    for (int again = 0; again < 2; again++) {
        for (intptr_t i = 0; i < THREADS; i++)
            OK(pthread_create(&threads[i], NULL, of_thread, (void *)i));
        for (int i = 0; i < THREADS; i++)
            OK(pthread_join(threads[i], NULL));
    }
    MARK_A("end");
}

static void in_child(void)
{
    int status;
    (void)take(1000);
    CHECK(PUSH_A("parent") == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(PUSH_A("child") == 1 && POP() == 1 && POP() == 0);
        END(START_A("child's"));
        CHECK(REGISTER_A(NULL, "child's"));
        _exit(3);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
    CHECK(POP() == 0);
}

static void answers(void)
{
    int (*tool)(const void *(*)(uint32_t)) = find_tool();
    CHECK(tool(NULL) == 0);
    no_callbacks = true;
    CHECK(tool(get_table) == 0);
    no_callbacks = false;
    callbacks.size = 8;
    CHECK(tool(get_table) == 0);
    callbacks.size = sizeof callbacks;
    no_modules = true;
    CHECK(tool(get_table) == 0);
    no_modules = false;
    core_count = domain_count = 0;
    CHECK(tool(get_table) == 0);
    CHECK(version_of_tool == 0);
    core_count = 8; /* without push and pop, and domains */
    no_version = true;
    CHECK(tool(get_table) == 1);
    CHECK(core[1] && core[7] && !core[8] && !domains[1] && version_of_tool == 0);
    MARK_A("unheard");
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "odd";
    if (strcmp(what, "answers") == 0) {
        answers();
        return 0;
    }
    attach();
    if (strcmp(what, "odd") == 0)
        odd();
    else if (strcmp(what, "many") == 0)
        many();
    else if (strcmp(what, "threads") == 0)
        threads();
    else if (strcmp(what, "fork") == 0)
        in_child();
    else
        FAIL("no case %s", what);
    return 0;
}
