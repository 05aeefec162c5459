/* ALLOC_CONF: what is read, what is refused and how, and that print is read back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "config/numbers.h"
#include "config/options.h"
#include "config/values.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- helpers ---------------------------------------------------------------------------------- */

typedef struct complaints {
    int count;
    char first[1024], last[1024];
} complaints_t;

static void complain(void *arg, const char *message)
{
    complaints_t *complaints = arg;
    assert_true(strlen(message) < 768);
    for (const char *c = message; *c != '\0'; c++)
        assert_true((unsigned char)*c >= 0x20 && *c != 0x7f);
    if (complaints->count++ == 0)
        strcpy(complaints->first, message);
    strcpy(complaints->last, message);
}

static ca_options_t options;
static complaints_t complaints;

static int parse(const char *text)
{
    memset(&complaints, 0, sizeof complaints);
    ca_options_default(&options);
    return ca_options_parse(&options, "ALLOC_CONF", text, complain, &complaints);
}

static void assert_says(const char *piece)
{
    if (!strstr(complaints.first, piece))
        fail_msg("\"%s\" lacks \"%s\"", complaints.first, piece);
}

static uint64_t random_state = 0x9e3779b97f4a7c15u;

static uint64_t random64(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state * 0x2545f4914f6cdd1du;
}

/* Small, large, round and extreme ones alike. */
static uint64_t random_between(uint64_t least, uint64_t most)
{
    uint64_t value = random64() >> random64() % 64;
    if (random64() % 3 == 0)
        value = value >> 30 << random64() % 31;
    if (random64() % 16 == 0)
        value = most;
    if (value < least || value > most)
        value = most - least == UINT64_MAX ? value : least + value % (most - least + 1);
    return value;
}

static int choice_count(const char *choices)
{
    int count = 1;
    for (; *choices != '\0'; choices++)
        count += *choices == '|';
    return count;
}

static void random_string(char *value)
{
    static const char alphabet[] = "ab/%p.,:='\" \\+|#$\xc3\xa9\xff";
    size_t length = random64() % 8 == 0 ? CA_STRING_MAX - 1 : 1 + random64() % 24;
    memset(value, 0, CA_STRING_MAX);
    for (size_t i = 0; i < length; i++)
        value[i] = alphabet[random64() % (sizeof alphabet - 1)];
}

static void drop_doubles(ca_size_list_t *list)
{
    size_t kept = 0;
    for (size_t i = 0; i < list->count; i++) {
        size_t j = 0, bytes = list->bytes[i];
        while (j < kept && list->bytes[j] != bytes)
            j++;
        if (j == kept)
            list->bytes[kept++] = bytes;
    }
    memset(list->bytes + kept, 0, (list->count - kept) * sizeof list->bytes[0]);
    list->count = kept;
}

static void random_value(const ca_option_t *option, void *value)
{
    switch (option->type) {
    case CA_TYPE_SIZE:
        *(size_t *)value = random_between(option->least, option->most);
        break;
    case CA_TYPE_SHARE: {
        ca_share_t *share = value;
        bool is_share = random64() & 1;
        share->of = is_share ? 1 + random64() % 1024 : 0;
        share->part = is_share ? 1 + random64() % share->of : 0;
        share->bytes = is_share ? 0 : random_between(option->least, option->most);
        break;
    }
    case CA_TYPE_UINT:
        *(unsigned *)value = (unsigned)random_between(option->least, option->most);
        break;
    case CA_TYPE_DURATION:
        *(uint64_t *)value = random_between(option->least, option->most);
        break;
    case CA_TYPE_BOOL:
        *(bool *)value = random64() & 1;
        break;
    case CA_TYPE_ENUM:
        *(int *)value = (int)(random64() % (uint64_t)choice_count(option->choices));
        break;
    case CA_TYPE_SET: /* one at least */
        *(unsigned *)value = (unsigned)random_between(1, (1u << choice_count(option->choices)) - 1);
        break;
    case CA_TYPE_CHOICE: {
        ca_choice_t *choice = value;
        choice->which = random64() % (uint64_t)choice_count(option->choices);
        bool sized = strcmp(option->choices, "all|sample:SIZE|off") == 0 && choice->which == 1;
        choice->bytes = sized ? random_between(option->least, option->most) : 0;
        break;
    }
    case CA_TYPE_STRING:
        random_string(value);
        break;
    case CA_TYPE_PATH:
        random_string(value);
        for (char *c = value; *c != '\0'; c++) /* patterns have tests of their own */
            *c = *c == '%' ? '_' : *c;
        break;
    case CA_TYPE_LIST: {
        ca_size_list_t *list = value;
        memset(list, 0, sizeof *list);
        list->count = random64() % (CA_LIST_MAX + 1);
        for (size_t i = 0; i < list->count; i++)
            list->bytes[i] = random_between(option->least, option->most);
        if (strcmp(option->choices, "distinct") == 0)
            drop_doubles(list);
        break;
    }
    case CA_TYPE_SIGNAL:
        *(int *)value = (int)random_between(0, 1) * SIGUSR1;
        break;
    }
}

/* Types that the table does not use yet are tested with lines of their own. */
static const ca_option_t a_duration = {
    .name = "wait", .type = CA_TYPE_DURATION, .most = 10000000000, .choices = ""};
static const ca_option_t a_list = {
    .name = "classes", .type = CA_TYPE_LIST, .least = 512, .most = SIZE_MAX, .choices = ""};

static const ca_option_t a_set = {.name = "kinds", .type = CA_TYPE_SET, .choices = "one|two|three"};

static int parse_value(const ca_option_t *option, const char *text, void *value)
{
    return ca_value_parse(option, text, strlen(text), value);
}

/* --- what is read ----------------------------------------------------------------------------- */

static void defaults_are_what_the_table_says(void **state)
{
    (void)state;
    ca_options_default(&options);
    for (size_t i = 0; i < ca_option_count; i++) {
        const ca_option_t *option = &ca_option_table[i];
        char buffer[4096];
        ca_text_t text;
        ca_text_init(&text, buffer, sizeof buffer);
        ca_value_print(option, (char *)&options + option->offset, &text);
        assert_string_equal(buffer, option->default_text);
        assert_true(option->least <= option->most);
        assert_true(option->help[0] != '\0' && option->when[0] != '\0');
    }
}

static void every_example_is_read_and_changes_something(void **state)
{
    (void)state;
    for (size_t i = 0; i < ca_option_count; i++) {
        const ca_option_t *option = &ca_option_table[i];
        char item[256], buffer[1024];
        ca_text_t text;
        snprintf(item, sizeof item, "%s:%s", option->name, option->example);
        assert_int_equal(parse(item), 0);
        assert_int_equal(complaints.count, 0);
        ca_text_init(&text, buffer, sizeof buffer);
        ca_value_print(option, (char *)&options + option->offset, &text);
        assert_string_not_equal(buffer, option->default_text);
    }
}

static void the_experimental_options_are_those_named_so(void **state)
{
    size_t of_level[CA_LEVELS] = {0};
    (void)state;
    for (size_t i = 0; i < ca_option_count; i++) {
        const ca_option_t *option = &ca_option_table[i];
        of_level[option->level]++;
        assert_int_equal(option->level == CA_LEVEL_EXPERIMENTAL,
                         strncmp(option->name, "x_", 2) == 0);
    }
    assert_in_range(of_level[CA_LEVEL_BASIC], 10, 14);
    assert_true(of_level[CA_LEVEL_ADVANCED] > 0 && of_level[CA_LEVEL_EXPERIMENTAL] > 0);
}

static void null_and_empty_items_change_nothing(void **state)
{
    static const char *const texts[] = {NULL, "", " ", ",", " , ,\t,\n"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        ca_options_t plain;
        ca_options_default(&plain);
        assert_int_equal(parse(texts[i]), 0);
        assert_memory_equal(&options, &plain, sizeof plain);
        assert_int_equal(complaints.count, 0);
    }
}

static void colons_equals_signs_and_spaces_all_separate(void **state)
{
    (void)state;
    assert_int_equal(parse(" limit : 64M ,leak_max=7,, \tfree_sync = YES\n, log:Debug "), 0);
    assert_int_equal(options.limit.bytes, 64u << 20);
    assert_int_equal(options.leak_max, 7);
    assert_true(options.free_sync);
    assert_int_equal(options.log, 4);
}

static void every_spelling_of_a_size_is_read(void **state)
{
    static const struct {
        const char *text;
        uint64_t bytes;
    } rows[] = {{"0", 0},
                {"512", 512},
                {"512B", 512},
                {"4K", 4096},
                {"4k", 4096},
                {"4KB", 4096},
                {"4kib", 4096},
                {"64M", 64u << 20},
                {"1G", 1u << 30},
                {"1.5G", 3u << 29},
                {"0.5K", 512},
                {"0.0009765625K", 1},
                {"1.25000000000000000000000000T", 5ull << 38},
                {"2T", 2ull << 40},
                {"0x1000", 4096},
                {"0X10K", 16384},
                {"0x1B", 27},
                {"inf", SIZE_MAX},
                {"INF", SIZE_MAX},
                {"18446744073709551615", UINT64_MAX},
                {"0xffffffffffffffff", UINT64_MAX},
                {"16777215T", 16777215ull << 40}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t bytes = 1;
        assert_int_equal(ca_size_parse(rows[i].text, strlen(rows[i].text), &bytes), 0);
        assert_int_equal(bytes, rows[i].bytes);
    }
}

static void what_is_no_size_is_refused(void **state)
{
    static const struct {
        const char *text;
        int rc;
    } rows[] = {{"", -EINVAL},
                {"-1", -EINVAL},
                {"+1", -EINVAL},
                {"1.5", -EINVAL},
                {"1.K", -EINVAL},
                {".5K", -EINVAL},
                {"1..5K", -EINVAL},
                {"1 K", -EINVAL},
                {"1iB", -EINVAL},
                {"1KK", -EINVAL},
                {"1P", -EINVAL},
                {"0x", -EINVAL},
                {"0x1.5K", -EINVAL},
                {"1e6", -EINVAL},
                {"infinite", -EINVAL},
                {"nan", -EINVAL},
                {"18446744073709551616", -ERANGE},
                {"99999999999999999999999", -ERANGE},
                {"0x10000000000000000", -ERANGE},
                {"16777216T", -ERANGE},
                {"16777215.9999999999999999T", 0}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        uint64_t bytes;
        assert_int_equal(ca_size_parse(rows[i].text, strlen(rows[i].text), &bytes), rows[i].rc);
    }
}

static void durations_need_a_unit(void **state)
{
    uint64_t value = 0;
    (void)state;
    assert_int_equal(parse_value(&a_duration, "250ns", &value), 0);
    assert_int_equal(value, 250);
    assert_int_equal(parse_value(&a_duration, "10MS", &value), 0);
    assert_int_equal(value, 10000000);
    assert_int_equal(parse_value(&a_duration, "1.5us", &value), 0);
    assert_int_equal(value, 1500);
    assert_int_equal(parse_value(&a_duration, "10s", &value), 0);
    assert_int_equal(value, 10000000000);
    assert_int_equal(parse_value(&a_duration, "10", &value), -EINVAL);
    assert_int_equal(parse_value(&a_duration, "1.5ns", &value), -EINVAL);
    assert_int_equal(parse_value(&a_duration, "11s", &value), -ERANGE);
    assert_int_equal(parse_value(&a_duration, "99999999999999s", &value), -ERANGE);
    assert_int_equal(value, 10000000000);
}

static void lists_are_joined_with_plus(void **state)
{
    ca_size_list_t list;
    char many[1024] = "1K";
    (void)state;
    assert_int_equal(parse_value(&a_list, "32K+256K + 1.5M", &list), 0);
    assert_int_equal(list.count, 3);
    assert_int_equal(list.bytes[0], 32 << 10);
    assert_int_equal(list.bytes[1], 256 << 10);
    assert_int_equal(list.bytes[2], 3 << 19);
    assert_int_equal(parse_value(&a_list, "1K++2K", &list), -EINVAL);
    assert_int_equal(parse_value(&a_list, "1K+", &list), -EINVAL);
    assert_int_equal(parse_value(&a_list, "1K+1", &list), -ERANGE);
    assert_int_equal(list.count, 3);
    for (int i = 1; i < CA_LIST_MAX; i++)
        strcat(many, "+1K");
    assert_int_equal(parse_value(&a_list, many, &list), 0);
    assert_int_equal(list.count, CA_LIST_MAX);
    strcat(many, "+1K");
    assert_int_equal(parse_value(&a_list, many, &list), -E2BIG);
    assert_int_equal(parse_value(&a_list, "none", &list), 0);
    assert_int_equal(list.count, 0);
}

static void sets_are_choices_joined_with_plus(void **state)
{
    static const char *const wrong[] = {"", "+", "one+", "+one", "one++two", "one+four", "one,two"};
    char accepted[64];
    unsigned set = 0;
    ca_text_t text;
    (void)state;
    assert_int_equal(parse_value(&a_set, "three", &set), 0);
    assert_int_equal(set, 4);
    assert_int_equal(parse_value(&a_set, "Two + one+two", &set), 0);
    assert_int_equal(set, 3);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_int_equal(parse_value(&a_set, wrong[i], &set), -EINVAL);
    assert_int_equal(set, 3);
    ca_text_init(&text, accepted, sizeof accepted);
    ca_value_accepted(&a_set, &text);
    assert_string_equal(accepted, "one, two, three, or several joined with +");
}

static void all_spellings_of_a_boolean_are_read(void **state)
{
    static const char *const yes[] = {"free_sync:true", "free_sync:1", "free_sync:on",
                                      "free_sync:yes", "free_sync:TRUE"};
    static const char *const no[] = {"free_sync:false", "free_sync:0", "free_sync:off",
                                     "free_sync:no", "free_sync:Off"};
    (void)state;
    for (size_t i = 0; i < 5; i++) {
        char both[64];
        assert_int_equal(parse(yes[i]), 0);
        assert_true(options.free_sync);
        snprintf(both, sizeof both, "free_sync:true,%s", no[i]);
        assert_int_equal(parse(both), 0);
        assert_false(options.free_sync);
    }
    assert_int_equal(parse("free_sync:2"), 1);
    assert_int_equal(parse("free_sync:tru"), 1);
    assert_int_equal(parse("help:1"), 0);
    assert_int_equal(options.help, CA_HELP_TRUE);
    assert_int_equal(parse("expandable_segments:off"), 0);
    assert_int_equal(options.expandable_segments, CA_EXPANDABLE_FALSE);
    assert_int_equal(parse("stats:true"), 1); /* is none of its words */
}

static void quoted_values_may_hold_commas_and_quotes(void **state)
{
    (void)state;
    assert_int_equal(parse("leak_report:'/tmp/a,b:c=d' , leak_max:3"), 0);
    assert_string_equal(options.leak_report, "/tmp/a,b:c=d");
    assert_int_equal(options.leak_max, 3);
    assert_int_equal(parse("leak_report:\"it's \"\"x\"\"\""), 0);
    assert_string_equal(options.leak_report, "it's \"x\"");
    assert_int_equal(parse("leak_report:/tmp/it's:there, leak_max : '4'"), 0);
    assert_string_equal(options.leak_report, "/tmp/it's:there");
    assert_int_equal(options.leak_max, 4);
}

static void the_words_in_the_place_of_a_path_are_read_in_any_case(void **state)
{
    (void)state;
    assert_int_equal(parse("leak_report:OFF,suppressions:'Off'"), 0);
    assert_string_equal(options.leak_report, "off");
    assert_string_equal(options.suppressions, "off");
    assert_int_equal(parse("leak_report:x,leak_report:StdErr,record:STDERR"), 0);
    assert_string_equal(options.leak_report, "stderr");
    assert_string_equal(options.record, "STDERR"); /* a path as any other there */
    assert_int_equal(parse("leak_report:./OFF"), 0);
    assert_string_equal(options.leak_report, "./OFF");
}

static void an_empty_path_is_refused(void **state)
{
    (void)state;
    assert_int_equal(parse("leak_report:''"), 1);
    assert_says("leak_report:'' has no value; accepted: stderr, off, or a path");
    assert_string_equal(options.leak_report, "stderr");
    assert_int_equal(parse("suppressions:\"\""), 1);
    assert_says("suppressions:\"\" has no value; accepted: off, or a path");
}

static void the_last_of_a_key_given_twice_wins(void **state)
{
    (void)state;
    assert_int_equal(parse("leak_max:3,leak_max:5"), 0);
    assert_int_equal(options.leak_max, 5);
}

/* --- what is refused -------------------------------------------------------------------------- */

static void an_unknown_key_is_named_with_its_place_and_a_suggestion(void **state)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"limt:1G", "character 1: unknown key \"limt\", did you mean \"limit\"?"},
        {"print:1, stakcs:all", "character 10: unknown key \"stakcs\", did you mean \"stacks\""},
        {"x-runtime-hook:1", "did you mean \"x_runtime_hooks\""},
        {"warmup:1", "did you mean \"x_warmup\""},
        {"LIMIT:1G", "did you mean \"limit\""},
        {"max_split_size:1G", "did you mean \"max_split\""},
        {"back:pool", "did you mean \"backend\""},
        {"quux:1", "help:true"},
        {"leak_report:\xc3\xa9\xc3\xa9,limt:1G", "character 16: "}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(parse(rows[i].text), 1);
        assert_int_equal(complaints.count, 1);
        assert_says(rows[i].says);
    }
}

static void assert_share(size_t part, size_t of, size_t bytes)
{
    assert_int_equal(options.limit.part, part);
    assert_int_equal(options.limit.of, of);
    assert_int_equal(options.limit.bytes, bytes);
}

static void a_limit_may_be_a_share_of_the_device(void **state)
{
    static const struct {
        const char *text, *why;
    } bad[] = {{"limit:0%", "limit:0% is out of range"},
               {"limit:101%", "limit:101% is out of range"},
               {"limit:99999999999999999999%", "is out of range"},
               {"limit:80 %", "limit:80 % is not understood"},
               {"limit:%", "limit:% is not understood"},
               {"limit:%80", "limit:%80 is not understood"},
               {"limit:1.5%", "limit:1.5% is not understood"},
               {"limit:-1%", "limit:-1% is not understood"},
               {"limit:80%%", "limit:80%% is not understood"},
               {"limit:1G%", "limit:1G% is not understood"},
               {"limit:0/4", "limit:0/4 is out of range"},
               {"limit:1/0", "limit:1/0 is out of range"},
               {"limit:5/4", "limit:5/4 is out of range"},
               {"limit:1/1025", "limit:1/1025 is out of range"},
               {"limit:1/99999999999999999999", "is out of range"},
               {"limit:1/", "limit:1/ is not understood"},
               {"limit:/4", "limit:/4 is not understood"},
               {"limit:/", "limit:/ is not understood"},
               {"limit:1/2/4", "limit:1/2/4 is not understood"},
               {"limit:1 / 4", "limit:1 / 4 is not understood"},
               {"limit:1/4G", "limit:1/4G is not understood"},
               {"limit:1/0x4", "limit:1/0x4 is not understood"},
               {"limit:1.0/4", "limit:1.0/4 is not understood"},
               {"limit:-1/4", "limit:-1/4 is not understood"},
               {"limit:1/4%", "limit:1/4% is not understood"},
               {"limit:0.25", "limit:0.25 is not understood"},
               {"headroom:10%", "headroom:10% is not understood; accepted: 0 to inf; stays 128M"}};
    (void)state;
    assert_int_equal(parse("limit:1%"), 0);
    assert_share(1, 100, 0);
    assert_int_equal(parse("limit:2G,limit:'100%'"), 0);
    assert_share(100, 100, 0);
    assert_int_equal(parse("limit:50%,limit:2G"), 0);
    assert_share(0, 0, 2ull << 30);
    assert_int_equal(parse("limit:1/4"), 0);
    assert_share(1, 4, 0);
    assert_int_equal(parse("limit:2G,limit:1024/1024"), 0);
    assert_share(1024, 1024, 0);
    assert_int_equal(parse("limit:2/3,limit:2G"), 0);
    assert_share(0, 0, 2ull << 30);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(parse(bad[i].text), 1);
        assert_says(bad[i].why);
        assert_share(0, 0, SIZE_MAX);
    }
    assert_int_equal(parse("limit:80%,limit:0%"), 1);
    assert_says("accepted: 1M to inf, 1% to 100%, or a fraction such as 1/4; stays 80%");
    assert_int_equal(parse("limit:3/8,limit:8/3"), 1);
    assert_says("accepted: 1M to inf, 1% to 100%, or a fraction such as 1/4; stays 3/8");
}

static void a_bad_value_is_told_with_what_is_accepted_and_the_earlier_stays(void **state)
{
    (void)state;
    assert_int_equal(parse("limit:2G,limit:12Q"), 1);
    assert_int_equal(options.limit.bytes, 2ull << 30);
    assert_says("character 16: limit:12Q is not understood; accepted: 1M to inf, 1% to 100%, or a "
                "fraction such as 1/4; stays 2G");
    assert_int_equal(parse("limit:1K"), 1);
    assert_says("limit:1K is out of range; accepted: 1M to inf, 1% to 100%, or a fraction such as "
                "1/4; stays inf");
    assert_int_equal(parse("stats:never"), 1);
    assert_says("stats:never is not understood; accepted: off, exit; stays off");
    assert_int_equal(parse("leak_max:4294967297"), 1);
    assert_says("leak_max:4294967297 is out of range; accepted: 0 to 1000000; stays 0");
    assert_int_equal(parse("free_sync:maybe"), 1);
    assert_says("accepted: true, false");
}

static void one_bad_item_does_not_spoil_the_others(void **state)
{
    (void)state;
    assert_int_equal(parse("leak_max:3,bogus:'a,b',limit:x,:5,print,print:1"), 4);
    assert_int_equal(complaints.count, 4);
    assert_int_equal(options.leak_max, 3);
    assert_true(options.print);
}

static void missing_keys_and_values_are_told(void **state)
{
    (void)state;
    assert_int_equal(parse("print:1,:5"), 1);
    assert_says("character 9: a key is missing");
    assert_int_equal(parse("limit"), 1);
    assert_says("limit: has no value");
    assert_int_equal(parse("leak_report:"), 1);
    assert_says("has no value");
    assert_string_equal(options.leak_report, "stderr");
}

static void a_bad_quote_costs_its_own_item_only(void **state)
{
    (void)state;
    assert_int_equal(parse("leak_report:'/tmp/x,leak_max:3"), 1);
    assert_says("lacks its closing quote");
    assert_int_equal(options.leak_max, 3);
    assert_int_equal(parse("leak_report:'/tmp'x,leak_max:3"), 1);
    assert_says("goes on after its closing quote");
    assert_int_equal(options.leak_max, 3);
}

static void strings_too_long_or_with_control_characters_are_refused(void **state)
{
    char text[2 * 4096];
    (void)state;
    for (size_t length = CA_STRING_MAX - 1; length < 4000;
         length += length == CA_STRING_MAX - 1 ? 1 : 977) {
        for (int quoted = 0; quoted < 2; quoted++) {
            sprintf(text, "leak_report:%s%0*d%s", quoted ? "'" : "", (int)length, 0,
                    quoted ? "'" : "");
            bool fits = length < CA_STRING_MAX;
            assert_int_equal(parse(text), !fits);
            assert_int_equal(strlen(options.leak_report), fits ? length : strlen("stderr"));
        }
    }
    assert_says("is too long");
    assert_int_equal(parse("leak_report:a\x1b[31mb"), 1);
    assert_says("leak_report:a\\x1b[31mb holds control characters");
}

static void messages_are_escaped_and_bounded(void **state)
{
    char text[20000];
    (void)state;
    assert_int_equal(parse("a\x01\xff\xc3\xa9:1"), 1);
    assert_says("unknown key \"a\\x01\\xff\xc3\xa9\"");
    memset(text, 'k', sizeof text);
    text[15000] = ':';
    text[sizeof text - 1] = '\0';
    assert_int_equal(parse(text), 1);
    assert_says("kkk...\"");
}

static void no_size_class_is_named_twice_or_zero(void **state)
{
    (void)state;
    ca_options_default(&options);
    assert_int_equal(options.size_classes.count, 0);
    assert_int_equal(parse("size_classes:2M+32K+256K"), 0);
    assert_int_equal(options.size_classes.count, 3);
    assert_int_equal(parse("size_classes:32K+1M+0x8000"), 1);
    assert_says("names a size twice");
    assert_says("up to 64 different sizes joined with +");
    assert_int_equal(parse("size_classes:32K+0"), 1);
    assert_says("is out of range");
    assert_int_equal(options.size_classes.count, 0);
}

static void roundup_takes_powers_of_two_only(void **state)
{
    (void)state;
    static const char *const bad[] = {"roundup:3", "roundup:128", "roundup:-1", "roundup:2M"};
    ca_options_default(&options);
    assert_int_equal(CA_ROUNDUP_STEPS(options.roundup), 0);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(parse(bad[i]), 1);
        assert_says("accepted: 0, 1, 2, 4, 8, 16, 32, 64; stays 0");
    }
    for (unsigned steps = 1; steps <= 64; steps *= 2) {
        char text[32];
        snprintf(text, sizeof text, "roundup:%u", steps);
        assert_int_equal(parse(text), 0);
        assert_int_equal(CA_ROUNDUP_STEPS(options.roundup), steps);
    }
}

static void a_choice_may_have_a_size(void **state)
{
    static const struct {
        const char *text;
        size_t which, bytes;
    } good[] = {
        {"stacks:all", CA_STACKS_ALL, 0},
        {"stacks:off", CA_STACKS_OFF, 0},
        {"stacks:sample:512K", CA_STACKS_SAMPLE, 512 << 10},
        {"stacks=sample=1", CA_STACKS_SAMPLE, 1},
        {"stacks: SAMPLE:0x1000 ", CA_STACKS_SAMPLE, 4096},
        {"stacks:'sample:1T'", CA_STACKS_SAMPLE, (size_t)1 << 40},
    };
    static const struct {
        const char *text, *why;
    } bad[] = {
        {"stacks:sample", "stacks:sample lacks its size; accepted: all, sample:SIZE with SIZE from "
                          "1 to 1T, off; stays all"},
        {"stacks:sample:", "stacks:sample: is not understood; accepted: all, sample:SIZE"},
        {"stacks:sample:often", "is not understood"},
        {"stacks:sample:0", "is out of range"},
        {"stacks:sample:2T", "is out of range"},
        {"stacks:sample:inf", "is out of range"},
        {"stacks:all:1M", "stacks:all:1M is not understood"},
        {"stacks:1M", "is not understood"},
        {"stacks:sampl:1M", "is not understood"},
        {"stacks::1M", "is not understood"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_int_equal(parse(good[i].text), 0);
        assert_int_equal(options.stacks.which, good[i].which);
        assert_int_equal(options.stacks.bytes, good[i].bytes);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(parse(bad[i].text), 1);
        assert_says(bad[i].why);
        assert_int_equal(options.stacks.which, CA_STACKS_ALL);
    }
}

static void noise_is_counted_but_not_all_listed(void **state)
{
    char text[4096] = "";
    (void)state;
    for (int i = 0; i < 1000; i++)
        strcat(text, "x:1,");
    assert_int_equal(parse(text), 1000);
    assert_int_equal(complaints.count, 17);
    assert_non_null(strstr(complaints.last, "more items"));
}

/* --- old names -------------------------------------------------------------------------------- */

static const ca_option_t *option_named(const char *name)
{
    for (size_t i = 0; i < ca_option_count; i++)
        if (strcmp(ca_option_table[i].name, name) == 0)
            return &ca_option_table[i];
    return NULL;
}

static void an_old_name_works_and_is_told_once_with_the_new_one(void **state)
{
    (void)state;
    assert_true(ca_renamed_count > 0);
    for (size_t i = 0; i < ca_renamed_count; i++) {
        const ca_renamed_t *renamed = &ca_renamed_table[i];
        if (!renamed->name)
            continue;
        const ca_option_t *option = option_named(renamed->name);
        const char *value = renamed->choice[0] ? "true" : option->example;
        const char *meant = renamed->choice[0] ? renamed->choice : option->example;
        char text[256], expected[256];
        ca_options_t as_new;
        assert_null(option_named(renamed->old));
        snprintf(text, sizeof text, "%s:%s", renamed->name, meant);
        assert_int_equal(parse(text), 0);
        as_new = options;
        snprintf(text, sizeof text, "print:0,%s:%s, %s=%s", renamed->old, value, renamed->old,
                 value);

        assert_int_equal(parse(text), 0);

        assert_memory_equal(&options, &as_new, sizeof options);
        snprintf(expected, sizeof expected,
                 "ALLOC_CONF character 9: \"%s\" is now \"%s%s%s\"; the old name still works",
                 renamed->old, renamed->name, renamed->choice[0] ? ":" : "", renamed->choice);
        assert_int_equal(complaints.count, 1);
        assert_string_equal(complaints.first, expected);
    }
}

static void a_removed_option_is_ignored_and_told_once(void **state)
{
    ca_options_t defaults;
    char text[256], expected[256];
    size_t removed = 0;

    (void)state;
    assert_int_equal(parse("print:0"), 0);
    defaults = options;
    for (size_t i = 0; i < ca_renamed_count; i++) {
        const ca_renamed_t *renamed = &ca_renamed_table[i];
        if (renamed->name)
            continue;
        removed++;
        assert_null(option_named(renamed->old));
        snprintf(text, sizeof text, "print:0,%s:4, %s=none", renamed->old, renamed->old);

        assert_int_equal(parse(text), 0);

        assert_memory_equal(&options, &defaults, sizeof options);
        snprintf(expected, sizeof expected,
                 "ALLOC_CONF character 9: \"%s\" is an option no more: %s; its value is ignored",
                 renamed->old, renamed->why);
        assert_int_equal(complaints.count, 1);
        assert_string_equal(complaints.first, expected);
    }
    assert_true(removed > 0);
}

static void an_old_switch_is_a_choice_beside_the_others(void **state)
{
    static const struct {
        const char *text, *debug;
    } rows[] = {{"zero:true", "zero"},
                {"zero:1,debug:frees", "frees+zero"},
                {"debug:frees+redzone,zero:on", "frees+redzone+zero"},
                {"zero:true,zero:false", "off"},
                {"debug:poison+zero,zero:false", "poison"},
                {"zero:false", "off"}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const ca_option_t *option = option_named("debug");
        char buffer[64];
        ca_text_t text;
        assert_int_equal(parse(rows[i].text), 0);
        ca_text_init(&text, buffer, sizeof buffer);
        ca_value_print(option, &options.debug, &text);
        assert_string_equal(buffer, rows[i].debug);
    }
}

static void a_bad_value_of_an_old_name_is_told_as_the_new_ones(void **state)
{
    (void)state;
    assert_int_equal(parse("settle:x"), 1);
    assert_int_equal(complaints.count, 2);
    assert_string_equal(complaints.last, "ALLOC_CONF character 8: x_warmup:x is not understood; "
                                         "accepted: 0 to 1000000000; stays 131072");
    assert_int_equal(parse("zero:maybe,zero,zero:"), 3);
    assert_string_equal(complaints.last, "ALLOC_CONF character 22: debug: has no value; accepted: "
                                         "off, frees, poison, redzone, zero, or several joined "
                                         "with +; stays off");
}

static void a_missing_complainer_is_no_problem(void **state)
{
    (void)state;
    ca_options_default(&options);
    assert_int_equal(ca_options_parse(&options, "ALLOC_CONF", "x:1,limit:y,print", NULL, NULL), 3);
}

/* --- showing ---------------------------------------------------------------------------------- */

static void what_is_printed_is_read_back_to_the_same_values(void **state)
{
    static char text[65536];
    (void)state;
    for (int round = 0; round < 20000; round++) {
        ca_options_t made;
        memset(&made, 0, sizeof made);
        for (size_t i = 0; i < ca_option_count; i++)
            random_value(&ca_option_table[i], (char *)&made + ca_option_table[i].offset);

        int length = ca_options_print(&made, text, sizeof text);

        assert_int_equal(length, strlen(text));
        assert_int_equal(parse(text), 0);
        assert_memory_equal(&options, &made, sizeof made);
    }
}

static void a_value_of_every_type_is_read_back(void **state)
{
    static const ca_option_t types[] = {
        {.type = CA_TYPE_SIZE, .most = SIZE_MAX, .choices = ""},
        {.type = CA_TYPE_UINT, .most = UINT_MAX, .choices = ""},
        {.type = CA_TYPE_DURATION, .most = UINT64_MAX, .choices = ""},
        {.type = CA_TYPE_ENUM, .choices = "one|two|three"},
        {.type = CA_TYPE_CHOICE, .most = SIZE_MAX, .choices = "all|sample:SIZE|off"},
        {.type = CA_TYPE_BOOL, .choices = ""},
        {.type = CA_TYPE_LIST, .most = SIZE_MAX, .choices = ""},
        {.type = CA_TYPE_SHARE, .most = SIZE_MAX, .choices = ""},
        {.type = CA_TYPE_SET, .choices = "one|two|three"},
        {.type = CA_TYPE_DURATION, .most = UINT64_MAX, .choices = "off"},
        {.type = CA_TYPE_SIGNAL, .choices = ""},
    };
    (void)state;
    for (int round = 0; round < 60000; round++) {
        const ca_option_t *option = &types[round % 8];
        ca_size_list_t made, read;
        char buffer[4096];
        ca_text_t text;
        memset(&made, 0, sizeof made);
        memset(&read, 0, sizeof read);
        random_value(option, &made);

        ca_text_init(&text, buffer, sizeof buffer);
        ca_value_print(option, &made, &text);

        assert_int_equal(ca_value_parse(option, buffer, text.length, &read), 0);
        assert_memory_equal(&read, &made, sizeof made);
    }
}

static void print_tells_the_length_it_would_have_had(void **state)
{
    char whole[4096], cut[32];
    (void)state;
    ca_options_default(&options);
    int length = ca_options_print(&options, whole, sizeof whole);
    memset(cut, 'x', sizeof cut);
    assert_int_equal(ca_options_print(&options, NULL, 0), length);
    assert_int_equal(ca_options_print(&options, cut, 16), length);
    assert_int_equal(strlen(cut), 15);
    assert_memory_equal(cut, whole, 15);
    assert_int_equal(cut[16], 'x');
}

static void count_line(void *arg, const char *text)
{
    char *all = arg;
    assert_null(strchr(text, '\n'));
    assert_true(strlen(text) < 1000);
    strcat(strcat(all, text), "\n");
}

static void help_names_the_basic_options_or_all_with_their_values(void **state)
{
    static char all[65536];
    (void)state;
    for (int every = 0; every < 2; every++) {
        all[0] = '\0';
        assert_int_equal(parse(every ? "limit:3G,help:all" : "limit:3G,help:true"), 0);
        ca_options_help(&options, count_line, all);
        for (size_t i = 0; i < ca_option_count; i++) {
            const ca_option_t *option = &ca_option_table[i];
            bool shown = every || option->level == CA_LEVEL_BASIC;
            char start[64];
            snprintf(start, sizeof start, "\n  %s:", option->name);
            assert_int_equal(strstr(all, start) != NULL, shown);
            assert_int_equal(strstr(all, option->help) != NULL, shown);
        }
        assert_non_null(strstr(all, "limit:3G  (size or share; default inf; accepted: 1M to inf, "
                                    "1% to 100%, or a fraction such as 1/4)"));
        assert_int_equal(strstr(all, "\nhelp:all lists all") != NULL, !every);
        assert_int_equal(strstr(all, "\nExperimental") != NULL, every);
    }
}

static void help_cuts_a_long_value(void **state)
{
    static char all[65536];
    char text[1024] = "help:all,size_classes:";
    (void)state;
    for (int i = 0; i < CA_LIST_MAX; i++)
        sprintf(text + strlen(text), "%s%d", i ? "+" : "", 1000001 + i);
    assert_int_equal(parse(text), 0);
    ca_options_help(&options, count_line, all);
    const char *shown = strstr(all, "size_classes:1000001+");
    assert_non_null(shown);
    shown += strlen("size_classes:");
    assert_int_equal(strcspn(shown, "."), 125);
    assert_memory_equal(shown + 125, "...  (list; default none; accepted: ", 36);
}

/* --- noise ------------------------------------------------------------------------------------ */

static void assert_options_sound(void)
{
    for (size_t i = 0; i < ca_option_count; i++) {
        const ca_option_t *option = &ca_option_table[i];
        const void *value = (char *)&options + option->offset;
        if (option->type == CA_TYPE_SIZE)
            assert_true(*(const size_t *)value >= option->least);
        if (option->type == CA_TYPE_SHARE) {
            const ca_share_t *share = value;
            assert_true(share->of ? share->part >= 1 && share->part <= share->of &&
                                        share->of <= 1024 && share->bytes == 0
                                  : share->bytes >= option->least);
        }
        if (option->type == CA_TYPE_UINT)
            assert_true(*(const unsigned *)value >= option->least &&
                        *(const unsigned *)value <= option->most);
        if (option->type == CA_TYPE_ENUM)
            assert_true(*(const int *)value >= 0 &&
                        *(const int *)value < choice_count(option->choices));
        if (option->type == CA_TYPE_CHOICE) {
            const ca_choice_t *choice = value;
            assert_true(choice->which < (size_t)choice_count(option->choices));
            assert_true(choice->bytes == 0 ||
                        (choice->bytes >= option->least && choice->bytes <= option->most));
        }
        if (option->type == CA_TYPE_STRING || option->type == CA_TYPE_PATH)
            assert_non_null(memchr(value, '\0', CA_STRING_MAX));
    }
}

static void any_bytes_are_survived(void **state)
{
    static const char pieces[] = ":=,'\" +./%0x19KMGTiBbnumsf\n\t\xff\xc3\xa9\xf0\x9f\x98\x80";
    (void)state;
    for (int round = 0; round < 30000; round++) {
        size_t length = random64() % 200;
        char *text = malloc(length + 1); /* its own block: a sanitizer sees a read past its end */
        size_t at = 0;
        while (at < length) {
            const ca_option_t *option = &ca_option_table[random64() % ca_option_count];
            size_t name = strlen(option->name);
            switch (random64() % 4) {
            case 0:
                text[at++] = (char)(1 + random64() % 255);
                break;
            case 1:
                name = name < length - at ? name : length - at;
                memcpy(text + at, option->name, name);
                at += name;
                break;
            default:
                text[at++] = pieces[random64() % (sizeof pieces - 1)];
            }
        }
        text[length] = '\0';

        int refused = parse(text);

        assert_true(refused == complaints.count || refused > 16);
        assert_options_sound();
        free(text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_what_the_table_says),
        cmocka_unit_test(every_example_is_read_and_changes_something),
        cmocka_unit_test(the_experimental_options_are_those_named_so),
        cmocka_unit_test(null_and_empty_items_change_nothing),
        cmocka_unit_test(colons_equals_signs_and_spaces_all_separate),
        cmocka_unit_test(every_spelling_of_a_size_is_read),
        cmocka_unit_test(what_is_no_size_is_refused),
        cmocka_unit_test(durations_need_a_unit),
        cmocka_unit_test(lists_are_joined_with_plus),
        cmocka_unit_test(sets_are_choices_joined_with_plus),
        cmocka_unit_test(all_spellings_of_a_boolean_are_read),
        cmocka_unit_test(quoted_values_may_hold_commas_and_quotes),
        cmocka_unit_test(the_words_in_the_place_of_a_path_are_read_in_any_case),
        cmocka_unit_test(an_empty_path_is_refused),
        cmocka_unit_test(the_last_of_a_key_given_twice_wins),
        cmocka_unit_test(an_unknown_key_is_named_with_its_place_and_a_suggestion),
        cmocka_unit_test(a_limit_may_be_a_share_of_the_device),
        cmocka_unit_test(a_bad_value_is_told_with_what_is_accepted_and_the_earlier_stays),
        cmocka_unit_test(one_bad_item_does_not_spoil_the_others),
        cmocka_unit_test(missing_keys_and_values_are_told),
        cmocka_unit_test(a_bad_quote_costs_its_own_item_only),
        cmocka_unit_test(strings_too_long_or_with_control_characters_are_refused),
        cmocka_unit_test(messages_are_escaped_and_bounded),
        cmocka_unit_test(no_size_class_is_named_twice_or_zero),
        cmocka_unit_test(roundup_takes_powers_of_two_only),
        cmocka_unit_test(a_choice_may_have_a_size),
        cmocka_unit_test(noise_is_counted_but_not_all_listed),
        cmocka_unit_test(an_old_name_works_and_is_told_once_with_the_new_one),
        cmocka_unit_test(a_removed_option_is_ignored_and_told_once),
        cmocka_unit_test(an_old_switch_is_a_choice_beside_the_others),
        cmocka_unit_test(a_bad_value_of_an_old_name_is_told_as_the_new_ones),
        cmocka_unit_test(a_missing_complainer_is_no_problem),
        cmocka_unit_test(what_is_printed_is_read_back_to_the_same_values),
        cmocka_unit_test(a_value_of_every_type_is_read_back),
        cmocka_unit_test(print_tells_the_length_it_would_have_had),
        cmocka_unit_test(help_names_the_basic_options_or_all_with_their_values),
        cmocka_unit_test(help_cuts_a_long_value),
        cmocka_unit_test(any_bytes_are_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
