/* Code that nobody described, and stacks that end anywhere: nothing else than our own unwinder is
 * asked of them, since that would trust what it reads. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

#include "registry/stack/unwind.h"

#if defined(__x86_64__)

enum { FRAMES = 64 };

#define NOINLINE __attribute__((noinline))
#define KEEP_FRAME __asm__ volatile("" ::: "memory")

static void *frames[FRAMES];
static size_t count;
static int opened;

/* Stand in for the loader's and glibc's. */
void *dlopen(const char *name, int flags)
{
    (void)name;
    (void)flags;
    opened++;
    return NULL;
}

int backtrace(void **into, int most);
int backtrace(void **into, int most)
{
    (void)into;
    (void)most;
    opened++;
    return 0;
}

static NOINLINE void look(void)
{
    ca_unwound_t unwound = {.sps = NULL};
    count = ca_unwind(frames, FRAMES, &unwound);
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

/* Without a description, and with a frame pointer. */
static const unsigned char with_frame_pointer[] = {
    0x55,             /* push %rbp */
    0x48, 0x89, 0xe5, /* mov %rsp, %rbp */
    0xff, 0xd7,       /* call *%rdi */
    0x5d,             /* pop %rbp */
    0xc3,             /* ret */
};
/* The second argument is what it has in that register. */
static const unsigned char without[] = {
    0x55,             /* push %rbp */
    0x48, 0x89, 0xf5, /* mov %rsi, %rbp */
    0xff, 0xd7,       /* call *%rdi */
    0x5d,             /* pop %rbp */
    0xc3,             /* ret */
};
typedef void made_t(void (*call)(void), void *rbp);
static made_t *made, *made_without;

static made_t *make_code(const unsigned char *code, size_t bytes)
{
    void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(page, MAP_FAILED);
    memcpy(page, code, bytes);
    assert_int_equal(mprotect(page, 4096, PROT_READ | PROT_EXEC), 0);
    return (made_t *)page;
}

static NOINLINE void through_made_code(void)
{
    made(look, NULL);
    KEEP_FRAME;
}

static NOINLINE void through_two_of_them(void)
{
    made(through_made_code, NULL);
    KEEP_FRAME;
}

static void code_made_at_run_time_is_gone_through_by_its_frame_pointer(void **state)
{
    (void)state;
    look();
    size_t plain = count;
    assert_true(plain > 3);
    through_two_of_them();
    assert_int_equal(count, plain + 4);
    assert_true(has((void *)made, sizeof with_frame_pointer));
    assert_true(has((void *)through_made_code, 64));
    assert_true(has((void *)through_two_of_them, 64));
    assert_int_equal(opened, 0);
}

static NOINLINE void with_rbp(void *rbp)
{
    made_without(look, rbp);
    KEEP_FRAME;
}

/* It is found, and what called it is not: no other frame is made up. */
static void what_is_no_frame_pointer_is_not_followed(void **state)
{
    (void)state;
    static char elsewhere[64];
    void *volatile words[8] = {elsewhere, elsewhere + 8, (char *)(uintptr_t)1, elsewhere};
    words[4] = (void *)&words[6]; /* as a chain of frames whose code is data */
    words[5] = elsewhere;
    void *const no_pointers[] = {NULL,
                                 elsewhere,
                                 (void *)1,
                                 (void *)&words[0],
                                 (void *)&words[4],
                                 (char *)(uintptr_t)&words[0] + 1,
                                 (void *)-8};
    for (size_t i = 0; i < sizeof no_pointers / sizeof *no_pointers; i++) {
        with_rbp(no_pointers[i]);
        assert_int_equal(count, 3); /* ca_unwind's, look's, the code's */
        assert_true(has((void *)made_without, sizeof without));
    }
    assert_int_equal(opened, 0);
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
    assert_int_equal(opened, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(code_made_at_run_time_is_gone_through_by_its_frame_pointer),
        cmocka_unit_test(what_is_no_frame_pointer_is_not_followed),
        cmocka_unit_test(a_stack_ends_where_what_it_returns_to_is_no_code),
    };
    made = make_code(with_frame_pointer, sizeof with_frame_pointer);
    made_without = make_code(without, sizeof without);
    ca_unwind_start();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    return 77;
}

#endif
