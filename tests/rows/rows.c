/* Runs the rows of a table, each a program in a process of its own, and says which of them fail: a
 * test of hundreds of rows costs little more than its processes. tests/run_rows.py writes the
 * table.
 *
 * "rows FOLDER N" reads FOLDER/table and runs N rows at a time; what row number I writes is kept in
 * FOLDER/I.out and FOLDER/I.err. A line of the table is a word and what it says, parted by tabs:
 *
 *   row NAME               begins a row
 *   env NAME=VALUE         beside what this process's environment has
 *   limit SECONDS          (60)
 *   out TEXT               stdout, without blanks at its ends; of several lines one must hold
 *   without TEXT           what stderr must not have
 *   run PROGRAM ARGUMENT...  ends the row: it is run, and must end with exit status 0
 *
 * The last line is "N rows, M failed". After a few rows that did not end it runs no more of them,
 * and counts these as failed too. Exit status: 0; 1 where rows failed; 2 where the table is wrong.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MOST 32     /* words of a command, settings and answers of a row */
#define LINES 100   /* of a row */
#define TOGETHER 64 /* rows at a time */
#define LATE_MOST 4 /* rows that did not end: the rest would take as long */
#define SHOWN 2000  /* bytes of what a failed row wrote */
#define NS 1000000000ull

typedef struct list {
    char *at[MOST + 1]; /* ends with NULL */
    size_t n;
} list_t;

typedef struct row {
    char *lines[LINES]; /* what the others point into */
    size_t line_count, number;
    char *name;
    list_t words, env, answers, without;
    uint64_t limit_ns, deadline_ns;
    pid_t pid; /* 0: nothing runs here */
    bool late;
} row_t;

static const char *folder;
static FILE *table;
static sigset_t mask_before;
static size_t count, failed, late, unread;
static unsigned line_number;

static void wrong(const char *what)
{
    fprintf(stderr, "rows: line %u: %s\n", line_number, what);
    exit(2);
}

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * NS + (uint64_t)t.tv_nsec;
}

/* --- the table -------------------------------------------------------------------------------- */
static void add(list_t *list, char *text)
{
    if (list->n == MOST)
        wrong("too many of them in one row");
    list->at[list->n++] = text;
}

static void add_words(list_t *list, char *text)
{
    for (char *tab; (tab = strchr(text, '\t')); text = tab + 1) {
        *tab = '\0';
        add(list, text);
    }
    add(list, text);
}

static uint64_t limit_of(const char *text)
{
    char *end;
    double seconds = strtod(text, &end);
    if (*end || !(seconds > 0))
        wrong("not a limit");
    return (uint64_t)(seconds * 1e9);
}

/* Whether the row is complete. */
static bool take(row_t *r, const char *word, char *text)
{
    if (strcmp(word, "row") == 0 && !r->name)
        r->name = text;
    else if (!r->name)
        wrong("no row begins here");
    else if (strcmp(word, "env") == 0 && strchr(text, '='))
        add(&r->env, text);
    else if (strcmp(word, "limit") == 0)
        r->limit_ns = limit_of(text);
    else if (strcmp(word, "out") == 0)
        add(&r->answers, text);
    else if (strcmp(word, "without") == 0 && *text)
        add(&r->without, text);
    else if (strcmp(word, "run") == 0 && *text)
        add_words(&r->words, text);
    else
        wrong("not understood");
    return r->words.n != 0;
}

/* Whether there is another row. */
static bool next_row(row_t *r)
{
    size_t room = 0;
    char *line = NULL;
    *r = (row_t){.limit_ns = 60 * NS, .number = count};
    for (ssize_t n; (n = getline(&line, &room, table)) > 0; line = NULL, room = 0) {
        line_number++;
        if (r->line_count == LINES)
            wrong("too many lines in one row");
        r->lines[r->line_count++] = line;
        if (line[n - 1] == '\n')
            line[n - 1] = '\0';
        char *tab = strchr(line, '\t');
        if (!tab)
            wrong("no tab");
        *tab = '\0';
        if (take(r, line, tab + 1)) {
            count++;
            return true;
        }
    }
    free(line);
    if (r->line_count)
        wrong("the last row has nothing to run");
    return false;
}

/* --- a row's process -------------------------------------------------------------------------- */
static void path_of(const row_t *r, const char *kind, char path[static 4096])
{
    if (snprintf(path, 4096, "%s/%zu.%s", folder, r->number, kind) >= 4096)
        wrong("too long a path");
}

static void redirect(const char *path, int flags, int to)
{
    int file = open(path, flags, 0666);
    if (file < 0 || dup2(file, to) < 0)
        _exit(126);
    close(file);
}

/* In the child. It goes with this process, and what it leaves behind goes with its group. */
static void become(row_t *r)
{
    char out[4096], err[4096];
    path_of(r, "out", out);
    path_of(r, "err", err);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    setsid();
    sigprocmask(SIG_SETMASK, &mask_before, NULL);
    redirect("/dev/null", O_RDONLY, STDIN_FILENO);
    redirect(out, O_WRONLY | O_CREAT | O_TRUNC, STDOUT_FILENO);
    redirect(err, O_WRONLY | O_CREAT | O_TRUNC, STDERR_FILENO);
    for (size_t i = 0; i < r->env.n; i++)
        putenv(r->env.at[i]);
    execvp(r->words.at[0], r->words.at);
    /* Here LD_PRELOAD is text: nothing was loaded by it. */
    dprintf(STDERR_FILENO, "cannot start %s: %s\n", r->words.at[0], strerror(errno));
    _exit(127);
}

static void start(row_t *r)
{
    r->deadline_ns = now_ns() + r->limit_ns;
    r->pid = fork();
    if (r->pid == 0)
        become(r);
    if (r->pid < 0) {
        perror("rows: fork");
        exit(2);
    }
}

/* --- what came of it -------------------------------------------------------------------------- */
/* Empty where there is none. */
static char *read_all(const row_t *r, const char *kind)
{
    char path[4096];
    struct stat is = {0};
    path_of(r, kind, path);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    size_t n = 0, room = file >= 0 && fstat(file, &is) == 0 ? (size_t)is.st_size : 0;
    char *text = calloc(room + 1, 1);
    if (!text)
        abort();
    for (ssize_t got; n < room && (got = read(file, text + n, room - n)) > 0;)
        n += (size_t)got;
    if (file >= 0)
        close(file);
    for (char *zero; (zero = memchr(text, '\0', n)); *zero = '?') /* a search sees all of it */
        ;
    return text;
}

static const char *trimmed(char *text)
{
    size_t n = strlen(text);
    while (n && strchr(" \t\r\n", text[n - 1]))
        text[--n] = '\0';
    return text + strspn(text, " \t\r\n");
}

static bool is_answer(const row_t *r, const char *out)
{
    for (size_t i = 0; i < r->answers.n; i++)
        if (strcmp(out, r->answers.at[i]) == 0)
            return true;
    return r->answers.n == 0;
}

static const char *unwanted(const row_t *r, const char *err)
{
    for (size_t i = 0; i < r->without.n; i++)
        if (strstr(err, r->without.at[i]))
            return r->without.at[i];
    return NULL;
}

static void show(const char *name, const char *text)
{
    size_t n = strlen(text);
    const char *from = n > SHOWN ? text + n - SHOWN : text;
    while (*from) {
        int line = (int)strcspn(from, "\n");
        printf("    %s: %.*s\n", name, line, from);
        from += line + (from[line] == '\n');
    }
}

static void tell_answers(const row_t *r, const char *out)
{
    printf("it says \"%s\", not", out);
    for (size_t i = 0; i < r->answers.n; i++)
        printf("%s \"%s\"", i ? " or" : "", r->answers.at[i]);
}

/* `end` is how the process ended. */
static void judge(const row_t *r, const siginfo_t *end)
{
    char *said = read_all(r, "out"), *err = read_all(r, "err");
    const char *out = trimmed(said);
    bool exited = end->si_code == CLD_EXITED;
    if (!r->late && exited && end->si_status == 0 && is_answer(r, out) && !unwanted(r, err)) {
        free(said);
        free(err);
        return;
    }
    failed++;
    printf("FAILED %s: ", r->name);
    if (r->late)
        printf("no end after %g s", (double)r->limit_ns / 1e9);
    else if (!exited)
        printf("ended by signal %d (%s)", end->si_status, strsignal(end->si_status));
    else if (end->si_status != 0)
        printf("exit status %d, not 0", end->si_status);
    else if (!is_answer(r, out))
        tell_answers(r, out);
    else
        printf("its stderr has \"%s\"", unwanted(r, err));
    putchar('\n');
    show("stdout", out);
    show("stderr", err);
    free(said);
    free(err);
}

static bool has_ended(const row_t *r, siginfo_t *end, int how)
{
    end->si_pid = 0;
    return waitid(P_PID, (id_t)r->pid, end, WEXITED | WNOWAIT | how) == 0 && end->si_pid != 0;
}

/* Ends the row where its process has ended or its time is up. */
static void look(row_t *r)
{
    siginfo_t end;
    if (!r->pid)
        return;
    if (!has_ended(r, &end, WNOHANG)) {
        if (now_ns() < r->deadline_ns)
            return;
        r->late = true;
        late++;
        kill(r->pid, SIGKILL);
        (void)has_ended(r, &end, 0);
    }
    kill(-r->pid, SIGKILL); /* what it left behind, while the process still has its number */
    waitpid(r->pid, NULL, 0);
    judge(r, &end);
    for (size_t i = 0; i < r->line_count; i++)
        free(r->lines[i]);
    r->pid = 0;
}

/* Until a process ends or the first limit is over. */
static void sleep_until_one_ends(const row_t *rows, size_t n)
{
    sigset_t child;
    uint64_t first = UINT64_MAX, now = now_ns();
    for (size_t i = 0; i < n; i++)
        if (rows[i].pid && rows[i].deadline_ns < first)
            first = rows[i].deadline_ns;
    uint64_t left = first > now ? first - now : 0;
    struct timespec pause = {.tv_sec = (time_t)(left / NS), .tv_nsec = (long)(left % NS)};
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigtimedwait(&child, NULL, &pause);
}

/* Whether it starts one in every place that is free, or none is left. */
static bool fill(row_t *rows, size_t n)
{
    bool running = false;
    for (size_t i = 0; i < n; i++) {
        if (!rows[i].pid && late < LATE_MOST && next_row(&rows[i]))
            start(&rows[i]);
        running |= rows[i].pid != 0;
    }
    return running;
}

static void count_the_rest(void)
{
    row_t r;
    while (next_row(&r))
        unread++;
    if (unread)
        printf("FAILED (%zu more rows): not run, after %zu that did not end\n", unread, late);
}

static bool open_table(void)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/table", folder);
    table = fopen(path, "re"); /* no row's process has it */
    if (!table)
        fprintf(stderr, "rows: %s: %s\n", path, strerror(errno));
    return table != NULL;
}

int main(int argc, char **argv)
{
    static row_t rows[TOGETHER];
    sigset_t child;
    size_t n = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    if (n < 1 || n > TOGETHER) {
        fprintf(stderr, "usage: rows FOLDER 1..%d\n", TOGETHER);
        return 2;
    }
    folder = argv[1];
    if (!open_table())
        return 2;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child, &mask_before);
    while (fill(rows, n)) {
        sleep_until_one_ends(rows, n);
        for (size_t i = 0; i < n; i++)
            look(&rows[i]);
    }
    count_the_rest();
    printf("%zu rows, %zu failed\n", count, failed + unread);
    return failed + unread ? 1 : 0;
}
