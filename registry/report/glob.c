#include "registry/report/glob.h"

#include <string.h>

bool ca_glob_holds(const char *pattern, const char *text)
{
    bool from_start = pattern[0] == '^';
    const char *at = pattern + from_start;
    const char *end = at + strlen(at);
    bool to_end = end > at && end[-1] == '$';
    end -= to_end;
    /* Where to go on when the rest does not fit: behind the last `*`, one character later. */
    const char *again = from_start ? NULL : at;
    const char *from = text;
    for (;;) {
        if (at < end && *at == '*') {
            again = ++at;
            from = text;
        } else if (at == end && (!to_end || *text == '\0')) {
            return true;
        } else if (at < end && *text != '\0' && *at == *text) {
            at++;
            text++;
        } else if (again && *from != '\0') {
            at = again;
            text = ++from;
        } else {
            return false;
        }
    }
}
