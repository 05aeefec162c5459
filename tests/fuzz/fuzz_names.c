/* What names code: an ELF file with any bytes is read without a crash, in bounded time, and gives
 * the same name twice. */
#include "tests/fuzz/fuzz.h"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include "registry/names/symbol_table.h"

/* A copy of the function's name, or "". */
static void name_at(ca_symbol_file_t *file, uint64_t address, char *name, size_t bytes)
{
    bool timed_out;
    const char *found = ca_symbol_file_function(file, address, &timed_out);
    snprintf(name, bytes, "%s", found ? found : "");
}

/* The input begins with an address, the rest is the file. */
static void read_file(input_t *input)
{
    char first[64], again[64];
    ca_symbol_file_t file;
    uint64_t address = next_number(input, 4);
    int fd = memfd_create("module", MFD_CLOEXEC);
    CLAIM(fd >= 0 && write(fd, input->at, input->left) == (ssize_t)input->left);
    ca_symbol_files_begin();
    if (!ca_symbol_file_open(&file, fd))
        return;
    (void)ca_symbol_file_has_build_id(&file, "12345678901234567890", 20);
    (void)ca_symbol_file_address(&file, address, &address);
    name_at(&file, address, first, sizeof first);
    ca_symbol_file_index(&file);
    name_at(&file, address, again, sizeof again);
    name_at(&file, address, first, sizeof first);
    CLAIM(strcmp(first, again) == 0);
    ca_symbol_file_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t input = {data, size};
    read_file(&input);
    return 0;
}
