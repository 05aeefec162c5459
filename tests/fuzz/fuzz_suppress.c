/* Suppressions: any line is a rule, a comment or told as wrong, and rules are matched without a
 * crash against a report that has strange names in it. */
#include "tests/fuzz/fuzz.h"

#include "registry/report/suppress.h"
#include "tests/unit/made_model.h"

/* As the frames of a model are: what is noted with them goes with each report. */
static size_t find(const ca_rules_t *rules, const ca_model_group_t *made, ca_bump_t *memory)
{
    ca_named_t named[8] = {0};
    const ca_frame_t *frames[8];
    ca_model_group_t group = *made;
    CLAIM(made->frame_count <= COUNT(named));
    for (size_t i = 0; i < made->frame_count; i++) {
        named[i].frame = *made->frames[i];
        frames[i] = &named[i].frame;
    }
    group.frames = frames;
    long which = ca_suppress_find(rules, &group, memory);
    CLAIM(which >= -1 && which < (long)rules->count);
    return (size_t)(which + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ca_rules_t rules = {0};
    ca_bump_t memory = {0};
    unsigned number = 0;
    rules.end = &rules.first;
    for (size_t from = 0; from < size && number < 64; number++) {
        const uint8_t *end = memchr(data + from, '\n', size - from);
        size_t length = end ? (size_t)(end - (data + from)) : size - from;
        const char *wrong = NULL;
        size_t before = rules.count;
        int rc = ca_suppress_add(&rules, (const char *)data + from, length, number + 1, &wrong);
        CLAIM(rc == 0 || (rc < 0 && wrong && *wrong));
        CLAIM(rules.count == before || (rc == 0 && rules.count == before + 1));
        from += length + 1;
    }
    for (size_t i = 0; i < COUNT(made_leaked); i++)
        CLAIM(find(&rules, &made_leaked[i], &memory) == find(&rules, &made_leaked[i], &memory));
    ca_bump_free(&memory);
    ca_bump_free(&rules.memory);
    return 0;
}
