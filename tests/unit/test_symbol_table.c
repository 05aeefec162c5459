/* Functions by an ELF file's symbol tables: those of this program, and of files that lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "registry/names/symbol_table.h"

#define CODE_BYTES 64 /* looked up at each of so many */

static ca_symbol_file_t file;

static int self(void)
{
    return open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
}

/* A copy of the name at `address`, or "". */
static const char *name_at(uint64_t address, char *name, size_t bytes)
{
    bool timed_out;
    const char *found = ca_symbol_file_function(&file, address, &timed_out);
    assert_false(timed_out);
    snprintf(name, bytes, "%s", found ? found : "");
    return name;
}

static uint64_t linked(const void *code)
{
    extern const ElfW(Ehdr) __ehdr_start;
    ElfW(Phdr) part = {0};
    uintptr_t bias = (uintptr_t)&__ehdr_start;
    for (unsigned i = 0; i < file.header.e_phnum; i++) {
        assert_int_equal(
            pread(file.fd, &part, sizeof part, (off_t)(file.header.e_phoff + i * sizeof part)),
            sizeof part);
        if (part.p_type == PT_LOAD && part.p_offset == 0)
            return (uintptr_t)code - bias + part.p_vaddr;
    }
    fail();
    return 0;
}

static void an_index_finds_what_reading_all_finds(void **state)
{
    (void)state;
    char plain[256], indexed[256];
    unsigned named = 0;
    for (size_t i = 0; i < 200; i++) {
        ca_symbol_files_begin(); /* all of them may take longer than a report has */
        assert_true(ca_symbol_file_open(&file, self()));
        uint64_t address = linked((const char *)(uintptr_t)&linked) + i * CODE_BYTES;
        name_at(address, plain, sizeof plain);
        ca_symbol_file_index(&file);
        name_at(address, indexed, sizeof indexed);
        assert_string_equal(indexed, plain);
        named += plain[0] != '\0';
        ca_symbol_file_close(&file);
    }
    assert_in_range(named, 10, 200);
}

static void a_function_has_its_name_up_to_its_last_byte(void **state)
{
    (void)state;
    char name[256];
    ca_symbol_files_begin();
    assert_true(ca_symbol_file_open(&file, self()));
    ca_symbol_file_index(&file);
    uint64_t begin = linked((const char *)(uintptr_t)&linked), at = begin;
    while (strcmp(name_at(at, name, sizeof name), "linked") == 0)
        at++;
    assert_in_range(at - begin, 16, 4096);
    assert_string_not_equal(name_at(begin - 1, name, sizeof name), "linked");
    ca_symbol_file_close(&file);
}

static void what_is_no_file_of_this_machine_is_refused(void **state)
{
    (void)state;
    assert_false(ca_symbol_file_open(&file, -1));
    assert_false(ca_symbol_file_open(&file, open("/dev/zero", O_RDONLY)));
    assert_false(ca_symbol_file_open(&file, open("/proc/self/maps", O_RDONLY)));
    bool timed_out;
    assert_null(ca_symbol_file_function(&file, 0x1000, &timed_out));
}

/* As `bytes` of a file in memory. */
static bool open_bytes(const void *bytes, size_t count)
{
    int fd = memfd_create("module", MFD_CLOEXEC);
    assert_int_equal(write(fd, bytes, count), (ssize_t)count);
    return ca_symbol_file_open(&file, fd);
}

static void a_table_that_says_it_is_larger_than_its_file_takes_no_memory(void **state)
{
    (void)state;
    static const size_t sizes[] = {(size_t)1 << 20, SIZE_MAX};
    struct lying {
        ElfW(Ehdr) header;
        ElfW(Shdr) sections[2];
    } lying = {.header = {.e_shoff = offsetof(struct lying, sections),
                          .e_shnum = 2,
                          .e_shentsize = sizeof(ElfW(Shdr)),
                          .e_phentsize = sizeof(ElfW(Phdr))}};
    memcpy(lying.header.e_ident, ELFMAG, SELFMAG);
    lying.header.e_ident[EI_CLASS] = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        bool timed_out;
        lying.sections[1] = (ElfW(Shdr)){.sh_type = SHT_SYMTAB, .sh_size = sizes[i]};
        ca_symbol_files_begin();
        size_t before = ca_mem_mapped();
        assert_true(open_bytes(&lying, sizeof lying));
        ca_symbol_file_index(&file);
        assert_null(ca_symbol_file_function(&file, 1, &timed_out));
        assert_int_equal(ca_mem_mapped(), before);
        ca_symbol_file_close(&file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_index_finds_what_reading_all_finds),
        cmocka_unit_test(a_function_has_its_name_up_to_its_last_byte),
        cmocka_unit_test(what_is_no_file_of_this_machine_is_refused),
        cmocka_unit_test(a_table_that_says_it_is_larger_than_its_file_takes_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
