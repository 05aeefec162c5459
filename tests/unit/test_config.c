/* Log lines, buffered output and the escaping of what others named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "capture.h"
#include "base/clock.h"
#include "base/log.h"
#include "config/options.h"
#include "base/out.h"
#include "base/text.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

/* --- helpers ---------------------------------------------------------------------------------- */

static const char *expected(const char *text)
{
    static char line[256];
    snprintf(line, sizeof line, "cachealloc[%d]: %s\n", (int)getpid(), text);
    return line;
}

/* --- log -------------------------------------------------------------------------------------- */

static void a_message_is_one_line_with_process_and_level(void **state)
{
    (void)state;
    ca_log_set_level(CA_LOG_DEBUG);
    capture_start();
    ca_warn("pool of %d", 7);
    capture_stop();
    assert_string_equal(captured, expected("warning: pool of 7"));
    capture_start();
    ca_error("x");
    capture_stop();
    assert_string_equal(captured, expected("error: x"));
    capture_start();
    ca_info("x");
    capture_stop();
    assert_string_equal(captured, expected("x"));
}

static void levels_above_the_chosen_one_are_silent(void **state)
{
    (void)state;
    capture_start();
    ca_log_set_level(CA_LOG_OFF);
    ca_error("no");
    ca_log(CA_LOG_OFF, "no");
    ca_log_set_level(CA_LOG_ERROR);
    ca_warn("no");
    ca_error("yes");
    ca_log_set_level(CA_LOG_WARN);
    capture_stop();
    assert_string_equal(captured, expected("error: yes"));
}

static void a_long_message_is_cut_with_dots(void **state)
{
    static char text[5000];
    (void)state;
    for (size_t length = 900; length < 4000; length += 13) {
        memset(text, 'a', sizeof text);
        for (size_t i = 500; i + 1 < length; i += 2)
            memcpy(text + i, "\xc3\xa9", 2);
        text[length] = '\0';
        capture_start();
        ca_warn("%s", text);
        size_t written = capture_stop();
        assert_true(written <= 1024);
        assert_int_equal(captured[written - 1], '\n');
        assert_ptr_equal(strchr(captured, '\n'), captured + written - 1);
        if (length > 1024)
            assert_string_equal(captured + written - 4, "...\n");
        assert_null(strstr(captured, "\\x"));
    }
}

static void control_characters_cannot_forge_a_line(void **state)
{
    (void)state;
    capture_start();
    ca_warn("%s", "a\nb\x1b[1m\xff\xc3\xa9");
    capture_stop();
    assert_string_equal(captured, expected("warning: a\\x0ab\\x1b[1m\\xff\xc3\xa9"));
}

static void errno_survives_a_message(void **state)
{
    (void)state;
    capture_start();
    int kept = dup(STDERR_FILENO);
    close(STDERR_FILENO);
    errno = ENODEV;
    ca_warn("to a closed descriptor");
    int after = errno;
    dup2(kept, STDERR_FILENO);
    close(kept);
    errno = ENOENT;
    ca_warn("%m");
    capture_stop();
    assert_int_equal(after, ENODEV);
    assert_string_equal(captured, expected("warning: No such file or directory"));
}

static void warn_once_says_it_once(void **state)
{
    (void)state;
    capture_start();
    for (int i = 0; i < 5; i++)
        ca_warn_once("once");
    capture_stop();
    assert_string_equal(captured, expected("warning: once"));
}

static void *write_lines(void *arg)
{
    for (int i = 0; i < 100; i++)
        ca_warn("%s", (const char *)arg);
    return NULL;
}

static void lines_of_several_threads_do_not_mix(void **state)
{
    static char texts[4][60];
    pthread_t threads[4];
    (void)state;
    capture_start();
    fcntl(STDERR_FILENO, F_SETPIPE_SZ, 1 << 20);
    for (int i = 0; i < 4; i++) {
        memset(texts[i], 'a' + i, sizeof texts[i] - 1);
        pthread_create(&threads[i], NULL, write_lines, texts[i]);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    capture_stop();
    int lines = 0;
    for (char *line = strtok(captured, "\n"); line; line = strtok(NULL, "\n"), lines++) {
        const char *text = strstr(line, "warning: ");
        assert_non_null(text);
        text += strlen("warning: ");
        assert_string_equal(text, texts[*text - 'a']);
    }
    assert_int_equal(lines, 400);
}

/* --- out -------------------------------------------------------------------------------------- */

static ca_out_t out;

static void output_arrives_whole_and_in_order(void **state)
{
    FILE *file = tmpfile();
    char line[64], expect[64];
    (void)state;
    ca_out_open(&out, fileno(file));
    for (int i = 0; i < 5000; i++)
        ca_out_printf(&out, "line %d\n", i);
    assert_int_equal(ca_out_flush(&out), 0);
    rewind(file);
    for (int i = 0; i < 5000; i++) {
        snprintf(expect, sizeof expect, "line %d\n", i);
        assert_non_null(fgets(line, sizeof line, file));
        assert_string_equal(line, expect);
    }
    assert_null(fgets(line, sizeof line, file));
    fclose(file);
}

static void an_oversized_piece_is_cut_and_keeps_its_newline(void **state)
{
    static char big[20000], got[20000];
    FILE *file = tmpfile();
    (void)state;
    memset(big, 'x', sizeof big - 1);
    ca_out_open(&out, fileno(file));
    ca_out_printf(&out, "before\n");
    ca_out_printf(&out, "%s\n", big);
    ca_out_printf(&out, "after\n");
    assert_int_equal(ca_out_flush(&out), 0);
    size_t length = (size_t)pread(fileno(file), got, sizeof got - 1, 0);
    got[length] = '\0';
    assert_true(length > 8000 && length < 8300);
    assert_int_equal(strncmp(got, "before\nxxx", 10), 0);
    assert_string_equal(got + length - strlen("xx...\nafter\n"), "xx...\nafter\n");
    fclose(file);
}

static void bytes_of_any_value_and_number_arrive(void **state)
{
    static char bytes[30000], got[40000];
    FILE *file = tmpfile();
    size_t written = 0;
    (void)state;
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (char)(i * 7 + i / 256);
    ca_out_open(&out, fileno(file));
    ca_out_printf(&out, "before");
    for (size_t step = 1; written < sizeof bytes; step = step * 3 + 1) {
        size_t left = sizeof bytes - written, length = step < left ? step : left;
        ca_out_bytes(&out, bytes + written, length);
        written += length;
    }
    ca_out_printf(&out, "after");
    assert_int_equal(ca_out_flush(&out), 0);
    assert_int_equal(pread(fileno(file), got, sizeof got, 0), 6 + sizeof bytes + 5);
    assert_memory_equal(got, "before", 6);
    assert_memory_equal(got + 6, bytes, sizeof bytes);
    assert_memory_equal(got + 6 + sizeof bytes, "after", 5);
    fclose(file);
}

static void what_a_writer_gives_up_fails_as_a_write_would(void **state)
{
    FILE *file = tmpfile();
    char got[16];
    (void)state;
    ca_out_open(&out, fileno(file));
    ca_out_printf(&out, "part");
    ca_out_fail(&out, -ENOMEM);
    ca_out_fail(&out, -EIO);
    ca_out_bytes(&out, "rest", 4);
    assert_int_equal(ca_out_flush(&out), -ENOMEM);
    assert_int_equal(pread(fileno(file), got, sizeof got, 0), 4);
    fclose(file);
}

static void a_full_disk_is_remembered_and_not_raised(void **state)
{
    int fd = open("/dev/full", O_WRONLY);
    (void)state;
    assert_true(fd >= 0);
    ca_out_open(&out, fd);
    errno = 0;
    for (int i = 0; i < 5000; i++)
        ca_out_printf(&out, "line %d\n", i);
    assert_int_equal(ca_out_flush(&out), -ENOSPC);
    assert_int_equal(ca_out_flush(&out), -ENOSPC);
    assert_int_equal(errno, 0);
    close(fd);
    ca_out_open(&out, fd);
    ca_out_printf(&out, "x");
    assert_int_equal(ca_out_flush(&out), -EBADF);
}

static void a_reader_that_went_away_raises_no_signal(void **state)
{
    int ends[2];
    sigset_t before, after;
    (void)state;
    assert_int_equal(pipe(ends), 0);
    close(ends[0]);
    signal(SIGPIPE, SIG_DFL);
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    assert_int_equal(ca_out_write(ends[1], "x", 1, 0), -EPIPE);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    assert_int_equal(sigismember(&after, SIGPIPE), sigismember(&before, SIGPIPE));
    close(ends[1]);
}

static void a_limit_on_the_size_of_files_raises_no_signal(void **state)
{
    struct rlimit before, small = {.rlim_cur = 4};
    FILE *file = tmpfile();
    (void)state;
    assert_non_null(file);
    signal(SIGXFSZ, SIG_DFL);
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    setrlimit(RLIMIT_FSIZE, &small);
    int rc = ca_out_write(fileno(file), "too long", 8, 0);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(rc, -EFBIG);
    fclose(file);
}

static void a_full_pipe_is_waited_for_only_so_long(void **state)
{
    static char big[1 << 20];
    int ends[2];
    (void)state;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    assert_int_equal(ca_out_write(ends[1], big, sizeof big, 0), -EAGAIN);
    assert_int_equal(ca_out_write(ends[1], big, sizeof big, 5), -EAGAIN);
    close(ends[0]);
    close(ends[1]);
}

/* In the place of the C library's: kernels before 6.4 have no such write for pipes. */
static bool kernel_is_old;

ssize_t pwritev2(int fd, const struct iovec *pieces, int count, off_t offset, int flags)
{
    if (kernel_is_old) {
        errno = EOPNOTSUPP;
        return -1;
    }
    return syscall(SYS_pwritev2, fd, pieces, count, offset, 0, flags);
}

/* A pipe or a socket that blocks, too: its reader may be there and read nothing. */
static void what_blocks_is_waited_for_only_so_long(void **state)
{
    static char big[1 << 20];
    int ends[2];
    (void)state;
    ca_clock_divide(500);
    alarm(10); /* what waits for ever fails */
    for (int i = 0; i < 3; i++) {
        kernel_is_old = i == 1;
        assert_int_equal(i == 2 ? socketpair(AF_UNIX, SOCK_STREAM, 0, ends) : pipe(ends), 0);
        assert_int_equal(ca_out_write(ends[1], big, sizeof big, 0), -EAGAIN);
        if (i != 2) /* a last word in the last page */
            assert_int_equal(ca_out_write(ends[1], "full\n", 5, 0), 0);
        close(ends[0]);
        assert_int_equal(ca_out_write(ends[1], "x", 1, 0), -EPIPE);
        close(ends[1]);
    }
    alarm(0);
    kernel_is_old = false;
    ca_clock_divide(1);
}

static void fill(int fd)
{
    static char page[4096];
    while (write(fd, page, sizeof page) > 0 || write(fd, page, 1) > 0) {
    }
}

static void it_is_waited_for_in_vain_once(void **state)
{
    static char big[1 << 20];
    int ends[2];
    (void)state;
    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    fill(ends[1]);
    assert_int_equal(ca_out_write(ends[1], "x", 1, 5), -EAGAIN);
    alarm(10);
    assert_int_equal(ca_out_write(ends[1], "x", 1, 60000), -EAGAIN);
    alarm(0);
    assert_true(read(ends[0], big, sizeof big) > 0);
    assert_int_equal(ca_out_write(ends[1], "x", 1, 0), 0);
    fill(ends[1]);
    uint64_t before = ca_clock_ns();
    assert_int_equal(ca_out_write(ends[1], "x", 1, 20), -EAGAIN);
    assert_true(ca_clock_ns() - before >= UINT64_C(19000000));
    close(ends[0]);
    close(ends[1]);
}

static void *warn_although_cancelled(void *arg)
{
    pthread_cancel(pthread_self());
    ca_warn("heard");
    ca_out_open(&out, STDERR_FILENO);
    ca_out_printf(&out, "too\n");
    ca_out_flush(&out);
    *(bool *)arg = true;
    pthread_testcancel();
    return NULL;
}

static void output_is_no_place_to_be_cancelled(void **state)
{
    bool finished = false;
    pthread_t thread;
    void *result;
    (void)state;
    capture_start();
    assert_int_equal(pthread_create(&thread, NULL, warn_although_cancelled, &finished), 0);
    pthread_join(thread, &result);
    capture_stop();
    assert_non_null(strstr(captured, "warning: heard\ntoo\n"));
    assert_true(finished);
    assert_ptr_equal(result, PTHREAD_CANCELED);
}

/* --- stack use -------------------------------------------------------------------------------- */

#define PAINTED_BYTES (256 << 10)
#define PAINT 0x5a

/* How much of a thread's stack `work` used at its deepest, glibc's own part included. */
static size_t stack_used_by(void *(*work)(void *))
{
    static _Alignas(64) unsigned char stack[PAINTED_BYTES];
    pthread_attr_t attributes;
    pthread_t thread;
    size_t untouched = 0;
    memset(stack, PAINT, sizeof stack);
    pthread_attr_init(&attributes);
    assert_int_equal(pthread_attr_setstack(&attributes, stack, sizeof stack), 0);
    assert_int_equal(pthread_create(&thread, &attributes, work, NULL), 0);
    pthread_join(thread, NULL);
    pthread_attr_destroy(&attributes);
    while (untouched < sizeof stack && stack[untouched] == PAINT)
        untouched++;
    return sizeof stack - untouched;
}

static void *do_nothing(void *arg)
{
    return arg;
}

static void complain_by_log(void *arg, const char *message)
{
    (void)arg;
    ca_warn("%s", message);
}

static char configuration[4096];

static void *read_configuration(void *arg)
{
    static ca_options_t options;
    ca_options_default(&options);
    ca_options_parse(&options, "ALLOC_CONF", configuration, complain_by_log, NULL);
    return arg;
}

static void ignore_line(void *arg, const char *line)
{
    (void)arg, (void)line;
}

static void *show_help(void *arg)
{
    static ca_options_t options;
    ca_options_default(&options);
    ca_options_help(&options, ignore_line, NULL);
    return arg;
}

/* Programs with thread stacks of 16 KiB are not to overflow them by their first allocation. */
static void reading_the_configuration_needs_little_stack(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip(); /* the sanitizers' frames are larger */
#endif
    char *at = configuration + sprintf(configuration, "leak_repot:1,leak_report:'\x01");
    memset(at, 'x', 2000);
    strcpy(at + 2000, "',log:loud");
    size_t idle = stack_used_by(do_nothing);
    capture_start();
    size_t reading = stack_used_by(read_configuration);
    capture_stop();
    size_t helping = stack_used_by(show_help);
    assert_non_null(strstr(captured, "leak_report"));
    assert_non_null(strstr(captured, "loud"));
    assert_in_range(reading - idle, 1000, 8 << 10);
    assert_in_range(helping - idle, 100, 4 << 10);
}

/* --- text ------------------------------------------------------------------------------------- */

static void escaping_is_bounded_and_changes_nothing_when_repeated(void **state)
{
    unsigned seed = 1;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        char noise[40], once[256], twice[256];
        ca_text_t text;
        size_t length = (size_t)(rand_r(&seed) % 40), most = (size_t)(rand_r(&seed) % 60);
        for (size_t i = 0; i < length; i++)
            noise[i] = (char)(rand_r(&seed) % 3 ? (i % 2 ? 0x80 : 0xc0) + rand_r(&seed) % 64
                                                : rand_r(&seed) % 256);
        ca_text_init(&text, once, sizeof once);
        ca_text_escape(&text, noise, length, most);
        assert_true(text.length <= most);
        assert_int_equal(strlen(once), text.length);
        ca_text_init(&text, twice, sizeof twice);
        ca_text_escape(&text, once, strlen(once), sizeof twice);
        assert_string_equal(twice, once);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_is_one_line_with_process_and_level),
        cmocka_unit_test(levels_above_the_chosen_one_are_silent),
        cmocka_unit_test(a_long_message_is_cut_with_dots),
        cmocka_unit_test(control_characters_cannot_forge_a_line),
        cmocka_unit_test(errno_survives_a_message),
        cmocka_unit_test(warn_once_says_it_once),
        cmocka_unit_test(lines_of_several_threads_do_not_mix),
        cmocka_unit_test(output_arrives_whole_and_in_order),
        cmocka_unit_test(an_oversized_piece_is_cut_and_keeps_its_newline),
        cmocka_unit_test(bytes_of_any_value_and_number_arrive),
        cmocka_unit_test(what_a_writer_gives_up_fails_as_a_write_would),
        cmocka_unit_test(a_full_disk_is_remembered_and_not_raised),
        cmocka_unit_test(a_reader_that_went_away_raises_no_signal),
        cmocka_unit_test(a_limit_on_the_size_of_files_raises_no_signal),
        cmocka_unit_test(a_full_pipe_is_waited_for_only_so_long),
        cmocka_unit_test(what_blocks_is_waited_for_only_so_long),
        cmocka_unit_test(it_is_waited_for_in_vain_once),
        cmocka_unit_test(output_is_no_place_to_be_cancelled),
        cmocka_unit_test(reading_the_configuration_needs_little_stack),
        cmocka_unit_test(escaping_is_bounded_and_changes_nothing_when_repeated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
