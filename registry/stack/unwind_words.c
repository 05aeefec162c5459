/* From frame to frame by the rules of eh_frame.h, reading nothing but the thread's own stack. */
#include "registry/stack/unwind_words.h"

#if defined(__x86_64__)

#include <link.h>
#include <stddef.h>
#include <string.h>
#include <ucontext.h>

#include "base/mutation.h"
#include "registry/stack/readable.h"
#include "registry/stack/unload.h"

#define OTHER_STACK_MOST ((uintptr_t)256 << 10) /* bytes, of one that a signal came to */
#define MADE_FRAME_MOST ((uintptr_t)64 << 10)   /* bytes, of code that no table describes */
#define CODE_BYTES 16                           /* that are there where a call returns to */

/* A frame, seen from outside: where it was called from, and both registers there. */
typedef struct walk {
    uintptr_t returns, sp, fp;
    uintptr_t fp_from;   /* the word that `fp` was read from, as long as nothing depends on it */
    bool interrupted;    /* `returns` is no return: a signal came before the instruction there */
    bool guessed;        /* `returns` is what a frame pointer led to, which no table says */
    bool described;      /* the frame before it was */
    uintptr_t low, high; /* what may be read */
    const ca_unwind_start_t *start;
    ca_words_t *log; /* or NULL */
    ca_rules_t *rules;
} walk_t;

static bool log_word(ca_words_t *log, uintptr_t address, uintptr_t value)
{
    for (size_t i = 0; i < log->count; i++)
        if (log->words[i].address == address)
            return true;
    if (log->count == CA_WORDS_MAX)
        return false;
    log->words[log->count++] = (ca_word_t){address, value};
    return true;
}

/* The frames' words are others' variables to AddressSanitizer. */
__attribute__((no_sanitize_address, no_sanitize_thread)) static uintptr_t word_at(uintptr_t address)
{
    return *(const volatile uintptr_t *)address;
}

/* From the thread's stack alone. */
static inline bool get(const walk_t *walk, uintptr_t address, uintptr_t *value)
{
    if (address % sizeof(uintptr_t) != 0 || address < walk->low || address >= walk->high)
        return false;
    *value = word_at(address);
    return true;
}

static inline bool get_noted(const walk_t *walk, uintptr_t address, uintptr_t *value)
{
    return get(walk, address, value) && (!walk->log || log_word(walk->log, address, *value));
}

/* Most functions save a frame pointer that no code uses: it may be any number. */
static bool depend_on_fp(walk_t *walk)
{
    uintptr_t from = walk->fp_from;
    walk->fp_from = 0;
    return !walk->log || !from || log_word(walk->log, from, walk->fp);
}

/* What was found while a library is being closed may be of another one afterwards. */
static ca_rules_t *usable(ca_rules_t *rules)
{
    uint64_t epoch = ca_unload_epoch();
    if (epoch == CA_UNLOAD_UNDER_WAY || !rules)
        return NULL;
    if (rules->epoch != epoch && !CA_MUTATED(unload_cached)) {
        memset(rules, 0, sizeof *rules);
        rules->epoch = epoch;
    }
    return rules;
}

static bool is_code_there(uintptr_t address)
{
    return ca_readable_end(address, CODE_BYTES) >= address + CODE_BYTES;
}

/* A return address is looked up by the call before it. */
static __attribute__((noinline)) bool look_up_rule(struct ca_known_rule *set, uintptr_t returns,
                                                   ca_frame_rule_t *rule)
{
    if (!ca_frame_rule(returns - 1, rule))
        return false;
    if (rule->signal && !is_code_there(returns)) /* it is read */
        *rule = (ca_frame_rule_t){.outermost = true};
    if (set) {
        memmove(set + 1, set, (CA_RULE_WAYS - 1) * sizeof *set);
        set[0] = (struct ca_known_rule){returns, *rule};
    }
    return true;
}

static inline bool find_rule(ca_rules_t *rules, uintptr_t returns, ca_frame_rule_t *rule)
{
    struct ca_known_rule *set = rules ? rules->known[ca_rules_set(returns)] : NULL;
    for (unsigned way = 0; set && way < CA_RULE_WAYS; way++)
        if (set[way].returns == returns) {
            *rule = set[way].rule;
            return true;
        }
    return look_up_rule(set, returns, rule);
}

/* NO_CODE: what the last frame returns to. */
typedef enum { OUTWARDS, OUTERMOST, NO_CODE, LOST } step_t;

/* Code made at run time, above all. Most keeps a frame pointer. */
static __attribute__((noinline)) step_t by_frame_pointer(walk_t *walk)
{
    if (!is_code_there(walk->returns))
        return NO_CODE;
    if (!depend_on_fp(walk))
        return LOST;
    uintptr_t frame = walk->fp;
    if (frame - walk->sp > MADE_FRAME_MOST)
        return walk->guessed ? LOST : OUTERMOST;
    if (!walk->start->sure)
        return LOST;
    walk->fp_from = frame;
    if (!get_noted(walk, frame + sizeof(uintptr_t), &walk->returns) || !get(walk, frame, &walk->fp))
        return LOST;
    walk->sp = frame + 2 * sizeof(uintptr_t);
    walk->guessed = true;
    return OUTWARDS;
}

/* Where a handler returns to, the kernel's frame is what it left on the stack: a ucontext_t. The
 * call of the kernel makes sure that it is that. */
static step_t through_signal(walk_t *walk)
{
    static const uint8_t sigreturn[] = {0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05};
    const uintptr_t registers = walk->sp + offsetof(ucontext_t, uc_mcontext.gregs);
    uintptr_t sp;
    if (memcmp((const void *)walk->returns, sigreturn, sizeof sigreturn) != 0)
        return LOST;
    walk->fp_from = registers + REG_RBP * sizeof(uintptr_t);
    if (!get_noted(walk, registers + REG_RIP * sizeof(uintptr_t), &walk->returns) ||
        !get_noted(walk, registers + REG_RSP * sizeof(uintptr_t), &sp) ||
        !get(walk, walk->fp_from, &walk->fp))
        return LOST;
    if (sp >= walk->start->own_low && sp < walk->start->own_high) {
        walk->low = sp;
        walk->high = walk->start->own_high;
    } else if (sp <= walk->sp || sp >= walk->high) {
        if (walk->log) /* that stack may be unmapped when its words are compared */
            return LOST;
        walk->low = sp;
        walk->high = ca_readable_end(sp, OTHER_STACK_MOST);
    }
    walk->interrupted = true;
    walk->sp = sp;
    return OUTWARDS;
}

/* In line: without a log that part of it goes, and the walk stays in registers. */
static inline __attribute__((always_inline)) step_t step(walk_t *walk)
{
    ca_frame_rule_t rule;
    if (walk->returns == 0)
        return OUTERMOST;
    walk->described = find_rule(walk->rules, walk->returns + walk->interrupted, &rule);
    walk->interrupted = false;
    if (!walk->described)
        return by_frame_pointer(walk);
    walk->guessed = false;
    if (rule.outermost)
        return OUTERMOST;
    if (rule.signal)
        return through_signal(walk);

    if ((rule.cfa != CA_CFA_OF_SP || rule.fp == CA_FP_BESIDE_FP) && !depend_on_fp(walk))
        return LOST;
    uintptr_t cfa =
        (rule.cfa == CA_CFA_OF_SP ? walk->sp : walk->fp) + (uintptr_t)(intptr_t)rule.cfa_offset;
    if (rule.cfa == CA_CFA_IN_WORD && !get_noted(walk, cfa, &cfa))
        return LOST;
    if (cfa <= walk->sp || !get_noted(walk, cfa - sizeof(uintptr_t), &walk->returns))
        return LOST;
    if (rule.fp != CA_FP_SAME) {
        walk->fp_from =
            (rule.fp == CA_FP_BELOW_CFA ? cfa : walk->fp) + (uintptr_t)(intptr_t)rule.fp_offset;
        if (!get(walk, walk->fp_from, &walk->fp))
            return LOST;
    }
    walk->sp = cfa;
    return OUTWARDS;
}

static bool begin(walk_t *walk, const ca_unwind_start_t *start, ca_words_t *log, ca_rules_t *rules)
{
    *walk = (walk_t){
        .returns = start->caller,
        .sp = start->frame + 2 * sizeof(uintptr_t),
        .fp_from = start->frame,
        .start = start,
        .low = start->frame,
        .high = start->stack_high,
        .log = log,
        .rules = usable(rules),
    };
    return start->frame >= start->stack_low && get(walk, start->frame, &walk->fp);
}

bool ca_words_usable(void)
{
    return true;
}

static int count_loads(struct dl_phdr_info *object, size_t size, void *arg)
{
    (void)size;
    *(uint64_t *)arg = object->dlpi_adds;
    return 1;
}

uint64_t ca_words_loads(void)
{
    uint64_t loads = 0;
    dl_iterate_phdr(count_loads, &loads);
    return loads;
}

size_t ca_words_frames(const ca_unwind_start_t *start, ca_rules_t *rules, void **frames, size_t max,
                       ca_unwound_t *unwound)
{
    walk_t walk;
    size_t count = 0, known = 0; /* those that no guess led to, or that a guess led well to */
    step_t done = begin(&walk, start, NULL, rules) ? OUTWARDS : LOST;
    while (done == OUTWARDS && walk.returns != 0 && count < max) {
        bool guessed = walk.guessed;
        if (unwound->sps)
            unwound->sps[count] = walk.sp;
        unwound->handler |= walk.interrupted;
        frames[count++] = (void *)walk.returns;
        if (count < max)
            done = step(&walk);
        if (walk.described || !guessed)
            known = count;
    }
    unwound->ended = done != LOST;
    if (done == NO_CODE)
        return known < count ? known : count > 1 ? count - 1 : count;
    return count == max && done == OUTWARDS ? count : known;
}

bool ca_words_unwind(ca_words_t *log, ca_rules_t *rules, void *const *frames, size_t count,
                     bool whole)
{
    walk_t walk;
    log->count = 0;
    if (count == 0 || (uintptr_t)frames[0] != log->start.caller ||
        !begin(&walk, &log->start, log, rules))
        return false;
    for (size_t i = 1; i < count; i++)
        if (step(&walk) != OUTWARDS || walk.returns != (uintptr_t)frames[i])
            return false;
    if (!whole)
        return true;
    step_t done = step(&walk);
    return done == OUTERMOST || (done == OUTWARDS && step(&walk) == NO_CODE);
}

#else

bool ca_words_usable(void)
{
    return false;
}

uint64_t ca_words_loads(void)
{
    return 0;
}

size_t ca_words_frames(const ca_unwind_start_t *start, ca_rules_t *rules, void **frames, size_t max,
                       ca_unwound_t *unwound)
{
    (void)start;
    (void)rules;
    (void)frames;
    (void)max;
    unwound->ended = false;
    return 0;
}

bool ca_words_unwind(ca_words_t *log, ca_rules_t *rules, void *const *frames, size_t count,
                     bool whole)
{
    (void)log;
    (void)rules;
    (void)frames;
    (void)count;
    (void)whole;
    return false;
}

#endif
