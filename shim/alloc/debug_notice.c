#include "shim/alloc/debug_notice.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include "base/thread_state.h"
#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"
#include "base/mem.h"
#include "config/options.h"
#include "base/out.h"
#include "registry/stack/modules.h"
#include "registry/stack/stack.h"
#include "registry/names/frame_lines.h"
#include "registry/names/symbols.h"
#include "registry/python/python.h"
#include "registry/table/threads.h"
#include "shim/upstream/helper.h"
#include "shim/alloc/report_lock.h"

#define WAIT_MS 1000
#define STACK_BYTES ((size_t)512 << 10) /* libdw wants some */

/* Names that a helper looks up. The thread that comes last gives it back. */
typedef struct job {
    enum { ASKED, ANSWERED, LEFT } _Atomic state;
    unsigned count;
    size_t frames[CA_NOTICE_STACKS];
    uint32_t epochs[CA_NOTICE_STACKS];
    uintptr_t addresses[CA_NOTICE_STACKS][CA_STACK_MAX];
    const char *texts[CA_NOTICE_STACKS][CA_STACK_MAX]; /* NULL: not named */
    ca_bump_t memory;
} job_t;

void ca_notice_add(ca_notice_t *notice, const char *title, uint32_t stack, uint32_t thread)
{
    char name[CA_THREAD_NAME];
    ca_text_t text;
    if ((!stack && !thread) || notice->count == CA_NOTICE_STACKS)
        return;
    ca_text_init(&text, notice->stacks[notice->count].title, sizeof notice->stacks[0].title);
    ca_text_printf(&text, "%s", title);
    if (thread) {
        ca_threads_name(thread, name);
        ca_text_printf(&text, " by thread ");
        ca_text_escape(&text, name, strlen(name), sizeof name);
    }
    notice->stacks[notice->count++].stack = stack;
}

static _Atomic unsigned shown;

bool ca_notice_wanted(void)
{
    static _Atomic uint64_t window; /* a second, and how many there were in it */
    if (ca_options.log < CA_LOG_WARN)
        return false;
    if (atomic_load(&shown) >= CA_NOTICES) {
        ca_warn_once("more wrong uses of memory than %d: the others are not shown", CA_NOTICES);
        return false;
    }
    uint64_t second = (ca_clock_ns() / 1000000000u + 1) << 16, before = atomic_load(&window), after;
    do {
        after = (before >> 16 == second >> 16 ? before : second) + 1;
        if ((after & 0xffff) > CA_NOTICES_A_SECOND) {
            ca_warn_once("more wrong uses of memory than %d in a second: some are not shown",
                         CA_NOTICES_A_SECOND);
            return false;
        }
    } while (!atomic_compare_exchange_weak(&window, &before, after));
    atomic_fetch_add(&shown, 1);
    return true;
}

/* --- names ------------------------------------------------------------------------------------ */

static job_t *make_job(const ca_notice_t *notice)
{
    size_t total = 0;
    job_t *job = ca_mem_map(sizeof *job);
    for (unsigned i = 0; job && i < notice->count; i++) {
        uint32_t stack = notice->stacks[i].stack;
        job->frames[i] = ca_stack_frames(stack, job->addresses[i], CA_STACK_MAX);
        job->epochs[i] = ca_stack_epoch(stack);
        total += job->frames[i];
    }
    if (job)
        job->count = total ? notice->count : 0;
    return job;
}

static void end_job(job_t *job)
{
    ca_bump_free(&job->memory);
    ca_mem_unmap(job, sizeof *job);
}

static void look_up(job_t *job)
{
    ca_symbols_t *symbols = ca_symbols_open(&job->memory);
    for (unsigned i = 0; symbols && i < job->count; i++)
        for (size_t k = 0; k < job->frames[i]; k++)
            job->texts[i][k] =
                ca_symbols_frame(symbols, job->addresses[i][k], job->epochs[i])->frame.lines;
    ca_symbols_close(symbols);
}

static void *help(void *arg)
{
    job_t *job = arg;
    pthread_setname_np(pthread_self(), "cachealloc");
    if (ca_report_lock_take(WAIT_MS)) {
        look_up(job);
        ca_report_lock_drop();
    }
    if (atomic_exchange(&job->state, ANSWERED) == LEFT)
        end_job(job);
    return NULL;
}

/* The job with its names; or one without, where they cannot be had. */
static job_t *name_frames(const ca_notice_t *notice, job_t *job)
{
    if (!job || job->count == 0 || atomic_load(&shown) > CA_NOTICES_NAMED ||
        ca_helper_start(help, job, STACK_BYTES) != 0)
        return job;
    for (unsigned i = 0; atomic_load(&job->state) == ASKED && i < ca_bound_ms(WAIT_MS); i++)
        ca_sleep(1000000);
    if (atomic_exchange(&job->state, LEFT) == ANSWERED)
        return job;
    return make_job(notice); /* the helper has the other */
}

/* --- text ------------------------------------------------------------------------------------- */

static void write_python(ca_out_t *out, uintptr_t word)
{
    char shown[400];
    ca_text_t text;
    const char *function, *file;
    unsigned line;
    ca_text_init(&text, shown, sizeof shown);
    if (ca_python_place(word, &function, &file, &line)) {
        const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
        ca_text_escape(&text, function, strlen(function), sizeof shown / 2);
        ca_text_printf(&text, " at ");
        ca_text_escape(&text, name, strlen(name), sizeof shown / 2);
        ca_text_printf(&text, ":%u", line);
        ca_text_mark_cut(&text);
    } else {
        ca_text_printf(&text, "(a Python function)");
    }
    ca_out_printf(out, "      %s\n", shown);
}

/* Of a frame that was not named. */
static void write_place(ca_out_t *out, uintptr_t address, uint32_t epoch)
{
    if (ca_python_is_word(address)) {
        write_python(out, address);
        return;
    }
    const ca_module_t *module = ca_modules_find(address - 1, epoch ? epoch : ca_modules_epoch());
    char shown[200];
    ca_text_t text;
    if (!module) {
        ca_out_printf(out, "      0x%llx\n", (unsigned long long)address);
        return;
    }
    const char *slash = strrchr(module->path, '/'), *name = slash ? slash + 1 : module->path;
    ca_text_init(&text, shown, sizeof shown);
    ca_text_escape(&text, name, strlen(name), sizeof shown - 1);
    ca_out_printf(out, "      %s+0x%llx\n", name[0] ? shown : program_invocation_short_name,
                  (unsigned long long)(address - 1 - module->bias));
}

static void write_notice(ca_out_t *out, const ca_notice_t *notice, const job_t *job)
{
    ca_out_open(out, ca_out_stderr());
    ca_out_printf(out, "cachealloc[%d]: warning: %s\n", (int)getpid(), notice->text);
    for (unsigned i = 0; i < notice->count; i++) {
        size_t frames = job ? job->frames[i] : 0;
        ca_out_printf(out, "    %s:\n", notice->stacks[i].title);
        if (frames == 0)
            ca_out_printf(out, "      (no call stack)\n");
        for (size_t k = 0; k < frames; k++)
            if (job->texts[i][k])
                ca_frame_write(out, "      ", job->texts[i][k]);
            else
                write_place(out, job->addresses[i][k], job->epochs[i]);
    }
    ca_out_flush(out);
}

void ca_notice_say(const ca_notice_t *notice)
{
    int saved = errno;
    ca_lock_assert_none("a message");
    int cancel = ca_cancel_hold();
    ca_out_t *out = ca_mem_map(sizeof *out); /* not on the stack of the thread that frees */
    job_t *job = name_frames(notice, make_job(notice));
    if (out) {
        write_notice(out, notice, job);
        ca_mem_unmap(out, sizeof *out);
    } else {
        ca_warn("%s", notice->text);
    }
    if (job)
        end_job(job);
    ca_cancel_resume(cancel);
    errno = saved;
}
