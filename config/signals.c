#include "config/signals.h"

#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "config/numbers.h"

static const struct {
    const char *name;
    int number;
} names[] = {
    {"HUP", SIGHUP},       {"INT", SIGINT},   {"QUIT", SIGQUIT},   {"PIPE", SIGPIPE},
    {"ALRM", SIGALRM},     {"TERM", SIGTERM}, {"USR1", SIGUSR1},   {"USR2", SIGUSR2},
    {"CHLD", SIGCHLD},     {"CONT", SIGCONT}, {"TSTP", SIGTSTP},   {"TTIN", SIGTTIN},
    {"TTOU", SIGTTOU},     {"URG", SIGURG},   {"XCPU", SIGXCPU},   {"XFSZ", SIGXFSZ},
    {"VTALRM", SIGVTALRM}, {"PROF", SIGPROF}, {"WINCH", SIGWINCH}, {"IO", SIGIO},
    {"PWR", SIGPWR},
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
