/* One line, one write. */
#include "base/log.h"

#include "base/lock.h"
#include "base/out.h"
#include "base/text.h"

#include <errno.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_BYTES 1024

static _Atomic int enabled = CA_LOG_WARN;

void ca_log_set_level(ca_log_level_t level)
{
    atomic_store_explicit(&enabled, (int)level, memory_order_relaxed);
}

void ca_log(ca_log_level_t level, const char *format, ...)
{
    static const char *const words[] = {"", "error: ", "warning: ", "", "debug: "};
    int saved = errno;

    ca_lock_assert_none("a message");
    if (level == CA_LOG_OFF || (int)level > atomic_load_explicit(&enabled, memory_order_relaxed))
        return;

    char body[LINE_MAX_BYTES], line[LINE_MAX_BYTES + 1];
    ca_text_t said, shown;
    va_list args;
    va_start(args, format);
    ca_text_init(&said, body, sizeof body);
    ca_text_vprintf(&said, format, args);
    va_end(args);
    ca_text_mark_cut(&said);

    ca_text_init(&shown, line, sizeof line);
    ca_text_printf(&shown, "cachealloc[%d]: %s", (int)getpid(), words[level]);
    ca_text_escape(&shown, body, strlen(body), LINE_MAX_BYTES - 1 - shown.length);
    ca_text_add(&shown, "\n", 1);
    ca_out_write(ca_out_stderr(), line, shown.length, 0);
    errno = saved;
}
