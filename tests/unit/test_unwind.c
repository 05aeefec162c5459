/* Where our own unwinder does not know how to go on: others are asked, or what was found is kept.
 * In two processes, one of them as where libunwind is not installed. */
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "registry/unwind.h"
#include "registry/unwind_words.h"

#if defined(__x86_64__)

enum { FRAMES = 64 };

#define NOINLINE __attribute__((noinline))
#define KEEP_FRAME __asm__ volatile("" ::: "memory")

static void *frames[FRAMES];
static size_t count;
static bool libunwind;
static atomic_int opened;

/* Stands in for the loader's. */
static void (*while_opening)(void);

void *dlopen(const char *name, int flags)
{
    void *(*real)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    if (strncmp(name, "libunwind", strlen("libunwind")) == 0) {
        atomic_fetch_add(&opened, 1);
        if (while_opening)
            while_opening();
    }
    return real(name, flags);
}

static NOINLINE void look(void)
{
    count = ca_unwind(frames, FRAMES);
    KEEP_FRAME;
}

static bool has(void *function, size_t bytes)
{
    for (size_t i = 0; i < count; i++)
        if ((uintptr_t)frames[i] - (uintptr_t)function < bytes)
            return true;
    return false;
}

/* --- code made at run time ----------------------------------------------------------------------
 */

/* Without a description. Keeps a frame pointer, by which libunwind goes on. */
static const unsigned char code[] = {
    0x55,             /* push %rbp */
    0x48, 0x89, 0xe5, /* mov %rsp, %rbp */
    0xff, 0xd7,       /* call *%rdi */
    0x5d,             /* pop %rbp */
    0xc3,             /* ret */
};
static void (*made)(void (*call)(void));

static void make_code(void)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(page, MAP_FAILED);
    memcpy(page, code, sizeof code);
    assert_int_equal(mprotect(page, 4096, PROT_READ | PROT_EXEC), 0);
    made = (void (*)(void (*)(void)))page;
}

static NOINLINE void through_made_code(void)
{
    made(look);
    KEEP_FRAME;
}

/* It needs nobody, though another thread is just opening the others. */
static void *look_plainly(void *arg)
{
    void *found[FRAMES];
    *(size_t *)arg = ca_unwind(found, FRAMES);
    return arg;
}

static size_t found_meanwhile;

static void look_in_another_thread(void)
{
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, look_plainly, &found_meanwhile), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

static void what_others_know_is_asked_of_them_and_only_then(void **state)
{
    (void)state;
    look();
    assert_true(count > 3);
    assert_int_equal(opened, 0);

    while_opening = look_in_another_thread;
    through_made_code();
    while_opening = NULL;

    assert_int_equal(opened, libunwind);
    assert_true(has((void *)made, sizeof code));
    if (libunwind) {
        assert_true(has((void *)through_made_code, 64));
        assert_true(found_meanwhile >= 2);
    }
    through_made_code();
    assert_int_equal(opened, libunwind);
}

/* --- stacks of the program's own ----------------------------------------------------------------
 */

#define STACK_BYTES ((size_t)64 << 10)

static jmp_buf back;

static NOINLINE void inner(void)
{
    look();
    KEEP_FRAME;
}

static void body(void)
{
    inner();
    longjmp(back, 1);
}

/* As libraries for coroutines do: what the first function would return to is no code. */
static NOINLINE void on_a_stack_that_ends_in(uintptr_t returns)
{
    char *low = mmap(NULL, STACK_BYTES + 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(low, MAP_FAILED);
    assert_int_equal(mprotect(low, STACK_BYTES, PROT_READ | PROT_WRITE), 0);
    uintptr_t *top = (uintptr_t *)(low + STACK_BYTES) - 2;
    top[-1] = returns;
    if (setjmp(back) == 0)
        __asm__ volatile("mov %0, %%rsp\n\tjmp *%1" : : "r"(top - 1), "r"(body) : "memory");
    munmap(low, STACK_BYTES + 4096);
}

static void a_stack_ends_where_what_it_returns_to_is_no_code(void **state)
{
    (void)state;
    static const uintptr_t ends[] = {0, 1, 0xdeaddeaddeaddead, 0xdeadc0c0deadc0c0, 4096};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        on_a_stack_that_ends_in(ends[i]);
        assert_true(has((void *)inner, 64) && has((void *)body, 64));
        assert_false(ends[i] && has((void *)ends[i], 1));
    }
}

static int run(bool with)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_others_know_is_asked_of_them_and_only_then),
        cmocka_unit_test(a_stack_ends_where_what_it_returns_to_is_no_code),
    };
    libunwind = with;
    ca_unwind_without_libunwind(!with);
    make_code();
    ca_unwind_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(void)
{
    int status = -1;
    void *library = dlsym(RTLD_DEFAULT, "__tsan_init") ? NULL : dlopen("libunwind.so.8", RTLD_LAZY);
    if (library)
        dlclose(library);
    opened = 0;
    pid_t child = fork();
    if (child == 0)
        return run(false);
    if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return 1;
    return library ? run(true) : 0;
}

#else

int main(void)
{
    return 77;
}

#endif
