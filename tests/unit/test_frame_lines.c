/* Names of functions as a report for people has them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <stdio.h>

#include "registry/names/frame_lines.h"

#define LONG "averylongnamespace::whosenamegoesonandonandonandonandonandonandonandonandonandon::"

static void assert_shown(const char *name, const char *expected)
{
    static char buffer[4096];
    ca_text_t text;
    ca_text_init(&text, buffer, sizeof buffer);
    ca_frame_add_function(&text, name);
    assert_string_equal(buffer, expected);
}

static void template_arguments_of_long_names_are_cut(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"std::vector<thing, std::allocator<thing>>::push_back(std::shared_ptr<thing> const&)",
         "std::vector<...>::push_back(std::shared_ptr<thing> const&)"},
        {LONG "a<std::pair<int, int> > b<(unsigned int)3>(c<float>)",
         LONG "a<...> b<...>(c<float>)"},
        {LONG "run<{lambda(int)#1}>(x<(kind)1>)::{lambda()#2}::operator()<int>() const",
         LONG "run<...>(x<(kind)1>)::{lambda()#2}::operator()<int>() const"},
        {LONG "operator()<std::string>()", LONG "operator()<...>()"},
        {LONG "tagged[abi:cxx11]<std::string>()", LONG "tagged[abi:cxx11]<...>()"},
        {LONG "f<std::function<int (a<b>)>, ((1)>(2))>(int)", LONG "f<...>(int)"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_shown(names[i][0], names[i][1]);
}

static void operators_and_arrows_are_no_brackets(void **state)
{
    (void)state;
    assert_shown(LONG "operator<< <std::char_traits<char> >(a<long long>&)",
                 LONG "operator<< <...>(a<...>&)");
    assert_shown(LONG "operator<(a const&, b const&)", LONG "operator<(a const&, b const&)");
    assert_shown(LONG "x<&y::operator->, long long>::operator->() const",
                 LONG "x<...>::operator->() const");
    assert_shown(LONG "call<fn(i32) -> alloc::vec::Vec<u8>>", LONG "call<...>");
}

static void what_is_called_in_brackets_stays(void **state)
{
    (void)state;
    assert_shown("<" LONG "Vec<alloc::string::String> as core::ops::drop::Drop>::drop",
                 "<" LONG "Vec<...> as core::ops::drop::Drop>::drop");
    assert_shown(LONG "<impl core::fmt::Debug for alloc::vec::Vec<alloc::string::String>>::fmt",
                 LONG "<impl core::fmt::Debug for alloc::vec::Vec<...>>::fmt");
    assert_shown(LONG "collect::<alloc::vec::Vec<u8>>", LONG "collect::<...>");
    assert_shown(LONG "main()::<lambda(std::vector<int>)>",
                 LONG "main()::<lambda(std::vector<int>)>");
}

static void short_names_and_what_is_no_name_stay_whole(void **state)
{
    (void)state;
    char many[3000];
    assert_shown("std::vector<int, std::allocator<int> >::clear()",
                 "std::vector<int, std::allocator<int> >::clear()");
    assert_shown(LONG "a<b<int, int>::c", LONG "a<b<int, int>::c");
    assert_shown(LONG "a<b)c>", LONG "a<b)c>");
    assert_shown(LONG "a>b<c", LONG "a>b<c");
    assert_shown("new\nline", "new\\x0aline");
    memset(many, '<', sizeof many - 1);
    many[sizeof many - 1] = '\0';
    many[0] = 'a';
    char shown[2100];
    ca_text_t text;
    ca_text_init(&text, shown, sizeof shown);
    ca_frame_add_function(&text, many);
    assert_int_equal(text.length, 2048);
}

static void each_line_is_behind_the_indent(void **state)
{
    (void)state;
    char written[64] = "";
    ca_out_t *out = calloc(1, sizeof *out);
    FILE *file = tmpfile();
    assert_true(out && file);
    ca_out_open(out, fileno(file));
    ca_frame_write(out, "  ", "inner at a.h:7\nouter (b+0x12)");
    ca_frame_write(out, "    ", "last");
    assert_int_equal(ca_out_flush(out), 0);
    rewind(file);
    assert_in_range(fread(written, 1, sizeof written - 1, file), 1, sizeof written);
    assert_string_equal(written, "  inner at a.h:7\n  outer (b+0x12)\n    last\n");
    fclose(file);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(template_arguments_of_long_names_are_cut),
        cmocka_unit_test(operators_and_arrows_are_no_brackets),
        cmocka_unit_test(what_is_called_in_brackets_stays),
        cmocka_unit_test(short_names_and_what_is_no_name_stay_whole),
        cmocka_unit_test(each_line_is_behind_the_indent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
