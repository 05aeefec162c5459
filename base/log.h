/* Messages to the user, on stderr, one write(2) each so that lines of several threads or ranks do
 * not mix: `cachealloc[PID]: warning: text`.
 *
 * No heap and no stdio: these run inside malloc-like calls of programs that we do not know.
 * errno is preserved. Safe in any thread. */
#ifndef CA_BASE_LOG_H
#define CA_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>

/* In the order of the choices of the `log` option. */
typedef enum { CA_LOG_OFF, CA_LOG_ERROR, CA_LOG_WARN, CA_LOG_INFO, CA_LOG_DEBUG } ca_log_level_t;

void ca_log_set_level(ca_log_level_t level);

/* Writes a line when `level` is enabled. `format` must not contain a newline; control characters in
 * what it shows are escaped. A line is at most 1024 bytes; a longer one ends in `...`. Not while
 * one of our locks is held: debug builds check that, for levels that are off too. */
void ca_log(ca_log_level_t level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define ca_error(...) ca_log(CA_LOG_ERROR, __VA_ARGS__)
#define ca_warn(...) ca_log(CA_LOG_WARN, __VA_ARGS__)
#define ca_info(...) ca_log(CA_LOG_INFO, __VA_ARGS__)
#define ca_debug(...) ca_log(CA_LOG_DEBUG, __VA_ARGS__)

/* Says it the first time only; one flag per place in the source. */
#define ca_warn_once(...)                                                                          \
    do {                                                                                           \
        static _Atomic bool ca_said_;                                                              \
        if (!atomic_exchange(&ca_said_, true))                                                     \
            ca_warn(__VA_ARGS__);                                                                  \
    } while (0)

#endif
