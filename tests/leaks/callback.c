/* Called back from a library: the C library's function stands between the program's.
 *
 * plain: its own qsort tries the function before
 * expect: 360 bytes in 1, device: compare@compare < ... < [libc.so*] < ... < find@find < main@main
 */
#include "tests/leaks/leak.h"

FRAME static int compare(const void *a, const void *b)
{
    void *pointer;
    OK(cudaMalloc(&pointer, 360)); /* @compare */
    return *(const int *)a - *(const int *)b;
}

FRAME static int find(int *numbers)
{
    qsort(numbers, 2, sizeof(*numbers), compare); /* @find */
    return numbers[0];
}

int main(void)
{
    int numbers[] = {5, 3};
    CHECK(find(numbers) == 3); /* @main */
    return 0;
}
