/* Which modules are known, by a loader that this program plays. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <link.h>
#include <stdio.h>
#include <time.h>

#include "registry/stack/modules.h"

#define STAYING 100u
#define BYTES ((uintptr_t)1 << 20)

static unsigned turn; /* so many libraries were closed, and the next one is open */

static uintptr_t place(unsigned number)
{
    return ((uintptr_t)1 << 40) + number * BYTES;
}

int dl_iterate_phdr(int (*visit)(struct dl_phdr_info *, size_t, void *), void *arg)
{
    char name[32];
    ElfW(Phdr) segment = {.p_type = PT_LOAD, .p_memsz = BYTES};
    struct dl_phdr_info info = {.dlpi_name = name, .dlpi_phdr = &segment, .dlpi_phnum = 1};
    info.dlpi_adds = STAYING + turn + 1;
    info.dlpi_subs = turn;
    int stop = 0;
    for (unsigned i = 0; i <= STAYING && !stop; i++) {
        info.dlpi_addr = place(i < STAYING ? i : STAYING + turn % 2);
        snprintf(name, sizeof name, i < STAYING ? "stays-%u" : "comes-%u", i < STAYING ? i : turn);
        stop = visit(&info, sizeof info, arg);
    }
    return stop;
}

static uint64_t ns_of_turns(unsigned turns)
{
    struct timespec begin, end;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &begin);
    for (unsigned i = 0; i < turns; i++) {
        turn++;
        ca_modules_note();
    }
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &end);
    return (uint64_t)(end.tv_sec - begin.tv_sec) * 1000000000u + (uint64_t)end.tv_nsec -
           (uint64_t)begin.tv_nsec;
}

static void each_is_known_while_it_is_there(void **state)
{
    (void)state;
    ca_modules_note();
    uint32_t first = ca_modules_epoch();
    ns_of_turns(2);
    uintptr_t address = place(STAYING) + 5;
    assert_string_equal(ca_modules_find(address, first)->path, "comes-0");
    assert_null(ca_modules_find(address, first + 1));
    assert_string_equal(ca_modules_find(address, first + 2)->path, "comes-2");
    assert_string_equal(ca_modules_find(address + BYTES, first + 1)->path, "comes-1");
    assert_string_equal(ca_modules_find(place(7), first + 2)->path, "stays-7");
    assert_int_equal(ca_modules_find(place(7), first + 2)->from, first);
}

static void a_look_takes_no_longer_where_many_were_closed(void **state)
{
    (void)state;
    uint64_t before = ns_of_turns(200);
    ns_of_turns(5000);
    uint64_t after = ns_of_turns(200);
    print_message("200 looks: %llu us, after 5000 were closed %llu us\n",
                  (unsigned long long)before / 1000, (unsigned long long)after / 1000);
    assert_true(after < 5 * before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_known_while_it_is_there),
        cmocka_unit_test(a_look_takes_no_longer_where_many_were_closed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
