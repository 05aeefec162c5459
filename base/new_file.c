#include "base/new_file.h"

#include <errno.h>
#include "base/path.h"
#include "base/text.h"

#define NAMES_MAX 65536 /* numbers that are tried for a name */

int ca_new_file_path(const char *settled, unsigned tried, char *path, size_t bytes)
{
    ca_text_t text;
    bool numbered = ca_path_is_numbered(settled);
    ca_text_init(&text, path, bytes);
    ca_path_finish(settled, numbered ? tried + 1 : 1, &text);
    if (tried > 0 && !numbered)
        ca_text_printf(&text, ".%ld", ca_path_pid());
    if (tried > 1 && !numbered) /* other hosts and other runs have our process id too */
        ca_text_printf(&text, ".%u", tried);
    return text.length < text.bytes ? 0 : -ENAMETOOLONG;
}

int ca_new_file_name(ca_atomic_file_t *file, const char *settled, char *path, size_t bytes,
                     unsigned *tried)
{
    int error = -EEXIST;
    for (*tried = 0; error == -EEXIST && *tried < NAMES_MAX; ++*tried) {
        error = ca_new_file_path(settled, *tried, path, bytes);
        if (!error)
            error = ca_atomic_file_name(file, path);
    }
    return error;
}
