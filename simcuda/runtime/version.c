/* Which version this runtime plays. The one file that libcudart.so.12 does not share with
 * libcudart.so.13: it is compiled once more, with another RT_PLAYS. */
#include "rt.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifndef RT_PLAYS
#define RT_PLAYS RT_VERSION
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static int version = RT_PLAYS;

/* SIMCUDA is a list of key:value with commas between; the driver reads the other keys. */
static void read_version(void)
{
    const char *key = "runtime:";
    for (const char *s = getenv("SIMCUDA"); s != NULL; s = strchr(s, ',')) {
        s += *s == ',';
        if (strncmp(s, key, strlen(key)) != 0)
            continue;
        int major = atoi(s + strlen(key));
        version = major == 11 ? 11080 : major == 12 ? 12090 : RT_VERSION;
    }
}

int rt_version(void)
{
    pthread_once(&once, read_version);
    return version;
}
