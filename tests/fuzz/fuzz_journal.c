/* The journal of a process that is gone: whatever is in the file, it is read without a crash, and
 * no more is told than records that are in it. The input is patches of a small journal that is
 * right, 3 bytes where and 8 what, so that few bytes get far; or, after a 0xff, a file of its own.
 */
#include <errno.h>
#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

#include "registry/journal/journal.h"
#include "registry/journal/journal_file.h"
#include "registry/table/registry.h"

#define SLOTS CA_JOURNAL_GROUP
#define LOG_BYTES 1024u
#define FRAMES 3

typedef struct file {
    union {
        ca_journal_head_t head;
        char page[CA_JOURNAL_HEAD_BYTES];
    };
    uint64_t keys[SLOTS];
    ca_allocation_t records[SLOTS];
    char log[LOG_BYTES];
} file_t;

static char *add(char *at, ca_entry_kind_t kind, const void *fixed, size_t bytes, const void *rest,
                 size_t more)
{
    ca_entry_t entry = {kind, (uint32_t)((sizeof entry + bytes + more + 7) / 8 * 8)};
    memcpy(at, &entry, sizeof entry);
    memcpy(at + sizeof entry, fixed, bytes);
    memcpy(at + sizeof entry + bytes, rest, more);
    return at + entry.bytes;
}

static void make(file_t *file)
{
    const uint64_t frames[FRAMES] = {0x401000, 0x402000, 0x7f0000001000};
    const char path[] = "/opt/tiles";
    char *at = file->log;
    memset(file, 0, sizeof *file);
    memcpy(file->head.magic, CA_JOURNAL_MAGIC, sizeof file->head.magic);
    file->head.version = CA_JOURNAL_VERSION;
    file->head.record_bytes = sizeof(ca_allocation_t);
    file->head.pid = 7;
    file->head.stack_depth = 16;
    file->head.chunk_count = 2;
    file->head.chunks[0] = (ca_journal_chunk_t){CA_JOURNAL_TABLE, SLOTS, offsetof(file_t, keys),
                                                sizeof file->keys + sizeof file->records};
    file->head.chunks[1] =
        (ca_journal_chunk_t){CA_JOURNAL_LOG, 0, offsetof(file_t, log), sizeof file->log};
    for (size_t i = 0; i < SLOTS / 2; i++) {
        uint64_t address = 0x7f4000000000 + i * 512;
        file->keys[i] = address;
        file->records[i] = (ca_allocation_t){
            .address = address, .bytes = 100, .sequence = i + 1, .stack = 1, .thread = 7};
    }
    at = add(at, CA_ENTRY_STACK, &(ca_entry_stack_t){1, FRAMES, 1}, sizeof(ca_entry_stack_t),
             frames, sizeof frames);
    at =
        add(at, CA_ENTRY_MODULE, &(ca_entry_module_t){.low = 0x400000, .high = 0x500000, .from = 1},
            sizeof(ca_entry_module_t), path, sizeof path);
    at = add(at, CA_ENTRY_UNLOADED, &(ca_entry_unloaded_t){0x7f0000000000, 1, 2},
             sizeof(ca_entry_unloaded_t), "", 0);
    at = add(at, CA_ENTRY_THREAD, &(ca_entry_thread_t){7, "tiles"}, sizeof(ca_entry_thread_t), "",
             0);
    CLAIM(at < file->log + sizeof file->log);
}

static void patch(file_t *file, input_t *input)
{
    while (input->left) {
        size_t where = (size_t)next_number(input, 3) % (sizeof *file - 8);
        uint64_t what = next_number(input, 8);
        memcpy((char *)file + where, &what, sizeof what);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static int fd = -1;
    static char name[64];
    static file_t file;
    char why[256] = "";
    ca_journal_read_t read;
    ca_text_t text;
    input_t input = {data, size};
    if (fd < 0) {
        CLAIM((fd = memfd_create("journal", MFD_CLOEXEC)) >= 0);
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    }
    bool own = size > 0 && data[0] == 0xff;
    if (!own) {
        make(&file);
        patch(&file, &input);
    }
    const void *bytes = own ? (const void *)(data + 1) : &file;
    size_t count = own ? size - 1 : sizeof file;
    CLAIM(pwrite(fd, bytes, count, 0) == (ssize_t)count && ftruncate(fd, (off_t)count) == 0);

    ca_text_init(&text, why, sizeof why);
    int rc = ca_journal_read(name, &read, &text);
    CLAIM(rc == 0 || (rc < 0 && (why[0] != '\0' || rc != -EINVAL)));
    if (rc == 0) {
        CLAIM(own || size > 0 || read.records == SLOTS / 2);
        CLAIM(read.records <= count / sizeof(ca_allocation_t) * CA_JOURNAL_CHUNKS);
        ca_journal_read_end(&read);
        CLAIM(ca_registry_total().count == 0);
    }
    return 0;
}
