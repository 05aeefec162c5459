/* A module whose unwind tables are damaged: whatever is in them, nothing outside of them is read,
 * and what is told is a rule. The input is patches of tables that are right, 2 bytes where and 1
 * what, behind one whose lowest bit says whether the module's parts are known. */
#include "tests/fuzz/fuzz.h"

#include <elf.h>
#include <sys/mman.h>

#include "registry/stack/eh_frame.h"

enum { FUNCTIONS = 3, CODE = 4096, CODE_BYTES = 64, PAGE = 4096 };
enum { HEADER_BYTES = 12 + FUNCTIONS * 8, MOST = 1024 };

typedef struct image {
    uint8_t bytes[MOST];
    size_t size;
} image_t;

static void put(image_t *image, const void *bytes, size_t count)
{
    memcpy(image->bytes + image->size, bytes, count);
    image->size += count;
}

static void put_number(image_t *image, int64_t number)
{
    int32_t number32 = (int32_t)number;
    put(image, &number32, sizeof number32);
}

/* An entry of .eh_frame from its length on, which is filled in by `end`. */
static size_t begin(image_t *image)
{
    put_number(image, 0);
    return image->size;
}

static void end(image_t *image, size_t at)
{
    while (image->size % 8 != 4)
        image->bytes[image->size++] = 0;
    int32_t length = (int32_t)(image->size - at);
    memcpy(image->bytes + at - sizeof length, &length, sizeof length);
}

/* As a linker makes them: the header with a table, an entry that all have in common, and one for
 * each function. Numbers are relative to where they stand. */
static void make(image_t *image)
{
    static const uint8_t head[] = {1, 0x1b, 0x03, 0x3b};
    static const uint8_t common[] = {0,    0,  0, 0,    1,    'z', 'R', 0,    1,
                                     0x78, 16, 1, 0x1b, 0x0c, 7,   8,   0x90, 1};
    static const uint8_t none[] = {0};
    static const uint8_t framed[] = {0,    0x41, 0x0e, 16, 0x86, 2,    0x43, 0x0d, 6, 0x02, 40,
                                     0x0a, 0x0c, 7,    8,  0x41, 0x0b, 0x41, 0x0c, 7, 8};
    static const uint8_t in_word[] = {0,    0x45, 0x0c, 10,   0,    0x49, 0x10, 6, 2,    0x76, 0,
                                      0x46, 0x0f, 3,    0x76, 0x78, 0x06, 0x2e, 8, 0x42, 0x0e, 8};
    static const struct {
        const uint8_t *bytes;
        size_t count;
    } code[FUNCTIONS] = {{none, sizeof none}, {framed, sizeof framed}, {in_word, sizeof in_word}};
    size_t entries[FUNCTIONS];
    memset(image, 0, sizeof *image);
    image->size = HEADER_BYTES;
    size_t at = begin(image);
    size_t common_at = image->size - 4;
    put(image, common, sizeof common);
    end(image, at);
    for (int i = 0; i < FUNCTIONS; i++) {
        at = begin(image);
        entries[i] = image->size - 4;
        put_number(image, (int64_t)(image->size - common_at));
        put_number(image, CODE + i * CODE_BYTES - (int64_t)image->size);
        put_number(image, CODE_BYTES);
        put(image, code[i].bytes, code[i].count);
        end(image, at);
    }
    size_t size = image->size;
    image->size = 0;
    put(image, head, sizeof head);
    put_number(image, HEADER_BYTES - 4);
    put_number(image, FUNCTIONS);
    for (int i = 0; i < FUNCTIONS; i++) {
        put_number(image, CODE + i * CODE_BYTES);
        put_number(image, (int64_t)entries[i]);
    }
    image->size = size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char *pages;
    static image_t image;
    input_t input = {data, size};
    bool has_parts = next_byte(&input) % 2 == 0, whole = input.left < 2;
    if (!pages) { /* nothing can be read behind it */
        pages = mmap(NULL, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CLAIM(pages != MAP_FAILED && mprotect(pages, PAGE, PROT_READ | PROT_WRITE) == 0);
    }
    make(&image);
    while (input.left >= 2) {
        size_t where = (size_t)next_byte(&input) | (size_t)(next_byte(&input) % 2) << 8;
        image.bytes[where % image.size] = next_byte(&input);
    }
    uint8_t *at = (uint8_t *)pages + PAGE - image.size;
    memcpy(at, image.bytes, image.size);
    const Elf64_Phdr part = {.p_type = PT_LOAD, .p_memsz = image.size};
    const ca_unwind_tables_t tables = {
        .header = at,
        .base = (uintptr_t)at,
        .parts = &part,
        .count = has_parts,
        .begin = (uintptr_t)at,
        .end = (uintptr_t)pages + 2 * PAGE,
    };
    for (int i = -8; i < FUNCTIONS * CODE_BYTES + 8; i++) {
        ca_frame_rule_t rule = {.cfa = UINT8_MAX, .fp = UINT8_MAX};
        bool known =
            ca_frame_rule_of(&tables, (uintptr_t)at + CODE + (uintptr_t)(intptr_t)i, &rule);
        CLAIM(!known || rule.outermost || rule.signal ||
              (rule.cfa <= CA_CFA_IN_WORD && rule.fp <= CA_FP_BESIDE_FP));
        int in = i - CODE_BYTES; /* the second function */
        bool framed = (in >= 1 && in < 44) || in == 45;
        CLAIM(!whole || i < 0 || i >= 2 * CODE_BYTES ||
              (known && !rule.outermost && rule.cfa_offset == (framed ? 16 : 8)));
    }
    return 0;
}
