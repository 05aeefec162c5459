#include "shim/life/asked.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "base/log.h"
#include "base/out.h"
#include "base/path.h"
#include "config/options.h"

#define QUESTION "CACHEALLOC_ASK"
#define OPTIONS "options"

/* A program may set its ALLOC_CONF anew before it uses CUDA: that was not looked at. */
static uint64_t reported; /* 0: nothing */

static uint64_t add_text(uint64_t hash, const char *text)
{
    for (; text && *text != '\0'; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return (hash ^ (text ? 0x100u : 0x101u)) * 0x100000001b3u;
}

static uint64_t hash_of(const char *conf, const char *alias)
{
    return add_text(add_text(0xcbf29ce484222325u, conf), alias) | 1;
}

bool ca_asked_reported(const char *conf, const char *alias)
{
    return reported != 0 && reported == hash_of(conf, alias);
}

static void say(void *arg, const char *message)
{
    (void)arg;
    ca_warn("%s", message);
}

/* Twice: `log` decides whether anything is heard, and of the ranks of a host one speaks. */
static void check(void)
{
    static ca_options_t options;
    const char *conf = getenv(CA_OPTIONS_NAME), *alias = getenv(CA_OPTIONS_ALIAS);
    ca_complain_t complain = NULL;
    for (int pass = 0; pass < 2; pass++) {
        ca_options_default(&options);
        ca_options_parse(&options, CA_OPTIONS_NAME, conf, complain, NULL);
        ca_options_parse(&options, CA_OPTIONS_ALIAS, alias, complain, NULL);
        ca_log_set_level((ca_log_level_t)options.log);
        if (ca_path_speaks_for_host() || options.log >= CA_LOG_INFO)
            complain = say;
    }
    reported = hash_of(conf, alias);
}

static void print_line(void *arg, const char *line)
{
    ca_out_printf(arg, "%s\n", line);
}

static void show(const char *key)
{
    static ca_out_t out;
    static ca_options_t options;
    ca_out_open(&out, STDOUT_FILENO);
    ca_options_default(&options);
    options.help = strcmp(key, "all") == 0 ? CA_HELP_ALL : CA_HELP_TRUE;
    if (*key == '\0' || options.help == CA_HELP_ALL)
        ca_options_help(&options, print_line, &out);
    else
        ca_options_help_key(key, print_line, &out);
    ca_out_flush(&out);
}

/* By hand: some programs (bash) have an unsetenv of their own, which is not ready before main. */
static void take_out_of_environment(const char *name)
{
    size_t length = strlen(name);
    char **to = environ;
    for (char **from = environ; *from; from++)
        if (strncmp(*from, name, length) != 0 || (*from)[length] != '=')
            *to++ = *from;
    *to = NULL;
}

void ca_asked_answer(void)
{
    const char *question = getenv(QUESTION);
    if (!question || getauxval(AT_SECURE))
        return;
    size_t length = strlen(OPTIONS);
    if (strcmp(question, "check") == 0)
        check();
    else if (strncmp(question, OPTIONS, length) == 0)
        show(question[length] == ':' ? question + length + 1 : "");
    take_out_of_environment(QUESTION);
}
