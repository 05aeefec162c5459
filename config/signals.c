#include "config/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "config/numbers.h"

static const struct {
    const char *name;
    int number;
    bool ends_process;
} names[] = {
    {"HUP", SIGHUP, true},      {"INT", SIGINT, true},       {"QUIT", SIGQUIT, true},
    {"PIPE", SIGPIPE, true},    {"ALRM", SIGALRM, true},     {"TERM", SIGTERM, true},
    {"USR1", SIGUSR1, false},   {"USR2", SIGUSR2, false},    {"CHLD", SIGCHLD, false},
    {"CONT", SIGCONT, false},   {"TSTP", SIGTSTP, false},    {"TTIN", SIGTTIN, false},
    {"TTOU", SIGTTOU, false},   {"URG", SIGURG, false},      {"XCPU", SIGXCPU, true},
    {"XFSZ", SIGXFSZ, true},    {"VTALRM", SIGVTALRM, true}, {"PROF", SIGPROF, true},
    {"WINCH", SIGWINCH, false}, {"IO", SIGIO, true},         {"PWR", SIGPWR, true},
};
#define NAMES (sizeof names / sizeof names[0])
#define FIRST_REAL_TIME 34 /* the two before it are the C library's */

static bool is_known(uint64_t number)
{
    for (size_t i = 0; i < NAMES; i++)
        if ((uint64_t)names[i].number == number)
            return true;
    return number >= FIRST_REAL_TIME && number < NSIG;
}

int ca_signal_parse(const char *text, size_t length, int *number)
{
    uint64_t value = 0;
    if (ca_word_same(text, length, "off")) {
        *number = 0;
        return 0;
    }
    size_t prefix = length > 3 && ca_word_same(text, 3, "SIG") ? 3 : 0;
    for (size_t i = 0; i < NAMES; i++)
        if (ca_word_same(text + prefix, length - prefix, names[i].name)) {
            *number = names[i].number;
            return 0;
        }
    if (ca_uint_parse(text, length, &value) != 0)
        return -EINVAL;
    if (!is_known(value))
        return -ERANGE;
    *number = (int)value;
    return 0;
}

bool ca_signal_ends(int number)
{
    for (size_t i = 0; i < NAMES; i++)
        if (names[i].number == number)
            return names[i].ends_process;
    return false;
}

void ca_signal_print(int number, ca_text_t *out)
{
    if (number == 0) {
        ca_text_printf(out, "off");
        return;
    }
    for (size_t i = 0; i < NAMES; i++)
        if (names[i].number == number) {
            ca_text_printf(out, "%s", names[i].name);
            return;
        }
    ca_text_printf(out, "%d", number);
}
