/* A library's destructor frees after the report, which tells the memory: it was live until then.
 * Where the driver has ended by then, such a free is answered so.
 *
 * sim: ends:late
 * parts: late_library.c
 * prints: freed
 * journal: what is freed late is freed
 * expect: 6100 bytes in 1, device: late_take@take < main@main
 */
#include "tests/leaks/leak.h"
#include "tests/leaks/late_library.h"

int main(void)
{
    CHECK(late_take(6100) == 1); /* @main */
    return 0;
}
