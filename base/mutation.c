#include "base/mutation.h"

#if CA_DEBUG
#include <stdlib.h>
#include <string.h>
#include "base/log.h"

_Atomic(ca_mutation_t) ca_mutation;

void ca_mutation_read(void)
{
    static const char *const names[] = {
#define CA_MUTATION(name) #name,
        CA_MUTATIONS(CA_MUTATION)
#undef CA_MUTATION
    };
    const char *asked = getenv("CA_MUTATION");
    if (!asked)
        return;
    for (int i = 0; i < CA_MUTATION_COUNT; i++) {
        if (strcmp(asked, names[i]) == 0) {
            ca_mutation = (ca_mutation_t)i;
            return;
        }
    }
    ca_warn("unknown mutation %s", asked);
}

/* Some traps lie in wait before CUDA is used. */
__attribute__((constructor)) static void read_at_load(void)
{
    ca_mutation_read();
}
#else
typedef int ca_mutation_nothing_t; /* a translation unit may not be empty */
#endif
