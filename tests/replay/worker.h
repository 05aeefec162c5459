/* One trace under one policy, in a process of its own: the shim's peaks are those of a process. */
#ifndef REPLAY_WORKER_H
#define REPLAY_WORKER_H

#include "tests/replay/policy.h"

/* 0, or -1 with a message on stderr, unless `quiet`. */
int worker_run(const char *path, policy_t policy, const how_t *how, bool quiet, figures_t *figures);

/* What such a process does: if the arguments say so it does not return. */
void worker_main(int argc, char **argv);

#endif
