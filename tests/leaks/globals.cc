/* Global objects allocate before main. The one whose destructor frees is not told: such destructors
 * run before the report.
 *
 * expect: 2200 bytes in 1, device: table::table(unsigned long)@table < ...
 * expect: 1200 bytes in 1, device: table::table(unsigned long)@table < local()@local < main@main
 */
#include "tests/leaks/leak.h"

struct table {
    FRAME explicit table(size_t bytes)
    {
        OK(cudaMalloc(&data, bytes)); /* @table */
    }
    table(const table &) = delete;
    table &operator=(const table &) = delete;
    void *data = nullptr;
};

struct freed_table : table {
    using table::table;
    ~freed_table()
    {
        cudaFree(data);
    }
};

static table forgotten(2200);
static freed_table kept(90000);

FRAME static int local()
{
    static table one(1200); /* @local */
    return one.data != nullptr;
}

int main()
{
    CHECK(forgotten.data && kept.data);
    CHECK(local() == 1); /* @main */
    return 0;
}
