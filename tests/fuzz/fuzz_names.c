/* What names code: an ELF file with any bytes, a map of generated code, or a mangled name, is read
 * without a crash, in bounded time, and gives the same name twice. */
#include "tests/fuzz/fuzz.h"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include "registry/names/demangle_cxx.h"
#include "registry/names/demangle_rust.h"
#include "registry/names/frame_lines.h"
#include "registry/names/perf_map.h"
#include "registry/names/symbol_table.h"

static int file_of(const input_t *input)
{
    int fd = memfd_create("input", MFD_CLOEXEC);
    CLAIM(fd >= 0 && write(fd, input->at, input->left) == (ssize_t)input->left);
    return fd;
}

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
    ca_symbol_files_begin();
    if (!ca_symbol_file_open(&file, file_of(input)))
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

/* The same of a map. */
static void read_map(input_t *input)
{
    uint64_t address = next_number(input, 4);
    int fd = file_of(input);
    ca_perf_map_read(fd);
    const char *name = ca_perf_map_find((uintptr_t)address);
    CLAIM(!name || (*name != '\0' && input->left > strlen(name)));
    CLAIM(name == ca_perf_map_find((uintptr_t)address));
    ca_perf_map_end();
    close(fd);
}

static const char *demangled(const char *name)
{
    const char *plain = ca_demangle_rust(name, 128);
    return plain ? plain : ca_demangle_cxx(name, (size_t)32 << 10);
}

/* The input is a mangled name. */
static void read_name(const input_t *input)
{
    char name[4097], first[4097];
    size_t length = input->left < sizeof name - 1 ? input->left : sizeof name - 1;
    memcpy(name, input->at, length);
    name[length] = '\0';
    const char *plain = demangled(name);
    CLAIM(!plain || (*plain != '\0' && strlen(plain) < sizeof first));
    snprintf(first, sizeof first, "%s", plain ? plain : "");
    plain = demangled(name);
    CLAIM(strcmp(plain ? plain : "", first) == 0);
    ca_text_t text;
    ca_text_init(&text, first, sizeof first);
    ca_frame_add_function(&text, plain ? plain : name);
    CLAIM(text.length < sizeof first);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    input_t input = {data, size};
    switch (next_byte(&input) % 3) {
    case 0:
        read_file(&input);
        break;
    case 1:
        read_map(&input);
        break;
    default:
        read_name(&input);
    }
    return 0;
}
