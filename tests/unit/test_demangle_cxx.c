/* C++ names. What they are is what GCC's run-time says: of each symbol of its own library, too. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "registry/names/demangle_cxx.h"

#define STACK ((size_t)64 << 10)

typedef char *demangle_t(const char *, char *, size_t *, int *);

static const char *const names[][2] = {
    {"_Z5plain", "plain"},
    {"_Z3foov", "foo()"},
    {"_ZN3foo3barEic", "foo::bar(int, char)"},
    {"_ZNK4tray3putEmPKc", "tray::put(unsigned long, char const*) const"},
    {"_ZN12_GLOBAL__N_14helpEv", "(anonymous namespace)::help()"},
    {"_ZN1AC2ERKS_", "A::A(A const&)"},
    {"_ZN1AD0Ev", "A::~A()"},
    {"_ZN1AIiEC1Ev", "A<int>::A()"},
    {"_ZNSsC1ERKSs", "std::basic_string<char, std::char_traits<char>, std::allocator<char> "
                     ">::basic_string(std::string const&)"},
    {"_Z1fIiEvT_", "void f<int>(int)"},
    {"_Z1fIiEPFivET_", "int (*f<int>(int))()"},
    {"_Z1fPFviES0_", "f(void (*)(int), void (*)(int))"},
    {"_Z1fRA3_KiM1AKFvvE", "f(int const (&) [3], void (A::*)() const)"},
    {"_Z1fIJiRdEEvDpOT_", "void f<int, double&>(int&&, double&)"},
    {"_Z1fIJEEvDpT_", "void f<>()"},
    {"_Z1fILi3ELb1ELmn1EEvv", "void f<3, true, -1ul>()"},
    {"_ZN1AplERKS_", "A::operator+(A const&)"},
    {"_ZlsIiERSoS0_T_", "std::ostream& operator<< <int>(std::ostream&, int)"},
    {"_ZN1AcvbEv", "A::operator bool()"},
    {"_ZN1AcvT_IiEEv", "A::operator int<int>()"},
    {"_Znwm", "operator new(unsigned long)"},
    {"_ZZ4mainENKUliE_clEi", "main::{lambda(int)#1}::operator()(int) const"},
    {"_ZZ1fvENUt_3runEv", "f()::{unnamed type#1}::run()"},
    {"_ZZ1fiE1x_0", "f(int)::x"},
    {"_ZN1A1fB5cxx11Ev", "A::f[abi:cxx11]()"},
    {"_ZThn16_N1A1fEv", "non-virtual thunk to A::f()"},
    {"_Z1fDv4_fDnDi", "f(float __vector(4), decltype(nullptr), char32_t)"},
    {"_ZN5torch8autograd9generated12MulBackward05applyEOSt6vectorIN2at6TensorESaIS5_EE",
     "torch::autograd::generated::MulBackward0::apply(std::vector<at::Tensor, "
     "std::allocator<at::Tensor> >&&)"},
};

static void names_are_as_they_stand_in_the_source(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *plain = ca_demangle_cxx(names[i][0], CA_CXX_STACK_SMALL);
        if (!plain || strcmp(plain, names[i][1]) != 0)
            print_error("%s\n", names[i][0]);
        assert_non_null(plain);
        assert_string_equal(plain, names[i][1]);
    }
}

static demangle_t *run_time(void **library)
{
    *library = dlopen("libstdc++.so.6", RTLD_LAZY);
    return *library ? (demangle_t *)dlsym(*library, "__cxa_demangle") : NULL;
}

static void names_are_those_of_the_run_time(void **state)
{
    (void)state;
    void *library;
    demangle_t *demangle = run_time(&library);
    if (!demangle)
        skip();
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        int status;
        char *plain = demangle(names[i][0], NULL, NULL, &status);
        assert_non_null(plain);
        assert_string_equal(plain, names[i][1]);
        free(plain);
    }
    dlclose(library);
}

typedef struct score {
    size_t names, equal, mangled, other;
} score_t;

static void compare(const char *symbol, demangle_t *demangle, score_t *score)
{
    int status;
    char *plain = strncmp(symbol, "_Z", 2) == 0 ? demangle(symbol, NULL, NULL, &status) : NULL;
    const char *ours = plain ? ca_demangle_cxx(symbol, CA_CXX_STACK_SMALL) : NULL;
    if (plain) {
        score->names++;
        score->mangled += ours == NULL;
        score->equal += ours && strcmp(ours, plain) == 0;
        score->other += ours && strcmp(ours, plain) != 0;
    }
    free(plain);
}

static void compare_all(const char *file, size_t bytes, demangle_t *demangle, score_t *score)
{
    const ElfW(Ehdr) *head = (const void *)file;
    const ElfW(Shdr) *sections = (const void *)(file + head->e_shoff);
    for (size_t i = 0; i < head->e_shnum; i++) {
        if (sections[i].sh_type != SHT_DYNSYM)
            continue;
        const ElfW(Sym) *symbols = (const void *)(file + sections[i].sh_offset);
        const char *texts = file + sections[sections[i].sh_link].sh_offset;
        assert_true(sections[i].sh_offset + sections[i].sh_size <= bytes);
        for (size_t k = 0; k < sections[i].sh_size / sizeof *symbols; k++)
            if (symbols[k].st_shndx != SHN_UNDEF)
                compare(texts + symbols[k].st_name, demangle, score);
    }
}

static void each_symbol_of_the_run_time_s_library_is_read(void **state)
{
    (void)state;
    void *library;
    struct link_map *map;
    struct stat found;
    score_t score = {0};
    demangle_t *demangle = run_time(&library);
    if (!demangle || dlinfo(library, RTLD_DI_LINKMAP, &map) != 0)
        skip();
    int fd = open(map->l_name, O_RDONLY);
    assert_true(fd >= 0 && fstat(fd, &found) == 0);
    char *file = mmap(NULL, (size_t)found.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    assert_true(file != MAP_FAILED);

    compare_all(file, (size_t)found.st_size, demangle, &score);

    print_message("%zu names: %zu equal, %zu stay mangled, %zu differ\n", score.names, score.equal,
                  score.mangled, score.other);
    assert_true(score.names > 1000);
    assert_true(score.equal * 1000 >= score.names * 999);
    munmap(file, (size_t)found.st_size);
    close(fd);
    dlclose(library);
}

static void what_is_not_known_stays(void **state)
{
    (void)state;
    static const char *const others[] = {
        "",        "plain",        "_Z",          "_ZN",     "_ZN3fooE3",      "_Z9999999999f",
        "_Z3fo",   "_Z1fIiET_T0_", "_ZN1AC1Ev1",  "_Z1fS_",  "_Z1fTZZZZZZZZ_", "_RNvC1a1b",
        "_ZC1v",   "_ZN1fE",       "_Z1fIXT_EEv", "_Z1fv.x", "_Z1fA",          "_Z1fDQ",
        "_ZGR1x_", "_ZTX1A",       "_ZSt",        "_Z1fIJ",  "_Z1fM1A",
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        const char *plain = ca_demangle_cxx(others[i], STACK);
        if (plain && strcmp(others[i], "_ZN1fE") != 0)
            print_error("%s: %s\n", others[i], plain);
        assert_true(!plain || strcmp(others[i], "_ZN1fE") == 0);
    }
}

/* Each has the one before twice. */
static void a_short_name_of_a_very_long_one_is_refused_at_once(void **state)
{
    (void)state;
    char name[256] = "_Z1f1AIiiE";
    for (unsigned i = 0; i < 30; i++) {
        char again[24];
        static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";
        if (i == 0)
            snprintf(again, sizeof again, "S_IS0_S0_E");
        else
            snprintf(again, sizeof again, "S_IS%c_S%c_E", digits[i], digits[i]);
        strcat(name, again);
        if (strlen(name) > sizeof name - sizeof again)
            break;
    }
    assert_null(ca_demangle_cxx(name, STACK));
}

static void no_more_of_the_stack_is_taken_than_is_allowed(void **state)
{
    (void)state;
    char deep[4096] = "_Z1f";
    memset(deep + 4, 'P', 3000);
    deep[4 + 3000] = 'i';
    assert_null(ca_demangle_cxx(deep, CA_CXX_STACK_SMALL));
    deep[4 + 8] = 'i';
    deep[4 + 9] = '\0';
    assert_string_equal(ca_demangle_cxx(deep, CA_CXX_STACK_SMALL), "f(int********)");
    assert_null(ca_demangle_cxx(deep, 200));
}

static void every_beginning_of_a_name_and_every_change_of_a_byte_ends(void **state)
{
    (void)state;
    static const char whole[] =
        "_ZZN5torch1AIJRKSt6vectorIiSaIiEEDpT_EE3runIXadL_Z1fvEEEENKUlvE_clEv";
    char name[sizeof whole];
    for (size_t i = 0; i < sizeof whole; i++) {
        memcpy(name, whole, sizeof whole);
        name[i] = '\0';
        (void)ca_demangle_cxx(name, STACK);
        for (unsigned c = 1; c < 256; c++) {
            memcpy(name, whole, sizeof whole);
            name[i < sizeof whole - 1 ? i : 0] = (char)c;
            const char *plain = ca_demangle_cxx(name, STACK);
            assert_true(!plain || strlen(plain) < 4096);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_as_they_stand_in_the_source),
        cmocka_unit_test(names_are_those_of_the_run_time),
        cmocka_unit_test(each_symbol_of_the_run_time_s_library_is_read),
        cmocka_unit_test(what_is_not_known_stays),
        cmocka_unit_test(a_short_name_of_a_very_long_one_is_refused_at_once),
        cmocka_unit_test(no_more_of_the_stack_is_taken_than_is_allowed),
        cmocka_unit_test(every_beginning_of_a_name_and_every_change_of_a_byte_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
