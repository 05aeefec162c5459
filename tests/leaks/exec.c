/* What a program held is gone when it becomes another one, without a word; the other one reports
 * what it leaks itself.
 *
 * journal: the first program's is there, which the second one says
 * expect: 1400 bytes in 1, device: forget@forget < main@after
 */
#include <unistd.h>
#include "tests/leaks/leak.h"

FRAME static int forget(size_t bytes)
{
    void *pointer;
    OK(cudaMalloc(&pointer, bytes)); /* @forget */
    return 1;
}

int main(int argc, char **argv)
{
    if (argc > 1) {
        CHECK(forget(1400) == 1); /* @after */
        return 0;
    }
    CHECK(forget(8800) == 1);
    char again[] = "again", *arguments[] = {argv[0], again, NULL};
    execv(argv[0], arguments);
    return 1;
}
