/* What the parts of the generator share. */
#ifndef CA_TESTS_RANDOM_GENERATE_H
#define CA_TESTS_RANDOM_GENERATE_H

#include "profiles.h"

enum { LIST = 256, QUEUE = 16, NEWEST = -2, LIVE_BYTES = 16 << 20 };

typedef struct list {
    int n, at[LIST];
} list_t;

typedef struct generator {
    program_t *p;
    const profile_t *profile;
    uint64_t r;
    int index, most_streams;
    list_t device[MAX_THREADS], host[MAX_THREADS], streams[MAX_THREADS], contexts[MAX_THREADS];
    list_t graphs[MAX_THREADS];
    list_t given, given_streams, holds;
    op_t queue[QUEUE]; /* operations that follow in any case, NEWEST being the last allocation */
    int queued, newest;
    int weight[OP_COUNT], weights; /* their sum */
} generator_t;

/* One of the thread's buffers, or NOBODY. */
int pick_buffer(generator_t *g, int thread, bool host);
/* One of the thread's streams that can reach the buffer (or any). */
int pick_stream(generator_t *g, int thread, int buffer);
/* Has the thread enough? A program must fit on a small device. */
bool full(const generator_t *g, int thread);

/* bursts.c: queues operations that show early reuse. */
void burst(generator_t *g, int thread);

#endif
