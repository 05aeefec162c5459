/* What the writers of reports in other formats than text promise on their own. That others can read
 * them is tests/test_formats.py's, for which this program writes files: test_formats DIRECTORY. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/mem.h"
#include "made_model.h"
#include "registry/report/formats.h"
#include "registry/stack/intern.h"

static const struct {
    const char *ending;
    void (*write)(ca_out_t *out, const ca_model_t *model);
} formats[] = {
    {"pprof", ca_format_pprof},
    {"folded", ca_format_folded},
    {"pickle", ca_format_pytorch},
};

static ca_out_t out;

/* --- tables of numbers ------------------------------------------------------------------------ */

static void keys_are_numbered_as_they_first_come(void **state)
{
    ca_intern_t table = {0};
    (void)state;
    for (uint64_t round = 0; round < 2; round++)
        for (uint64_t i = 0; i < 50000; i++)
            assert_int_equal(ca_intern(&table, i / 3, i % 3), i);
    assert_int_equal(table.count, 50000);
    assert_int_equal(table.keys[49999].a, 49999 / 3);
    assert_false(table.failed);
    ca_intern_free(&table);
}

static void texts_are_the_same_by_their_characters(void **state)
{
    ca_intern_t table = {.texts = true};
    char one[] = "one", again[] = "one";
    (void)state;
    assert_int_equal(ca_intern_text(&table, ""), 0);
    assert_int_equal(ca_intern_text(&table, one), 1);
    assert_int_equal(ca_intern_text(&table, "two"), 2);
    assert_int_equal(ca_intern_text(&table, again), 1);
    assert_int_equal(ca_intern_text(&table, ""), 0);
    ca_intern_free(&table);
}

/* --- writers ---------------------------------------------------------------------------------- */

/* Bytes written, or a negative errno. */
static long write_to(int fd, size_t format, const ca_model_t *model)
{
    ca_out_open(&out, fd);
    formats[format].write(&out, model);
    int error = ca_out_flush(&out);
    return error ? error : lseek(fd, 0, SEEK_CUR);
}

static void nothing_stays_mapped(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(formats); i++) {
        int fd = memfd_create("report", 0);
        size_t before = ca_mem_mapped();
        assert_true(write_to(fd, i, &made_model) > 0);
        assert_int_equal(ca_mem_mapped(), before);
        close(fd);
    }
}

static void a_report_of_nothing_is_written(void **state)
{
    static const ca_model_t nothing = {
        .version = "0", .cause = "dump", .program = "p", .host = "h", .rank = ""};
    (void)state;
    for (size_t i = 0; i < COUNT(formats); i++) {
        int fd = memfd_create("report", 0);
        assert_true(write_to(fd, i, &nothing) >= 0);
        close(fd);
    }
}

static void a_full_disk_is_told(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(formats); i++) {
        int fd = open("/dev/full", O_WRONLY);
        assert_int_equal(write_to(fd, i, &made_model), -ENOSPC);
        close(fd);
    }
}

static void without_memory_a_writer_says_so(void **state)
{
    struct rlimit before, none = {0};
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    skip(); /* it needs address space of its own */
#endif
    for (size_t i = 0; i < COUNT(formats); i++) {
        int fd = memfd_create("report", 0);
        getrlimit(RLIMIT_AS, &before);
        none.rlim_max = before.rlim_max;
        setrlimit(RLIMIT_AS, &none);
        long result = write_to(fd, i, &made_model);
        setrlimit(RLIMIT_AS, &before);
        if (formats[i].write == ca_format_folded) /* which needs none */
            assert_true(result > 0);
        else
            assert_int_equal(result, -ENOMEM);
        close(fd);
    }
}

/* --- files for others ------------------------------------------------------------------------- */

static int write_files(const char *directory)
{
    char path[4096];
    for (size_t i = 0; i < COUNT(formats); i++) {
        snprintf(path, sizeof path, "%s/made.%s", directory, formats[i].ending);
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
        if (fd < 0 || write_to(fd, i, &made_model) < 0)
            return 1;
        close(fd);
    }
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_are_numbered_as_they_first_come),
        cmocka_unit_test(texts_are_the_same_by_their_characters),
        cmocka_unit_test(nothing_stays_mapped),
        cmocka_unit_test(a_report_of_nothing_is_written),
        cmocka_unit_test(a_full_disk_is_told),
        cmocka_unit_test(without_memory_a_writer_says_so),
    };
    made_model_init();
    if (argc > 1)
        return write_files(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
