/* Patterns in paths. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "config/options.h"
#include "base/path.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static const char *const ranks[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK",
                                    "SLURM_PROCID"};
static const char *const local_ranks[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID",
                                          "MPI_LOCALRANKID", "LOCAL_RANK"};

static char said[512];
static char path[4096];

static int no_launcher(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(ranks); i++)
        unsetenv(ranks[i]);
    for (size_t i = 0; i < COUNT(local_ranks); i++)
        unsetenv(local_ranks[i]);
    unsetenv("CA_TEST");
    return 0;
}

static int check(const char *pattern)
{
    ca_text_t why;
    ca_text_init(&why, said, sizeof said);
    return ca_path_check(pattern, strlen(pattern), &why);
}

/* The whole way: what the configuration keeps, and what the exit makes of it. */
static const char *expand(const char *pattern, unsigned number)
{
    char settled[4096];
    ca_text_t text;
    ca_text_init(&text, settled, sizeof settled);
    ca_path_expand(pattern, &text);
    ca_text_init(&text, path, sizeof path);
    ca_path_finish(settled, number, &text);
    return path;
}

static const char *process_id(void)
{
    static char text[16];
    snprintf(text, sizeof text, "%d", (int)getpid());
    return text;
}

static void text_without_patterns_is_itself(void **state)
{
    (void)state;
    assert_int_equal(check("/tmp/a b{c}$d"), 0);
    assert_string_equal(expand("/tmp/a b{c}$d", 1), "/tmp/a b{c}$d");
    assert_string_equal(expand("", 1), "");
}

static void process_number_and_percent(void **state)
{
    char expected[64];
    (void)state;
    snprintf(expected, sizeof expected, "a-%s-7%%p%%", process_id());
    assert_int_equal(check("a-%p-%n%%p%%"), 0);
    assert_string_equal(expand("a-%p-%n%%p%%", 7), expected);
    assert_true(ca_path_is_numbered("%%%n"));
    assert_false(ca_path_is_numbered("%%n%p"));
}

static void the_time_is_in_seconds_since_1970(void **state)
{
    (void)state;
    long long before = (long long)time(NULL);
    long long there = atoll(expand("%t", 1));
    assert_in_range(there, before, (long long)time(NULL));
}

static void host_and_program_have_their_names(void **state)
{
    char host[256], expected[600];
    (void)state;
    assert_int_equal(gethostname(host, sizeof host), 0);
    snprintf(expected, sizeof expected, "%s/test_path", host);
    assert_string_equal(expand("%h/%e", 1), expected);
}

static void ranks_are_those_of_the_first_launcher(void **state)
{
    (void)state;
    for (size_t i = COUNT(ranks); i-- > 0;) {
        char value[16];
        snprintf(value, sizeof value, "%zu", i + 10);
        setenv(ranks[i], value, 1);
        assert_string_equal(expand("%r", 1), value);
        assert_string_equal(ca_path_rank(), value);
    }
    for (size_t i = COUNT(local_ranks); i-- > 0;) {
        char value[16];
        snprintf(value, sizeof value, "%zu", i + 20);
        setenv(local_ranks[i], value, 1);
        assert_string_equal(expand("%l", 1), value);
    }
}

static void one_rank_speaks_for_its_host(void **state)
{
    static const struct {
        const char *rank, *local;
        bool speaks;
    } rows[] = {{NULL, NULL, true}, {"0", NULL, true}, {"3", NULL, false}, {"3", "0", true},
                {"0", "1", false},  {"8", "00", true}, {"x", "y", true}};
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        no_launcher(NULL);
        if (rows[i].rank)
            setenv("PMI_RANK", rows[i].rank, 1);
        if (rows[i].local)
            setenv("MPI_LOCALRANKID", rows[i].local, 1);
        assert_int_equal(ca_path_speaks_for_host(), rows[i].speaks);
    }
}

static void a_rank_is_a_number(void **state)
{
    static const char *const others[] = {"", "first", "1x", "-1", "../2", "12345678901"};
    (void)state;
    setenv("SLURM_PROCID", "3", 1);
    for (size_t i = 0; i < COUNT(others); i++) {
        setenv("RANK", others[i], 1);
        assert_string_equal(expand("%r", 1), "3");
    }
}

static void without_a_launcher_ranks_are_the_process_id(void **state)
{
    (void)state;
    assert_null(ca_path_rank());
    assert_string_equal(expand("%r", 1), process_id());
    assert_string_equal(expand("%l", 1), process_id());
}

static void variables_are_put_in_and_are_no_patterns(void **state)
{
    (void)state;
    setenv("CA_TEST", "/tmp/%p%\n%", 1);
    assert_int_equal(check("%q{CA_TEST}/x}"), 0);
    assert_string_equal(expand("%q{CA_TEST}/x}", 1), "/tmp/%p%_%/x}");
    setenv("CA_TEST", "", 1);
    assert_int_equal(check("a%q{CA_TEST}b"), 0);
    assert_string_equal(expand("a%q{CA_TEST}b", 1), "ab");
}

static void another_process_has_its_own_names(void **state)
{
    const ca_path_process_t other = {.pid = 77, .rank = "5", .program = "a/b%p", .host = "node"},
                            unnumbered = {.pid = 78, .rank = "../x", .program = "", .host = ""};
    (void)state;
    setenv("RANK", "1", 1);
    setenv("LOCAL_RANK", "2", 1);
    ca_path_set_process(&other);
    assert_string_equal(expand("%p.%r.%l.%e.%h", 1), "77.5.77.a_b%p.node");
    ca_path_set_process(&unnumbered);
    assert_string_equal(expand("%p.%r.%e.%h", 1), "78.78..");
    ca_path_set_process(NULL);
    assert_string_equal(expand("%r.%l", 1), "1.2");
}

/* As expand(), for a path that is used later, by what has so many bytes for it. */
static const char *expand_here(const char *pattern, size_t bytes)
{
    char settled[4096];
    ca_text_t text;
    ca_text_init(&text, settled, bytes);
    ca_path_expand_here(pattern, &text);
    assert_true(text.length < bytes && strlen(settled) == text.length);
    ca_text_init(&text, path, sizeof path);
    ca_path_finish(settled, 1, &text);
    return path;
}

static void the_working_folder_comes_before_what_is_relative(void **state)
{
    char folder[] = "/tmp/ca_%p%%XXXXXX", wanted[128];
    (void)state;
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    snprintf(wanted, sizeof wanted, "%s/a/%s", folder, process_id());
    assert_string_equal(expand_here("a/%p", 4096), wanted);
    assert_string_equal(expand_here("/b/%%", 4096), "/b/%");
    setenv("CA_TEST", "/c", 1);
    assert_string_equal(expand_here("%q{CA_TEST}/d", 4096), "/c/d");
    size_t needed = strlen(folder) + 3 + strlen("/efg") + 1; /* each % of it is two */
    snprintf(wanted, sizeof wanted, "%s/efg", folder);
    assert_string_equal(expand_here("efg", needed), wanted);
    assert_string_equal(expand_here("efg", needed - 1), "efg");
    assert_string_equal(expand_here("efg", 4), "efg");
    assert_int_equal(rmdir(folder), 0);
    assert_string_equal(expand_here("efg", 4096), "efg");
    assert_int_equal(chdir("/"), 0);
    assert_string_equal(expand_here("efg", 4096), "/efg");
}

static void what_is_wrong_is_named(void **state)
{
    static const struct {
        const char *pattern, *says;
    } rows[] = {{"/tmp/%z", "has an unknown pattern %z"},
                {"%P", "has an unknown pattern %P"},
                {"% p", "has an unknown pattern % "},
                {"%\xc3\xa9", "has an unknown pattern %\xc3\xa9"},
                {"%\x1b", "has an unknown pattern %\\x1b"},
                {"a%", "ends in a lone %"},
                {"%%%", "ends in a lone %"},
                {"%q", "has a %q without its {VARIABLE}"},
                {"%q{", "has a %q without its {VARIABLE}"},
                {"%q{}", "has a %q without its {VARIABLE}"},
                {"%qCA_TEST}", "has a %q without its {VARIABLE}"},
                {"%q{CA_TEST", "has a %q without its {VARIABLE}"},
                {"%p%q{CA_TEST}", "names a variable that is not set, CA_TEST"}};
    (void)state;
    for (size_t i = 0; i < COUNT(rows); i++) {
        assert_int_equal(check(rows[i].pattern), -EINVAL);
        assert_string_equal(said, rows[i].says);
        assert_int_equal(ca_path_check(rows[i].pattern, strlen(rows[i].pattern), NULL), -EINVAL);
    }
}

static void complain(void *arg, const char *message)
{
    (void)arg;
    snprintf(said, sizeof said, "%s", message);
}

static void the_option_refuses_it_and_stays(void **state)
{
    static ca_options_t options;
    (void)state;
    ca_options_default(&options);
    assert_int_equal(
        ca_options_parse(&options, "ALLOC_CONF", "leak_report:'/tmp/%z'", complain, NULL), 1);
    assert_non_null(strstr(said, "character 13: leak_report:'/tmp/%z' has an unknown pattern %z; "
                                 "accepted: stderr, off, or a path with %p: process id"));
    assert_non_null(strstr(said, "%%: %; stays stderr"));
    assert_string_equal(options.leak_report, "stderr");
}

static void any_pattern_is_survived(void **state)
{
    static const char pieces[] = "%%%%qprlhetnz{}/aC\xc3\xa9";
    unsigned seed = 1;
    (void)state;
    for (int round = 0; round < 20000; round++) {
        size_t length = (size_t)rand_r(&seed) % 24;
        char *text = malloc(length + 1); /* its own block: a sanitizer sees a read past its end */
        for (size_t i = 0; i < length; i++)
            text[i] = pieces[(size_t)rand_r(&seed) % (sizeof pieces - 1)];
        text[length] = '\0';
        bool good = ca_path_check(text, length, NULL) == 0;
        assert_int_equal(check(text) == 0, good);
        expand(text, 1);
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(text_without_patterns_is_itself, no_launcher),
        cmocka_unit_test_setup(process_number_and_percent, no_launcher),
        cmocka_unit_test_setup(the_time_is_in_seconds_since_1970, no_launcher),
        cmocka_unit_test_setup(host_and_program_have_their_names, no_launcher),
        cmocka_unit_test_setup(ranks_are_those_of_the_first_launcher, no_launcher),
        cmocka_unit_test_setup(one_rank_speaks_for_its_host, no_launcher),
        cmocka_unit_test_setup(a_rank_is_a_number, no_launcher),
        cmocka_unit_test_setup(without_a_launcher_ranks_are_the_process_id, no_launcher),
        cmocka_unit_test_setup(variables_are_put_in_and_are_no_patterns, no_launcher),
        cmocka_unit_test_setup(another_process_has_its_own_names, no_launcher),
        cmocka_unit_test_setup(the_working_folder_comes_before_what_is_relative, no_launcher),
        cmocka_unit_test_setup(what_is_wrong_is_named, no_launcher),
        cmocka_unit_test_setup(the_option_refuses_it_and_stays, no_launcher),
        cmocka_unit_test_setup(any_pattern_is_survived, no_launcher),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
