/* Two-level segregated fit over the ready blocks; see bin.h. */
#include "pool/blocks/bin.h"

void ca_bin_of(size_t bytes, unsigned *row, unsigned *sub)
{
    uint64_t granules = bytes / CA_GRANULE;

    if (granules < CA_BIN_SUBS) {
        *row = 0;
        *sub = (unsigned)granules;
        return;
    }
    unsigned top = 63u - (unsigned)__builtin_clzll(granules);
    *row = top - 4;
    *sub = (unsigned)(granules >> (top - 5)) & (CA_BIN_SUBS - 1);
}

void ca_bins_insert(ca_bins_t *bins, ca_block_t *block)
{
    unsigned row, sub;
    ca_bin_of(ca_block_size(block), &row, &sub);
    ca_block_t *head = bins->heads[row][sub];

    ca_block_set_prev(block, NULL);
    block->next = head;
    if (head)
        ca_block_set_prev(head, block);
    bins->heads[row][sub] = block;
    bins->subs[row] |= 1u << sub;
    bins->rows |= (uint64_t)1 << row;
}

void ca_bins_remove(ca_bins_t *bins, ca_block_t *block)
{
    if (block->next)
        ca_block_set_prev(block->next, ca_block_prev(block));
    if (ca_block_prev(block)) {
        ca_block_prev(block)->next = block->next;
        return;
    }
    unsigned row, sub;
    ca_bin_of(ca_block_size(block), &row, &sub);
    bins->heads[row][sub] = block->next;
    if (block->next)
        return;
    bins->subs[row] &= ~(1u << sub);
    if (!bins->subs[row])
        bins->rows &= ~((uint64_t)1 << row);
}

/* Cutting a little off a large block, the usual case, leaves it in its bin. */
void ca_bins_resize(ca_bins_t *bins, ca_block_t *block, size_t bytes)
{
    unsigned row, sub, new_row, new_sub;
    ca_bin_of(ca_block_size(block), &row, &sub);
    ca_bin_of(bytes, &new_row, &new_sub);

    if (row == new_row && sub == new_sub) {
        ca_block_set_size(block, bytes);
        return;
    }
    ca_bins_remove(bins, block);
    ca_block_set_size(block, bytes);
    ca_bins_insert(bins, block);
}

/* Among equal fits the lowest address wins: it keeps the upper segments idle. */
static ca_block_t *tightest(ca_block_t *block, size_t bytes, size_t alignment, unsigned compares)
{
    ca_block_t *best = NULL;

    for (; block && compares; block = block->next, compares--) {
        if (ca_block_size(block) < bytes + ca_block_padding(block, alignment))
            continue;
        if (!best || ca_block_size(block) < ca_block_size(best) ||
            (ca_block_size(block) == ca_block_size(best) && block->address < best->address))
            best = block;
    }
    return best;
}

bool ca_bins_next(const ca_bins_t *bins, unsigned *row, unsigned *sub)
{
    uint32_t subs = *sub + 1 < CA_BIN_SUBS ? bins->subs[*row] >> (*sub + 1) << (*sub + 1) : 0;

    if (!subs) {
        uint64_t rows = bins->rows >> (*row + 1) << (*row + 1);
        if (!rows)
            return false;
        *row = (unsigned)__builtin_ctzll(rows);
        subs = bins->subs[*row];
    }
    *sub = (unsigned)__builtin_ctz(subs);
    return true;
}

ca_block_t *ca_bins_find(const ca_bins_t *bins, size_t bytes, size_t alignment, unsigned compares)
{
    unsigned row, sub;
    ca_bin_of(bytes, &row, &sub);
    ca_block_t *best = tightest(bins->heads[row][sub], bytes, alignment, compares);

    /* Alignment costs less than two bins' widths, or a page of a range: this ends after a few. */
    while (!best && ca_bins_next(bins, &row, &sub))
        best = tightest(bins->heads[row][sub], bytes, alignment, compares);
    return best;
}

/* Blocks come from their epochs newest epoch first but within an epoch oldest first: the one wanted
 * is not far behind the first that fits. */
#define SAME_COMPARES 128u

ca_block_t *ca_bins_find_same(const ca_bins_t *bins, size_t bytes, size_t alignment)
{
    unsigned row, sub, compares = SAME_COMPARES;
    ca_bin_of(bytes, &row, &sub);
    ca_block_t *last = NULL;

    for (ca_block_t *block = bins->heads[row][sub]; block && compares; block = block->next) {
        compares -= last != NULL;
        if (ca_block_size(block) != bytes || ca_block_padding(block, alignment))
            continue;
        /* The count wraps around. */
        if (!last || ca_block_freed_after(block, last))
            last = block;
    }
    return last;
}

size_t ca_bins_largest(const ca_bins_t *bins)
{
    size_t largest = 0;

    if (!bins->rows)
        return 0;
    unsigned row = 63u - (unsigned)__builtin_clzll(bins->rows);
    unsigned sub = 31u - (unsigned)__builtin_clz(bins->subs[row]);
    for (const ca_block_t *block = bins->heads[row][sub]; block; block = block->next)
        if (ca_block_size(block) > largest)
            largest = ca_block_size(block);
    return largest;
}
