/* Replays allocation traces through the real shim on the simulated CUDA, both of which lie beside
 * this program:
 *
 *     replay [--json | --table] [--policy NAME]... [--passes N] [--threads N] [--streams M]
 *            [--busy] [--live KIB] [--least] PATH...
 *
 * A path is a trace (trace.h) or a directory of them (*.csv, *.csv.gz). Each trace is replayed in a
 * process of its own, three passes on one pool: in trace order, or by N threads; with plain calls,
 * or stream-ordered on M streams of each thread; with an idle device, or with --busy while kernels
 * are in flight and frees that reach the driver wait for them. --live scales the sizes, so that as
 * much is live at most: what if it were a small program? --least searches for the smallest
 * device memory with which it finishes. The policies are `cachealloc`, `pytorch` (pytorch.c) and
 * `driver` (no shim); where none is named it is the first, with --json and --table (a comparison)
 * the first two. `pytorch` is one thread with an idle device, whatever is asked for. Efficiency is
 * the peak of requested live bytes over the peak of bytes obtained upstream, all passes together.
 */
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "tests/replay/show.h"
#include "tests/replay/worker.h"

#define MEMORY_UNIT ((size_t)2 << 20)
#define THREADS_MOST 256
#define LIVE_MOST (1u << 30) /* KiB */

typedef struct request {
    how_t how;
    bool policies[POLICIES];
    bool json, table, least;
} request_t;

typedef struct rows {
    row_t *rows;
    size_t count;
} rows_t;

static void *or_end(void *memory)
{
    if (!memory) {
        fprintf(stderr, "replay: out of host memory\n");
        exit(1);
    }
    return memory;
}

/* Between what was live at most and what was taken where there was plenty. */
static size_t least_memory(const row_t *row, how_t how)
{
    const pass_t *last = &row->figures.pass[row->figures.passes - 1];
    size_t fails = last->live_peak / MEMORY_UNIT;
    size_t finishes = (last->upstream_peak + MEMORY_UNIT - 1) / MEMORY_UNIT;
    if (fails > 0)
        fails--;
    while (fails + 1 < finishes) {
        figures_t figures;
        size_t middle = fails + (finishes - fails) / 2;
        how.memory = middle * MEMORY_UNIT;
        bool done = worker_run(row->path, row->policy, &how, true, &figures) == 0;
        *(done ? &finishes : &fails) = middle;
    }
    return finishes * MEMORY_UNIT;
}

static int replay_file(const char *path, const request_t *request, rows_t *rows)
{
    for (policy_t policy = 0; policy < POLICIES; policy++) {
        if (!request->policies[policy])
            continue;
        row_t row = {.policy = policy};
        if (worker_run(path, policy, &request->how, false, &row.figures) != 0)
            return -1;
        row.path = or_end(strdup(path));
        if (request->least && row.figures.counted)
            row.least = least_memory(&row, request->how);
        rows->rows = or_end(realloc(rows->rows, (rows->count + 1) * sizeof(row_t)));
        rows->rows[rows->count++] = row;
        if (!request->json && !request->table) {
            show_lines(&row);
            fflush(stdout);
        }
    }
    return 0;
}

static bool ends_in(const char *text, const char *end)
{
    size_t length = strlen(text), wanted = strlen(end);
    return length > wanted && strcmp(text + length - wanted, end) == 0;
}

static int is_trace(const struct dirent *entry)
{
    return ends_in(entry->d_name, ".csv") || ends_in(entry->d_name, ".csv.gz");
}

static int replay_directory(const char *path, const request_t *request, rows_t *rows)
{
    struct dirent **entries;
    int status = 0, count = scandir(path, &entries, is_trace, alphasort);
    if (count <= 0) {
        fprintf(stderr, "replay: %s: %s\n", path,
                count < 0 ? strerror(errno) : "no traces (*.csv, *.csv.gz)");
        return -1;
    }
    for (int i = 0; i < count; i++) {
        char *whole = NULL;
        if (status == 0 && asprintf(&whole, "%s/%s", path, entries[i]->d_name) >= 0)
            status = replay_file(whole, request, rows);
        free(whole);
        free(entries[i]);
    }
    free(entries);
    return status;
}

static _Noreturn void usage(void)
{
    fprintf(stderr, "usage: replay [--json | --table] [--policy cachealloc|pytorch|driver]...\n"
                    "              [--passes N] [--threads N] [--streams M] [--busy]\n"
                    "              [--live KIB] [--least] PATH...\n");
    exit(2);
}

static unsigned count_of(const char *option, const char *text, unsigned least, unsigned most)
{
    char *end;
    unsigned long count = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || count < least || count > most) {
        fprintf(stderr, "replay: %s %s: accepted: %u to %u\n", option, text, least, most);
        usage();
    }
    return (unsigned)count;
}

static policy_t policy_of(const char *name)
{
    for (policy_t policy = 0; policy < POLICIES; policy++)
        if (strcmp(name, policy_name(policy)) == 0)
            return policy;
    fprintf(stderr, "replay: --policy %s: accepted: cachealloc, pytorch, driver\n", name);
    usage();
}

static void read_option(request_t *request, int option)
{
    switch (option) {
    case 'j':
        request->json = true;
        break;
    case 'b':
        request->how.busy = true;
        break;
    case 'l':
        request->least = true;
        break;
    case 'T':
        request->table = true;
        break;
    case 'P':
        request->policies[policy_of(optarg)] = true;
        break;
    case 'p':
        request->how.passes = count_of("--passes", optarg, 1, PASSES_MOST);
        break;
    case 't':
        request->how.threads = count_of("--threads", optarg, 1, THREADS_MOST);
        break;
    case 's':
        request->how.streams = count_of("--streams", optarg, 0, STREAMS_MOST);
        break;
    case 'L':
        request->how.live = count_of("--live", optarg, 1, LIVE_MOST);
        break;
    default:
        usage();
    }
}

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"json", no_argument, NULL, 'j'},          {"table", no_argument, NULL, 'T'},
        {"busy", no_argument, NULL, 'b'},          {"least", no_argument, NULL, 'l'},
        {"policy", required_argument, NULL, 'P'},  {"passes", required_argument, NULL, 'p'},
        {"threads", required_argument, NULL, 't'}, {"streams", required_argument, NULL, 's'},
        {"live", required_argument, NULL, 'L'},    {0}};
    request_t request = {.how = {.passes = 3, .threads = 1}};
    rows_t rows = {0};
    int option, status = 0;
    struct stat found;
    worker_main(argc, argv);
    while ((option = getopt_long(argc, argv, "+", options, NULL)) != -1)
        read_option(&request, option);
    if (optind == argc || (request.json && request.table))
        usage();
    bool *policies = request.policies;
    if (request.table)
        policies[POLICY_DRIVER] = false;
    else if (policies[POLICY_CACHEALLOC] || policies[POLICY_PYTORCH] || policies[POLICY_DRIVER])
        policies = NULL;
    if (policies)
        policies[POLICY_CACHEALLOC] = true;
    if (policies && (request.table || request.json))
        policies[POLICY_PYTORCH] = true;
    for (int i = optind; i < argc && status == 0; i++)
        status = stat(argv[i], &found) == 0 && S_ISDIR(found.st_mode)
                     ? replay_directory(argv[i], &request, &rows)
                     : replay_file(argv[i], &request, &rows);
    if (request.json)
        show_json(rows.rows, rows.count);
    else if (request.table)
        show_table(rows.rows, rows.count);
    for (size_t i = 0; i < rows.count; i++)
        free(rows.rows[i].path);
    free(rows.rows);
    return status == 0 ? 0 : 1;
}
