/* random --seed N --ops N [--threads N] [--devices N] [--profile NAME] [--skip LIST | --only LIST]
 *        [--break N] [--keep] [--list]
 *
 * Runs the random program of a seed and prints what it saw as one digest, which must be the same
 * under every allocator. LIST is numbers and ranges of operations, 3,7-12, or @FILE that holds one;
 * the last operation, which looks at everything and frees it, always stays. --break makes a program
 * that is wrong: the stream waits of operation N are left out. --keep leaves frees out, and the
 * waits inside them: what is wrong then is wrong without a pool. Exit status: 0; 1 a call failed or
 * a byte was wrong; 2 wrong usage; the simulator's race check makes it 99. */
#include "random.h"
#include "profiles.h"
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void usage(const char *what)
{
    fprintf(stderr, "random: %s\n", what);
    fprintf(stderr,
            "random --seed N --ops N [--threads N] [--devices N] [--profile NAME]"
            " [--skip LIST | --only LIST | @FILE] [--break N] [--keep] [--list]\nprofiles:\n");
    for (int i = 0; i < PROFILES; i++)
        fprintf(stderr, "  %-12s %s\n", profiles[i].name, profiles[i].what);
    exit(2);
}

static char *list_text(const char *argument)
{
    if (argument[0] != '@')
        return strdup(argument);
    char *text = NULL;
    size_t room = 0;
    FILE *file = fopen(argument + 1, "r");
    if (!file || getdelim(&text, &room, '\0', file) < 0)
        usage("cannot read the list of operations");
    fclose(file);
    return text;
}

/* Marks the operations of a list. */
static void mark(bool *marks, int n, const char *argument)
{
    char *text = list_text(argument);
    for (char *at = text; *at && *at != '\n';) {
        char *end;
        long first = strtol(at, &end, 10), last = first;
        if (end == at)
            usage("a list is numbers and ranges: 3,7-12");
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        for (long i = first < 0 ? 0 : first; i <= last && i < n; i++)
            marks[i] = true;
        at = *end == ',' ? end + 1 : end;
    }
    free(text);
}

static void list(const program_t *p, const op_t *ops, const bool *left_out)
{
    char text[300];
    int next = 0;
    for (int i = NOBODY; i < p->ops_n; i++) {
        if (i != NOBODY && left_out[i])
            continue;
        if (i != NOBODY)
            show_op(i, &ops[i]);
        for (; next < p->steps.n && p->steps.at[next].op == i; next++) {
            show_step(&p->steps.at[next], p, text, sizeof(text));
            if (i != NOBODY)
                printf("    %s\n", text);
        }
    }
}

/* The same program without some operations: the others are lowered anew. */
static void without(program_t *p, const op_t *ops, const bool *left_out)
{
    static program_t less;
    program_init(&less, p->ops_n, p->threads, p->devices);
    less.peers = p->peers;
    less.peer_free = p->peer_free;
    less.launches = p->launches;
    for (int i = 0; i < p->ops_n; i++)
        if (!left_out[i])
            lower(&less, i, &ops[i]);
    *p = less;
}

int main(int argc, char **argv)
{
    settings_t settings = {.seed = 1, .ops = 1000, .broken = NOBODY};
    const char *skip = NULL, *only = NULL;
    bool listing = false;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--list") == 0) {
            listing = true;
            continue;
        }
        if (strcmp(argv[i], "--keep") == 0) {
            settings.keep = true;
            continue;
        }
        i++;
        if (strcmp(argv[i - 1], "--seed") == 0)
            settings.seed = strtoull(value, NULL, 0);
        else if (strcmp(argv[i - 1], "--ops") == 0)
            settings.ops = atoi(value);
        else if (strcmp(argv[i - 1], "--threads") == 0)
            settings.threads = atoi(value);
        else if (strcmp(argv[i - 1], "--devices") == 0)
            settings.devices = atoi(value);
        else if (strcmp(argv[i - 1], "--profile") == 0)
            settings.profile = value;
        else if (strcmp(argv[i - 1], "--break") == 0)
            settings.broken = atoi(value);
        else if (strcmp(argv[i - 1], "--skip") == 0)
            skip = value;
        else if (strcmp(argv[i - 1], "--only") == 0)
            only = value;
        else
            usage(argv[i - 1]);
    }
    if (settings.ops < 1 || settings.threads < 0 || settings.threads > MAX_THREADS ||
        settings.devices < 0 || settings.devices > MAX_DEVICES)
        usage("a number is out of range");

    static program_t p;
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < 1) {
        puts("no CUDA device");
        return 77;
    }
    static op_t *ops; /* static: they live as long as the program */
    static bool *left_out;
    ops = calloc((size_t)settings.ops, sizeof(*ops));
    left_out = calloc((size_t)settings.ops, sizeof(*left_out));
    if (!ops || !left_out)
        return 2;
    if (!generate(&p, ops, &settings, devices < MAX_DEVICES ? devices : MAX_DEVICES))
        usage("no such profile");
    if (skip || only) {
        mark(left_out, settings.ops, skip ? skip : only);
        for (int i = 0; only && i < settings.ops; i++)
            left_out[i] = !left_out[i];
        left_out[settings.ops - 1] = false;
        without(&p, ops, left_out);
    }
    if (listing) {
        list(&p, ops, left_out);
        return 0;
    }
    uint64_t digest = execute(&p, &settings);
    printf("%s: seed %llu, %d operations (%d skipped), %d threads, %d devices, %d calls, %d by "
           "kernels: %016llx\n",
           settings.profile, (unsigned long long)settings.seed, settings.ops, p.skipped,
           settings.threads, settings.devices, p.steps.n, kernel_steps(),
           (unsigned long long)digest);
    return 0;
}
