/* A framework's inner frames, and how a stack with them is shown. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "registry/names/fold.h"
#include "registry/names/stack_text.h"

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

/* --- names ------------------------------------------------------------------------------------ */

static void a_name_has_its_scopes_and_no_more(void **state)
{
    static const struct {
        const char *function, *name;
    } cases[] = {
        {"main", "main"},
        {"", ""},
        {"load tile", "load tile"}, /* another language's */
        {"at::detail::empty_cuda(c10::ArrayRef<long>, c10::ScalarType)", "at::detail::empty_cuda"},
        {"at::(anonymous namespace)::wrapper(int) const", "at::(anonymous namespace)::wrapper"},
        {"_object* torch::autograd::TypeError<&torch::f>(_object*)",
         "torch::autograd::TypeError<...>"},
        {"unsigned long f<int (*)(long)>(int)", "f<...>"},
        {"std::vector<int, std::allocator<int> >::operator[](unsigned long)",
         "std::vector<...>::operator[]"},
        {"bool a::operator< <int>(b const&)", "a::operator< <int>"},
        {"a::operator->()", "a::operator->"},
        {"main::{lambda(int)#1}::operator()(int) const", "main::{...}::operator()"},
        {"a::operators::f(int)", "a::operators::f"},
        {"a::f(int) [clone .cold]", "a::f"},
        {"_Z", "_Z"},
        {"_Z5plainv", "plain"},
        {"_ZN3c104cuda17uncached_allocateEm", "c10::cuda::uncached_allocate"},
        {"_ZNK2at12_GLOBAL__N_13runEv", "at::(anonymous namespace)::run"},
        {"_ZNSt17_Function_handlerIFvvEPS0_E9_M_invokeERKSt9_Any_data",
         "std::_Function_handler<...>"},
        {"_ZZN2at6native4fullEvENKUlvE_clEv", "at::native::full"},
        {"_ZN99999999999999999999shortE", "_ZN99999999999999999999shortE"},
        {"_ZN9shortE", "_ZN9shortE"},
    };
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        char shown[128] = "> ";
        ca_text_t text = {shown, sizeof shown, 2};
        ca_fold_name(cases[i].function, &text);
        assert_string_equal(shown + 2, cases[i].name);
        assert_int_equal(text.length, 2 + strlen(cases[i].name));
    }
}

/* Any bytes: it ends, and stays in the buffer. */
static void no_name_is_read_past_its_end(void **state)
{
    static const char letters[] = "_ZN3StKL(anonymous<>{}[]) operator-:a9I";
    (void)state;
    srand(39);
    for (int i = 0; i < 20000; i++) {
        size_t length = (size_t)rand() % 40;
        char *name = malloc(length + 1), shown[24];
        ca_text_t text;
        for (size_t k = 0; k < length; k++)
            name[k] = letters[(size_t)rand() % (sizeof letters - 1)];
        name[length] = '\0';
        ca_text_init(&text, shown, sizeof shown);
        ca_fold_name(name, &text);
        assert_true(strlen(shown) < sizeof shown);
        free(name);
    }
}

/* --- what is inner ---------------------------------------------------------------------------- */

static bool is_inner(const char *function, const char *file, bool python)
{
    ca_place_t place = {function, file, 1};
    ca_frame_t frame = {.python = python, .place_count = 1, .places = &place};
    return ca_fold_is_inner(&frame, &place);
}

enum { FUNCTION, PYTHON_FILE, MODULE };

static void each_rule_is_kept(void **state)
{
    static const struct {
        int where;
        const char *text;
        bool inner;
    } rules[] = {
#define CA_FOLD(of, where, text, inner) {where, text, inner},
#include "registry/names/fold.def"
#undef CA_FOLD
    };
    char text[128];
    (void)state;
    for (size_t i = 0; i < COUNT(rules); i++) {
        if (rules[i].where == FUNCTION) {
            snprintf(text, sizeof text, "int %sx<int>(long)", rules[i].text);
            assert_int_equal(is_inner(text, NULL, false), rules[i].inner);
            assert_false(is_inner(text, NULL, true));
            snprintf(text, sizeof text, "mine::%sx(long)", rules[i].text);
            assert_false(is_inner(text, NULL, false));
        } else if (rules[i].where == MODULE) {
            ca_frame_t frame = {.module = text};
            snprintf(text, sizeof text, "/usr/lib/%s8", rules[i].text);
            assert_true(ca_fold_is_inner(&frame, NULL));
            snprintf(text, sizeof text, "/usr/lib/x%s8", rules[i].text);
            assert_false(ca_fold_is_inner(&frame, NULL));
        } else {
            snprintf(text, sizeof text, "/usr/lib/python3%s", rules[i].text);
            assert_true(is_inner("f", text, true));
            assert_false(is_inner("f", text, false));
        }
    }
    assert_false(is_inner(NULL, "/torch/_ops.py", true));
    assert_false(is_inner("f", NULL, true));
    assert_false(is_inner("main", NULL, false));
    assert_true(is_inner("_ZN3c104impl4callEv", NULL, false));
    assert_false(is_inner("_ZN2at6native4onesEv", NULL, false));
}

/* --- stacks ----------------------------------------------------------------------------------- */

static char text[4096];

static void show(const ca_frame_t *frames, size_t count, bool fold)
{
    static ca_out_t out;
    const ca_frame_t *stack[32];
    for (size_t i = 0; i < count; i++)
        stack[i] = &frames[i];
    int fd = memfd_create("stack", 0);
    ca_out_open(&out, fd);
    ca_stack_text(&out, stack, count, fold);
    assert_int_equal(ca_out_flush(&out), 0);
    ssize_t length = pread(fd, text, sizeof text - 1, 0);
    assert_true(length >= 0);
    text[length] = '\0';
    close(fd);
}

#define NATIVE(name, in)                                                                           \
    {                                                                                              \
        .address = 1, .module = (in), .text = (name), .lines = (name), .place_count = 1,           \
        .places = (const ca_place_t[])                                                             \
        {                                                                                          \
            {                                                                                      \
                (name), NULL, 0                                                                    \
            }                                                                                      \
        }                                                                                          \
    }
#define PYTHON(name, in, at)                                                                       \
    {                                                                                              \
        .python = true, .text = name " at " in ":" #at, .lines = name " at " in ":" #at,           \
        .place_count = 1, .places = (const ca_place_t[])                                           \
        {                                                                                          \
            {                                                                                      \
                (name), "/lib/" in, (at)                                                           \
            }                                                                                      \
        }                                                                                          \
    }

static const ca_frame_t torch[] = {
    NATIVE("c10::cuda::uncached_allocate(unsigned long)", "/t/libc10_cuda.so"),
    NATIVE("at::detail::empty_cuda(long)", "/t/libtorch_cuda.so"),
    NATIVE("c10::impl::wrap_<at::Tensor (long)>::call(long)", "/t/libtorch_cuda.so"),
    NATIVE("at::_ops::mul_Tensor::call(at::Tensor const&)", "/t/libtorch_cpu.so"),
    NATIVE("torch::autograd::THPVariable_mul(_object*)", "/t/libtorch_python.so"),
    NATIVE("_object* torch::autograd::TypeError_<&torch::f>(_object*)", "/t/libtorch_python.so"),
    PYTHON("Block.forward", "train.py", 6),
    PYTHON("Module._call_impl", "torch/nn/modules/module.py", 1798),
    PYTHON("Module._wrapped_call_impl", "torch/nn/modules/module.py", 1787),
    PYTHON("<module>", "train.py", 15),
};

static void a_framework_s_frames_are_one_line(void **state)
{
    (void)state;
    show(torch, COUNT(torch), true);
    assert_string_equal(
        text,
        "    c10::cuda::uncached_allocate < ... < torch::autograd::THPVariable_mul (+4 frames "
        "of libc10_cuda.so, libtorch_cuda.so, libtorch_cpu.so, libtorch_python.so)\n"
        "    Block.forward at train.py:6\n"
        "    Module._call_impl < Module._wrapped_call_impl (module.py)\n"
        "    <module> at train.py:15\n");
}

static void without_it_each_has_its_own(void **state)
{
    char *at = text;
    (void)state;
    show(torch, COUNT(torch), false);
    for (size_t i = 0; i < COUNT(torch); i++) {
        char line[128];
        int length = snprintf(line, sizeof line, "    %s\n", torch[i].text);
        assert_memory_equal(at, line, (size_t)length);
        at += length;
    }
    assert_int_equal(*at, '\0');
}

static void one_alone_has_its_name_and_module(void **state)
{
    const ca_frame_t frames[] = {
        NATIVE("mine", "a"),
        NATIVE("at::native::ones(long)", "b"),
        NATIVE("at::_ops::ones::call(long)", "b"),
        NATIVE("main", "a"),
    };
    (void)state;
    show(frames, COUNT(frames), true);
    assert_string_equal(text, "    mine\n"
                              "    at::native::ones(long)\n"
                              "    at::_ops::ones::call (b)\n"
                              "    main\n");
    show(frames, 0, true);
    assert_string_equal(text, "    (no call stack)\n");
}

/* A build with optimisation has the framework's functions and the caller at one address. */
static void what_calls_them_stays_where_it_is_at_the_same_address(void **state)
{
    static const ca_place_t places[] = {{"thrust::detail::allocate(long)", "/x/thrust/a.h", 5},
                                        {"thrust::vector<int>::vector(long)", "/x/thrust/v.h", 6},
                                        {"mine", "/src/mine.cu", 7}};
    const ca_frame_t frames[] = {
        NATIVE("thrust::cuda_cub::malloc(long)", "/opt/app"),
        {.address = 2,
         .module = "/opt/app",
         .place_count = 3,
         .places = places,
         .text = "a < b < c",
         .lines = "a < b < c"},
        NATIVE("main", "/opt/app"),
    };
    (void)state;
    show(frames, COUNT(frames), true);
    assert_string_equal(text,
                        "    thrust::cuda_cub::malloc < thrust::detail::allocate (+1 frames of "
                        "app)\n"
                        "    mine at mine.cu:7\n"
                        "    main\n");
    show(frames, COUNT(frames), false);
    assert_string_equal(text, "    thrust::cuda_cub::malloc(long)\n    a < b < c\n    main\n");
}

static void what_has_no_name_is_counted(void **state)
{
    const ca_frame_t frames[] = {
        {.address = 1,
         .module = "/lib/libffi.so.8",
         .text = "libffi.so.8+0x6f79",
         .lines = "libffi.so.8+0x6f79"},
        NATIVE("ffi_call", "/lib/libffi.so.8"),
        {.address = 2,
         .module = "/py/_ctypes.so",
         .text = "_ctypes.so+0xa42a",
         .lines = "_ctypes.so+0xa42a"},
        {.address = 3, .module = "/py/other.so", .text = "other.so+0x1", .lines = "other.so+0x1"},
    };
    (void)state;
    show(frames, COUNT(frames), true);
    assert_string_equal(text, "    ffi_call (+2 frames of libffi.so.8, _ctypes.so)\n"
                              "    other.so+0x1\n");
}

/* Else there would be no end to a line. */
static void a_line_has_some_modules_and_no_more(void **state)
{
    const ca_frame_t frames[] = {
        NATIVE("c10::a()", "1"), NATIVE("c10::b()", "2"), NATIVE("c10::a()", "3"),
        NATIVE("c10::a()", "4"), NATIVE("c10::a()", "5"), NATIVE("c10::z\n()", "6"),
    };
    (void)state;
    show(frames, COUNT(frames), true);
    assert_string_equal(text, "    c10::a < ... < c10::z\\x0a (+4 frames of 1, 2, 3, 4, ...)\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_name_has_its_scopes_and_no_more),
        cmocka_unit_test(no_name_is_read_past_its_end),
        cmocka_unit_test(each_rule_is_kept),
        cmocka_unit_test(a_framework_s_frames_are_one_line),
        cmocka_unit_test(without_it_each_has_its_own),
        cmocka_unit_test(one_alone_has_its_name_and_module),
        cmocka_unit_test(what_calls_them_stays_where_it_is_at_the_same_address),
        cmocka_unit_test(what_has_no_name_is_counted),
        cmocka_unit_test(a_line_has_some_modules_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
