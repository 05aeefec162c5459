#include "registry/python/reader.h"

#include "registry/stack/readable.h"

#define PAGE ((uintptr_t)4096)
#define ADDRESSES ((uintptr_t)1 << 56) /* of user space, and more */

static bool is_page_readable(ca_py_reader_t *reader, uintptr_t page)
{
    for (unsigned i = 0; i < CA_PY_PAGES; i++)
        if (reader->pages[i] == page)
            return true;
    if (ca_readable_end(page, 1) == page)
        return false;
    reader->pages[reader->next++ % CA_PY_PAGES] = page;
    return true;
}

bool ca_py_probe(ca_py_reader_t *reader, uintptr_t address, size_t bytes)
{
    if (address < PAGE || address >= ADDRESSES || bytes > ADDRESSES)
        return false;
    for (uintptr_t page = address & -PAGE; page < address + bytes; page += PAGE)
        if (!is_page_readable(reader, page))
            return false;
    return true;
}
