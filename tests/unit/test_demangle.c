/* Rust's names. Those that a compiler made are of rustc 1.95; binutils reads them alike. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <stdio.h>

#include "base/mem.h"
#include "registry/names/demangle.h"
#include "registry/names/demangle_rust.h"

#define DEEPEST 128

static void assert_names(const char *const (*names)[2], size_t count)
{
    for (size_t i = 0; i < count; i++) {
        const char *plain = ca_demangle_rust(names[i][0], DEEPEST);
        if (!plain || strcmp(plain, names[i][1]) != 0)
            print_error("%s\n", names[i][0]);
        assert_non_null(plain);
        assert_string_equal(plain, names[i][1]);
    }
}

#define ASSERT_NAMES(names) assert_names(names, sizeof(names) / sizeof(names)[0])

static void names_of_the_present_scheme(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"_RNvCs6GmmlP4bgsG_1r4cfun", "r::cfun"},
        {"_RNvCs6GmmlP4bgsG_1r4cfun.llvm.1234", "r::cfun"},
        {"_RNvCs6GmmlP4bgsG_1ru9gre_6ka8l", "r::grüße"},
        {"_RNqCs4fqI2P2rA04_11utf8_identsu30____7hkackfecea1cbdathfdh9hlq6y",
         "utf8_idents::საჭმელად_გემრიელი_სადილი"},
        {"_RNvMCs6GmmlP4bgsG_1rINtB2_1AKj7_Kb1_Kc76_Kanb_E2goB2_", "<r::A<7, true, 'v', -11>>::go"},
        {"_RNvXs_Cs6GmmlP4bgsG_1rQAhj3_NtB4_1T3runB4_", "<&mut [u8; 3] as r::T>::run"},
        {"_RINvCs6GmmlP4bgsG_1r7genericNCNvB2_4mains_0INtNtCslNYArtu3iFV_5alloc3vec3VecjEEB2_",
         "r::generic::<r::main::{closure#1}, alloc::vec::Vec<usize>>"},
        {"_RINbNbCskIICzLVDPPb_5alloc5alloc8box_freeDINbNiB4_5boxed5FnBoxuEp6OutputuEL_"
         "ECs1iopQbuBiw2_3std",
         "alloc::alloc::box_free::<dyn alloc::boxed::FnBox<(), Output = ()>>"},
        {"_RNCNCNgCs6DXkGYLi8lr_2cc5spawn00B5_", "cc::spawn::{closure#0}::{closure#0}"},
        {"_RMC0FG_RL0_hKCEu", NULL},
        {"_RMC0TuE", "<((),)>"},
        {"_RMC0FG_RL0_hEu", "<for<'a> fn(&'a u8)>"},
        {"_RMC0FUKCPaOSsEz", "<unsafe extern \"C\" fn(*const i8, *mut [i16]) -> !>"},
        {"_RMC0INtC1a1AKoffffffffffffffffff_Kca_Kb0_KpE",
         "<a::A<0xffffffffffffffffff, '\\u{a}', false, _>>"},
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!names[i][1])
            assert_null(ca_demangle_rust(names[i][0], DEEPEST));
        else
            assert_names(&names[i], 1);
}

static void names_of_the_scheme_before_lose_their_hash(void **state)
{
    (void)state;
    static const char *const names[][2] = {
        {"_ZN1r4cfun17h1451ac08807a4ff5E", "r::cfun"},
        {"_ZN1r4cfun17h1451ac08807a4ff5E.llvm.99", "r::cfun"},
        {"_ZN1r13gr$ufc$$udf$e17h1fdcb089227d5d07E", "r::grüße"},
        {"_ZN59_$LT$$RF$mut$u20$$u5b$X$u3b$$u20$3$u5d$$u20$as$u20$r..T$GT$"
         "3run17h9dee45255fc61c5cE",
         "<&mut [X; 3] as r::T>::run"},
        {"_ZN1r22A$LT$_$C$_$C$_$C$_$GT$2go17h58ef48e6d6baea63E", "r::A<_,_,_,_>::go"},
    };
    ASSERT_NAMES(names);
}

static void what_is_no_such_name_stays(void **state)
{
    (void)state;
    static const char *const names[] = {
        "",
        "_R",
        "_RN",
        "_Resume",
        "_Read",
        "_RNvC1a",
        "_RNvC1a9b",
        "_R1NvC1a1b",
        "_RNvC1a1bX",
        "_RB_",
        "_RNvB0_1a",
        "_RMC0INtC1a1AKb2_E",
        "_RMC0INtC1a1AKe616263_E",
        "_RMC0RL0_h",
        "_RNvC99999999999999999999a1b",
        "_RNvCsZZZZZZZZZZZZZZZZZZ_1a1b",
        "_RMC0FGZZZZ_Eu",
        "_ZN1r4cfunE",
        "_ZN3foo3barEv",
        "_ZN17h1451ac08807a4ff5E",
        "_ZN1r4cfun17h1451ac08807a4ff5",
        "_ZN9a17h1451ac08807a4ff5E",
        "_ZN3$X$17h1451ac08807a4ff5E",
        "_ZN99999a17h1451ac08807a4ff5E",
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (ca_demangle_rust(names[i], DEEPEST))
            print_error("%s\n", names[i]);
        assert_null(ca_demangle_rust(names[i], DEEPEST));
    }
}

/* Each tuple has the one before twice. */
static void a_short_name_of_a_very_long_one_is_refused_at_once(void **state)
{
    (void)state;
    static const char few[] = "_RMC0TTuuETB3_B3_ETB7_B7_ETBf_Bf_EE";
    static const char many[] =
        "_RMC0TTuuETB3_B3_ETB7_B7_ETBf_Bf_ETBn_Bn_ETBv_Bv_ETBD_BD_ETBL_BL_ETBT_BT_ETB11_B11_"
        "ETB19_B19_ETB1j_B1j_ETB1t_B1t_ETB1D_B1D_ETB1N_B1N_ETB1X_B1X_ETB27_B27_ETB2h_B2h_ETB2r_B2r_"
        "ETB2B_B2B_ETB2L_B2L_ETB2V_B2V_ETB35_B35_ETB3f_B3f_ETB3p_B3p_ETB3z_B3z_ETB3J_B3J_EE";
    assert_int_equal(strlen(ca_demangle_rust(few, DEEPEST)), 174);
    assert_null(ca_demangle_rust(many, DEEPEST));
}

static void a_name_is_read_to_the_depth_that_is_allowed(void **state)
{
    (void)state;
    char deep[4096] = "_RMC0";
    memset(deep + 5, 'S', 3000);
    deep[5 + 3000] = 'h';
    assert_null(ca_demangle_rust(deep, DEEPEST));
    deep[5 + 15] = 'h';
    deep[5 + 16] = '\0';
    assert_non_null(ca_demangle_rust(deep, DEEPEST));
    assert_null(ca_demangle_rust(deep, 10));
}

static void every_beginning_of_a_name_and_every_change_of_a_byte_ends(void **state)
{
    (void)state;
    static const char whole[] =
        "_RINbNbCskIICzLVDPPb_5alloc5alloc8box_freeDINbNiB4_5boxed5FnBoxuEp6OutputFG_RL0_hKCEuEL_"
        "ECs1iopQbuBiw2_3std";
    char name[sizeof whole];
    for (size_t i = 0; i < sizeof whole; i++) {
        memcpy(name, whole, sizeof whole);
        name[i] = '\0';
        (void)ca_demangle_rust(name, DEEPEST);
        for (unsigned c = 1; c < 256; c++) {
            memcpy(name, whole, sizeof whole);
            name[i < sizeof whole - 1 ? i : 0] = (char)c;
            const char *plain = ca_demangle_rust(name, DEEPEST);
            assert_true(!plain || strlen(plain) < 4096);
        }
    }
}

static void other_names_are_copied(void **state)
{
    (void)state;
    ca_bump_t memory = {0};
    assert_string_equal(ca_demangle_quick("_ZN3foo3barEv", &memory), "foo::bar()");
    assert_string_equal(ca_demangle_quick("_RNvC1a1b", &memory), "a::b");
    assert_string_equal(ca_demangle("_RNvC1a1b", &memory), "a::b");
    assert_string_equal(ca_demangle("plain", &memory), "plain");
    ca_bump_free(&memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_the_present_scheme),
        cmocka_unit_test(names_of_the_scheme_before_lose_their_hash),
        cmocka_unit_test(what_is_no_such_name_stays),
        cmocka_unit_test(a_short_name_of_a_very_long_one_is_refused_at_once),
        cmocka_unit_test(a_name_is_read_to_the_depth_that_is_allowed),
        cmocka_unit_test(every_beginning_of_a_name_and_every_change_of_a_byte_ends),
        cmocka_unit_test(other_names_are_copied),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
