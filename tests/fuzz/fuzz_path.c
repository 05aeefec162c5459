/* Patterns in file names: what is accepted is finished within its buffer, whatever its size, and
 * has no pattern left. */
#include "tests/fuzz/fuzz.h"

#include "base/path.h"

static void finish(const char *pattern, size_t settled_bytes, size_t path_bytes)
{
    static char settled[8192], path[8192];
    ca_text_t text;
    CLAIM(settled_bytes <= sizeof settled && path_bytes <= sizeof path);
    memset(settled, 0x55, sizeof settled);
    memset(path, 0x55, sizeof path);
    ca_text_init(&text, settled, settled_bytes);
    ca_path_expand(pattern, &text);
    CLAIM(memchr(settled, '\0', settled_bytes));
    CLAIM(settled_bytes == sizeof settled || settled[settled_bytes] == 0x55);
    (void)ca_path_is_numbered(settled);
    ca_text_init(&text, path, path_bytes);
    ca_path_finish(settled, 7, &text);
    CLAIM(memchr(path, '\0', path_bytes));
    CLAIM(path_bytes == sizeof path || path[path_bytes] == 0x55);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char pattern[2048], why[256];
    ca_text_t text;
    if (size < 2 || size - 2 >= sizeof pattern)
        return 0;
    memcpy(pattern, data + 2, size - 2);
    pattern[size - 2] = '\0';
    if (memchr(data + 2, '\0', size - 2))
        return 0;
    ca_text_init(&text, why, sizeof why);
    setenv("FUZZ", "a/%p%%b", 1);
    int rc = ca_path_check(pattern, size - 2, &text);
    CLAIM(rc == 0 || (rc < 0 && why[0] != '\0'));
    CLAIM(ca_path_check(pattern, size - 2, NULL) == rc);
    if (rc == 0) {
        finish(pattern, 8192, 8192);
        finish(pattern, 1 + data[0] * 16u, 1 + data[1] * 16u);
    }
    return 0;
}
