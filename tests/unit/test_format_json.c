/* What JSON is made of strange values; what it is of real reports is in test_json.py. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "registry/report/formats.h"

static char text[1 << 20];

static void write_model(const ca_model_t *model)
{
    static ca_out_t out;
    int fd = memfd_create("report", 0);
    assert_true(fd >= 0);
    ca_out_open(&out, fd);
    ca_format_json(&out, model);
    assert_int_equal(ca_out_flush(&out), 0);
    ssize_t length = pread(fd, text, sizeof text - 1, 0);
    assert_true(length >= 0);
    text[length] = '\0';
    close(fd);
}

static ca_model_t empty(void)
{
    ca_model_t model = {.version = "1", .cause = "exit", .program = "", .host = "", .rank = ""};
    model.unwinder = "none";
    return model;
}

static void assert_holds(const char *piece)
{
    if (!strstr(text, piece))
        fail_msg("no %s in\n%s", piece, text);
}

static void a_model_of_nothing_is_an_object(void **state)
{
    (void)state;
    ca_model_t model = empty();
    write_model(&model);
    assert_ptr_equal(strstr(text, "{\"schema\": \"cachealloc-report\", \"schema_version\": 1,\n"),
                     text);
    assert_holds("\"rank\": null");
    assert_holds("\"sections\": {},\n");
    assert_holds("\"frames\": [],\n\"timeline\": [],\n\"history_dropped\": 0, \"history\": []}\n");
    assert_holds("\"marks_dropped\": 0, \"marks\": [],\n\"phases\": [],\n");
}

static void any_byte_may_be_in_a_string(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *shown;
    } cases[] = {
        {"plain", "plain"},
        {"a\"b\\c", "a\\\"b\\\\c"},
        {"\n\t\x01", "\\u000a\\u0009\\u0001"},
        {"\x7f", "\x7f"},
        {"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"},
        {"\xff"
         "a",
         "\\ufffd"
         "a"},
        {"\xc3", "\\ufffd"},                                  /* cut short */
        {"\xc0\xaf", "\\ufffd\\ufffd"},                       /* longer than need be */
        {"\xed\xa0\x80", "\\ufffd\\ufffd\\ufffd"},            /* half a pair */
        {"\xf4\x90\x80\x80", "\\ufffd\\ufffd\\ufffd\\ufffd"}, /* beyond the last */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char expected[128];
        ca_model_t model = empty();
        model.program = cases[i].bytes;
        write_model(&model);
        snprintf(expected, sizeof expected, "\"program\": \"%s\", ", cases[i].shown);
        assert_holds(expected);
    }
}

static void strings_may_be_long(void **state)
{
    (void)state;
    static char name[100001], expected[300200];
    for (size_t i = 0; i + 1 < sizeof name; i++)
        name[i] = "\xe2\x82\xac\""[i % 4];
    char *at = expected;
    at += sprintf(at, "\"program\": \"");
    for (size_t i = 0; i + 1 < sizeof name; i += 4)
        at += sprintf(at, "\xe2\x82\xac\\\"");
    sprintf(at, "\", ");
    ca_model_t model = empty();
    model.program = name;
    write_model(&model);
    assert_non_null(strstr(text, expected));
}

static void frames_are_listed_once_and_null_is_told(void **state)
{
    (void)state;
    static const ca_place_t places[] = {{"inner", "/src/a.h", 7}, {NULL, NULL, 0}};
    static const ca_frame_t frames[] = {
        {.address = 0x1000, .text = "0x1000"},
        {.address = 0x2001,
         .module = "/lib/x.so",
         .build_id = "00ff",
         .offset = 0x2000,
         .place_count = 2,
         .places = places,
         .text = "inner"},
    };
    static const ca_frame_t *const stacks[] = {&frames[1], &frames[0], &frames[1]};
    static const ca_model_group_t groups[] = {
        {.frame_count = 2,
         .frames = stacks,
         .device = 3,
         .kind = CA_KIND_ASYNC,
         .count = 2,
         .bytes = UINT64_MAX,
         .smallest = 1,
         .largest = 2,
         .first = 5,
         .last = 6,
         .stream = 0xabc,
         .thread_count = 9,
         .threads = {"a", "b\""}},
        {.frame_count = 2, .frames = stacks + 1},
        {.frame_count = 0},
    };
    static const ca_model_total_t totals[] = {{3, CA_KIND_ASYNC, 2, 40}, {4, CA_KIND_VMM, 1, 2}};
    static const ca_point_t points[] = {{1, 2, 3, 4}, {5, 6, 7, 8}};
    ca_model_t model = empty();
    model.rank = "12";
    model.sections[CA_SECTION_PEAK] = (ca_model_section_t){.name = "peak",
                                                           .present = true,
                                                           .incomplete = true,
                                                           .count = 9,
                                                           .bytes = 8,
                                                           .stacks = 2,
                                                           .total_count = 2,
                                                           .totals = totals,
                                                           .group_count = 3,
                                                           .groups = groups,
                                                           .omitted_most = 1,
                                                           .omitted_most_bytes = 2,
                                                           .omitted_small = 3,
                                                           .omitted_small_bytes = 4};
    model.points = points;
    model.point_count = 2;
    static const ca_model_event_t events[] = {
        {.ns = 9,
         .event = CA_EVENT_ALLOC,
         .device = 1,
         .kind = CA_KIND_PINNED,
         .address = 0x10,
         .bytes = 77,
         .stream = 0xd,
         .thread = "a\"",
         .frame_count = 2,
         .frames = stacks},
        {.event = CA_EVENT_READY, .device = -1, .address = 0x20},
    };
    model.events = events;
    model.event_count = 2;
    model.events_dropped = 12;
    write_model(&model);
    assert_holds("\"rank\": \"12\"");
    assert_holds("\"sections\": {\n \"peak\": {\"count\": 9, \"bytes\": 8, \"stacks\": 2, "
                 "\"incomplete\": true,\n \"omitted\": {\"leak_max\": {\"groups\": 1, \"bytes\": "
                 "2}, \"leak_min\": {\"groups\": 3, \"bytes\": 4}},\n \"totals\": [{\"device\": 3, "
                 "\"kind\": \"async\", \"count\": 2, \"bytes\": 40}, {\"device\": 4, \"kind\": "
                 "\"vmm\", \"count\": 1, \"bytes\": 2}],\n");
    assert_holds("{\"bytes\": 18446744073709551615, \"count\": 2, \"smallest\": 1, \"largest\": 2, "
                 "\"device\": 3, \"kind\": \"async\", \"first\": 5, \"last\": 6, \"first_ns\": 0, "
                 "\"last_ns\": 0, \"stream\": \"0xabc\", \"threads\": [\"a\", \"b\\\"\"], "
                 "\"thread_count\": 9, \"frames\": [0, 1]}");
    assert_holds("\"stream\": null, \"threads\": [], \"thread_count\": 0, \"frames\": [1, 0]}");
    assert_holds("\"frames\": []}]}}");
    assert_holds("\"frames\": [\n  {\"address\": \"0x2001\", \"module\": \"/lib/x.so\", "
                 "\"build_id\": \"00ff\", \"offset\": \"0x2000\", \"text\": \"inner\", \"places\": "
                 "[{\"function\": \"inner\", \"file\": \"/src/a.h\", \"line\": 7}, {\"function\": "
                 "null, \"file\": null, \"line\": null}]},\n  {\"address\": \"0x1000\", "
                 "\"module\": null, \"build_id\": null, \"offset\": \"0x0\", \"text\": \"0x1000\", "
                 "\"places\": []}],\n");
    assert_holds(
        "{\"ns\": 5, \"sequence\": 6, \"live\": 7, \"reserved\": 8}],\n\"history_dropped\": 12, "
        "\"history\": [\n  {\"ns\": 9, \"event\": \"alloc\", \"device\": 1, "
        "\"kind\": \"pinned\", \"address\": \"0x10\", \"bytes\": 77, "
        "\"stream\": \"0xd\", \"thread\": \"a\\\"\", \"frames\": [0, 1]},\n"
        "  {\"ns\": 0, \"event\": \"ready\", \"device\": null, \"kind\": null, "
        "\"address\": \"0x20\", \"bytes\": 0, \"stream\": null, "
        "\"thread\": null, \"frames\": []}]}\n");
}

/* A framework's function of Python. */
static void a_python_frame_has_no_address_and_what_the_text_folds_is_told(void **state)
{
    static const ca_place_t forward = {"forward", "/t/model.py", 5},
                            call = {"_call_impl", "/t/torch/nn/modules/module.py", 9},
                            inner = {"c10::call(long)", NULL, 0},
                            mixed[] = {{"c10::call(long)", NULL, 0}, {"mine", NULL, 0}};
    static const ca_frame_t frames[] = {
        {.python = true, .place_count = 1, .places = &forward, .text = "f"},
        {.python = true, .place_count = 1, .places = &call, .text = "c"},
        {.address = 0x11, .place_count = 1, .places = &inner, .text = "i"},
        {.address = 0x12, .place_count = 2, .places = mixed, .text = "m"},
    };
    static const ca_frame_t *const stack[] = {&frames[0], &frames[1], &frames[2], &frames[3]};
    static const ca_model_group_t group = {.frame_count = 4, .frames = stack};
    ca_model_t model = empty();
    (void)state;
    model.sections[CA_SECTION_LEAKED] =
        (ca_model_section_t){.name = "leaked", .present = true, .group_count = 1, .groups = &group};
    write_model(&model);
    assert_holds(
        "\n  {\"language\": \"python\", \"address\": null, \"module\": null, \"build_id\": "
        "null, \"offset\": \"0x0\", \"text\": \"f\", \"places\": [{\"function\": "
        "\"forward\", \"file\": \"/t/model.py\", \"line\": 5}]},\n");
    assert_holds("{\"language\": \"python\", \"address\": null, \"fold\": true, \"module\"");
    assert_holds("\n  {\"address\": \"0x11\", \"fold\": true, \"module\"");
    assert_holds("\n  {\"address\": \"0x12\", \"module\"");
}

static void marks_are_listed_with_their_names(void **state)
{
    (void)state;
    static const ca_mark_t marks[] = {{1, 2, 3, 7, "a\"\xff"}, {4, 5, 6, 8, ""}};
    ca_model_t model = empty();
    model.marks = marks;
    model.mark_count = 2;
    model.marks_dropped = 9;
    model.phase_peak = 11;
    model.now_ns = 50;
    write_model(&model);
    assert_holds("\"marks_dropped\": 9, \"marks\": [\n"
                 "  {\"ns\": 1, \"sequence\": 2, \"live\": 3, \"name\": \"a\\\"\\ufffd\"},\n"
                 "  {\"ns\": 4, \"sequence\": 5, \"live\": 6, \"name\": \"\"}],\n"
                 "\"phases\": [\n"
                 "  {\"name\": \"a\\\"\\ufffd\", \"ns\": 1, \"ended_ns\": 4, \"peak_bytes\": 8, "
                 "\"exact\": false},\n"
                 "  {\"name\": \"\", \"ns\": 4, \"ended_ns\": 50, \"peak_bytes\": 11, "
                 "\"exact\": false}],\n");
    /* Nothing but the begin was before them. */
    model.marks_dropped = 0;
    model.one_thread = true;
    write_model(&model);
    assert_holds("\"phases\": [\n"
                 "  {\"name\": null, \"ns\": 0, \"ended_ns\": 1, \"peak_bytes\": 7, "
                 "\"exact\": true},\n"
                 "  {\"name\": \"a");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_of_nothing_is_an_object),
        cmocka_unit_test(any_byte_may_be_in_a_string),
        cmocka_unit_test(strings_may_be_long),
        cmocka_unit_test(frames_are_listed_once_and_null_is_told),
        cmocka_unit_test(a_python_frame_has_no_address_and_what_the_text_folds_is_told),
        cmocka_unit_test(marks_are_listed_with_their_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
