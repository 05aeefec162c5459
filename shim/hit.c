#include "shim/hit.h"
#include <stdatomic.h>
#include "config/mutation.h"
#include "shim/life.h"
#include "shim/record.h"

void ca_hit_settle(void)
{
    bool plain = !ca_options.zero && !ca_options.free_sync && !ca_attributes_any() &&
                 !atomic_load(&ca_record_on) && !CA_MUTATED(reuse_pending) &&
                 !CA_MUTATED(pinned_reuse);
    int state = atomic_load(&ca_life_state);
    unsigned char hits = CA_HITS_DRIVER;
    if (ca_options.lane_r)
        hits |= CA_HITS_RUNTIME;
    if (!plain || (state != CA_LIFE_STARTING && state != CA_LIFE_ACTIVE))
        hits = 0;
    atomic_store(&ca_life_get_page()->hits, hits);
}

bool ca_hit_note_first(ca_block_t *block, ca_hit_t hit)
{
    ca_record_t record = {
        .address = block->address,
        .bytes = hit.bytes,
        .kind = hit.kind,
        .device = hit.device,
        .context = hit.context,
        .owner = block,
        .stack = hit.stack,
        .thread = hit.thread,
    };
    if (ca_registry_insert_at(&block->slot, &record) == 0)
        return true;
    ca_cached_free(block);
    return false;
}
